"""Tensor fusion: small tensors travel together in one buffer.

A message costs a latency α and a time per byte; many small messages pay α many times. So responses
that became ready together are packed into a *batch*, reduced at once, and unpacked.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from workbench.collectives.reduction import wire_dtype
from workbench.runtime.messages import Kind, ReduceOp, Response
from workbench.runtime.pending import Array

Batch = list[Response]


def nbytes(response: Response) -> int:
    """Bytes of one tensor on the wire."""
    return prod(response.shape) * wire_dtype(response.dtype).itemsize


def plan(responses: Iterable[Response], threshold_bytes: int) -> list[Batch]:
    """What travels together: allreduces alike in all but name and shape, up to ``threshold_bytes``.

    A pure function of the responses, which are the same on every rank, so every rank finds the same plan.
    Batches are in the order of their first member. A tensor larger than the threshold travels alone, and so does one
    that all ranks can reach where it lies, for which nothing is won by packing.

    Example:
        >>> small = [Response(f"grad{i}", Kind.ALLREDUCE, "float32", (10,)) for i in range(3)]
        >>> [[r.name for r in batch] for batch in plan(small, threshold_bytes=80)]
        [['grad0', 'grad1'], ['grad2']]
    """
    batches: list[Batch] = []
    open_batches: dict[tuple[object, ...], tuple[Batch, int]] = {}
    for response in responses:
        # Adasum weighs each tensor by its own angle, so its tensors travel one by one.
        alone = response.kind is not Kind.ALLREDUCE or response.op is ReduceOp.ADASUM
        if alone or response.error or response.all_absent or (response.places and not response.result):
            batches.append([response])
            continue
        key = (
            response.process_set,
            response.dtype,
            response.op,
            response.device,
            response.prescale,
            response.postscale,
            bool(response.result),
        )
        batch, filled = open_batches.get(key, ([], 0))
        size = nbytes(response)
        if not batch or filled + size > threshold_bytes:
            batch, filled = [], 0
            batches.append(batch)
        batch.append(response)
        open_batches[key] = (batch, filled + size)
    return batches


def pack(sources: Iterable[Array | None], lengths: Iterable[int], buffer: Array) -> None:
    """Copy arrays one behind the other into ``buffer``; None stands for zeros."""
    start = 0
    for source, length in zip(sources, lengths, strict=True):
        buffer[start : start + length] = 0 if source is None else source.reshape(-1)
        start += length


def unpack(buffer: Array, targets: Iterable[Array]) -> None:
    """Copy the parts of ``buffer`` back to where they belong."""
    start = 0
    for target in targets:
        target.reshape(-1)[:] = buffer[start : start + target.size]
        start += target.size
