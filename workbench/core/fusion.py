"""Tensor fusion: small tensors are sent together in one buffer.

A message costs a latency α and a time per byte; many small messages pay α many times. So responses
that became ready together are packed into a *batch*, reduced at once, and unpacked.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import prod

from workbench.collectives.reduction import wire_dtype
from workbench.core.messages import Kind, ReduceOp, Response

Batch = list[Response]


def nbytes(response: Response) -> int:
    """Bytes of one tensor on the wire."""
    return _nbytes(response.shape, response.dtype)


@lru_cache(4096)  # a step's tensors are those of the step before
def _nbytes(shape: tuple[int, ...], dtype: str) -> int:
    return prod(shape) * wire_dtype(dtype).itemsize


def plan(responses: Iterable[Response], threshold_bytes: int) -> list[Batch]:
    """What travels together: allreduces alike in all but name and shape, up to ``threshold_bytes``.

    A pure function of the responses, which are the same on every rank, so every rank finds the same plan.
    Batches are in the order of their first member. A tensor larger than the threshold travels alone, and so does one
    that has a priority, and one that all ranks can reach where it lies, for which nothing is won by packing.

    Example:
        >>> small = [Response(f"grad{i}", Kind.ALLREDUCE, "float32", (10,)) for i in range(3)]
        >>> [[r.name for r in batch] for batch in plan(small, threshold_bytes=80)]
        [['grad0', 'grad1'], ['grad2']]
    """
    batches: list[Batch] = []
    open_batches: dict[tuple[object, ...], tuple[Batch, int]] = {}
    for response in responses:
        # Adasum weighs each tensor by its own angle; and what may be overtaken is not to wait for another.
        alone = response.kind is not Kind.ALLREDUCE or response.op is ReduceOp.ADASUM or response.priority
        if alone or response.error or response.all_absent or (response.offsets and not response.result):
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


def layout(batch: Batch, align: int = 1) -> tuple[list[slice], int]:
    """The slice of each tensor in the buffer, one after another, and the total length, in elements.

    Args:
        batch: tensors of one dtype.
        align: each tensor begins at a multiple of this number of bytes.

    Example:
        >>> batch = [Response(f"grad{i}", Kind.ALLREDUCE, "float32", (3,)) for i in range(2)]
        >>> layout(batch), layout(batch, align=16)
        (([slice(0, 3, None), slice(3, 6, None)], 6), ([slice(0, 3, None), slice(4, 7, None)], 7))
    """
    step = max(1, align // wire_dtype(batch[0].dtype).itemsize)
    parts, end = [], 0
    for response in batch:
        start = -(-end // step) * step
        end = start + prod(response.shape)
        parts.append(slice(start, end))
    return parts, end
