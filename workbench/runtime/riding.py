"""The short way for small tensors: their values ride on the announcement, and the result on the response.

So a lone small tensor costs one round to rank 0, and no second one in the data plane. Rank 0 does the reduction, in the
order of the ranks; all get its bits. What a rank does not announce with its values takes the long way for all.
"""

from __future__ import annotations

import numpy as np

from workbench.collectives.reduction import Reduction, fold, wire_dtype
from workbench.runtime.messages import Kind, ReduceOp, Request, Response
from workbench.runtime.pending import Array, Entry

_MOST_BYTES = 64 << 10  # of one message; rank 0 sends all of them to every rank


def values_of(entries: list[Entry], rank: int, limit_bytes: int) -> dict[int, bytes]:
    """The values that ride, by the index of their entry.

    Args:
        limit_bytes: of one tensor.
    """
    values: dict[int, bytes] = {}
    left = _MOST_BYTES
    for i, entry in enumerate(entries):
        source, request = entry.source, entry.request
        if source is None or not 0 < source.nbytes <= min(limit_bytes, left) or not _rides(request, rank):
            continue
        values[i] = source.tobytes()
        left -= source.nbytes
    return values


def _rides(request: Request, rank: int) -> bool:
    if request.device != "cpu":
        return False  # the CPU would wait for the GPU
    if request.kind is Kind.ALLREDUCE:
        return request.op is not ReduceOp.ADASUM
    return request.kind is Kind.ALLGATHER or (request.kind is Kind.BROADCAST and request.root == rank)


def result_of(response: Response, requests: dict[int, Request], values: dict[int, bytes], size: int) -> bytes:
    """The result of one tensor, or nothing if it has to take the long way.

    Args:
        response: what the ranks agreed on.
        requests: of the ranks that have announced it.
        values: of those ranks whose values came with it.
        size: of the process set; ranks that have joined contribute zeros.
    """
    if response.error or response.all_absent or not values:
        return b""
    if response.kind is Kind.BROADCAST:
        return values.get(response.root, b"")
    ranks = sorted(requests)
    if any(rank not in values and not requests[rank].absent for rank in ranks):
        return b""
    if response.kind is Kind.ALLGATHER:
        return b"".join(values[rank] for rank in ranks) if len(ranks) == size else b""
    dtype = wire_dtype(response.dtype)
    length = len(next(iter(values.values())))
    arrays: list[Array] = [np.frombuffer(values.get(rank, bytes(length)), dtype) for rank in ranks]
    if len({len(array) for array in arrays}) > 1:
        return b""
    divisor = size if response.op is ReduceOp.AVERAGE else 1
    out = np.empty_like(arrays[0])
    fold(arrays, Reduction(response.op.value, response.dtype, response.prescale, response.postscale, divisor), out)
    return out.tobytes()
