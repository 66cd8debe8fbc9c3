"""What a response means for the arrays of this rank: one function per verb, called by the engine.

An entry is None if this rank has no tensor of that name; it then contributes zeros and gets nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import accumulate
from math import prod
from operator import is_
from typing import Any

import numpy as np

from workbench.collectives.reduction import Reduction, wire_dtype
from workbench.collectives.ring import part
from workbench.core.backend.base import Array, Backend
from workbench.core.backend.memory import Memory
from workbench.core.fusion import Batch, layout, nbytes
from workbench.core.messages import Kind, ReduceOp, Response
from workbench.core.pending import Entry
from workbench.core.protocols import Observer
from workbench.core.verbs import verb

_KEPT_BYTES = 64 << 20  # as much as a batch has by default
Entries = list[Entry | None]
Activity = Callable[[str], AbstractContextManager[None]]
"""``with activity("MPI_ALLREDUCE"):`` names what the block does, for the timeline."""


def execute(batch: Batch, entries: Entries, backend: Backend, observer: Observer) -> list[Any]:
    """Move the bytes of a batch and return each entry's result.

    Args:
        batch: responses that travel together; more than one only for allreduce.
        entries: this rank's entries, in the order of the batch.
        backend: connects the ranks of the batch's process set.
        observer: is told what is being done.
    """
    first = batch[0]
    if first.all_absent or first.kind is Kind.BARRIER:
        return [None] * len(batch)
    if not verb(first.kind).moves:
        return [first.root]
    if first.result:
        rank, size = backend.rank, backend.size
        return [eager(response, entry, rank, size) for response, entry in zip(batch, entries, strict=True)]
    activity = partial(observer.activity, batch)
    arrays = [array for entry in entries if entry for array in (entry.source, entry.target)]
    with backend.memory.using([entry and entry.arrival for entry in entries], arrays):
        if len(batch) > 1:
            return _fused(batch, entries, backend, activity)
        return [STEPS[first.kind](first, entries[0], backend, activity)]


def eager(response: Response, entry: Entry | None, rank: int, size: int) -> Any:
    """The result came with the response: of an alltoall what all have sent, of a reducescatter the whole tensor."""
    found, one = np.frombuffer(response.result, wire_dtype(response.dtype)), verb(response.kind)
    if one.splits:
        theirs, ends = response.rows[rank::size], list(accumulate(response.rows))[rank::size]
        rows = found.reshape(-1, *response.shape[1:])
        parts = [rows[end - length : end] for end, length in zip(ends, theirs, strict=True)]
        return np.concatenate(parts, out=_of_rows(entry, sum(theirs))), _counts(theirs)
    found = found.reshape(-1, *response.shape[1:]) if one.ragged else found.reshape(response.shape)
    target = place = entry.target if entry else None
    if one.reduces and one.by_rows:
        found = part(found, response.rows, rank)
        if entry is not None and target is not None and target is entry.source:
            place = part(target.reshape(response.shape), response.rows, rank)
    if place is None:
        return found.copy()
    place[...] = found
    return target


def _of_rows(entry: Entry | None, rows: int) -> Array | None:
    """The target, if it has so many: what the others send, its caller may not know."""
    target = entry.target if entry else None
    return target if target is not None and len(target) == rows else None


def _counts(theirs: Sequence[int]) -> Array:
    """How many rows came from each rank, as Horovod's dtype where they fit."""
    return np.array(theirs, np.int64 if max(theirs) >> 31 else np.int32)


def _fused(batch: Batch, entries: Entries, backend: Backend, activity: Activity) -> list[Array]:
    """Several allreduces: in one buffer, or each where it lies."""
    targets = [_target(response, entry, backend) for response, entry in zip(batch, entries, strict=True)]
    reduction = reduction_of(batch[0], backend.size)
    if backend.batches and backend.batches.takes_batch(len(batch), sum(map(nbytes, batch))):
        given = [_source(entry, target) for entry, target in zip(entries, targets, strict=True)]
        if any(map(is_, given, targets)):
            for source, target in zip(given, targets, strict=True):
                if source is not target:  # else it could be read after another entry has reduced it in place
                    target[...] = source
            given = targets
        with activity(f"{backend.name}_ALLREDUCE"):
            values = [each.reshape(-1) for each in given]
            backend.batches.allreduce_batch([target.reshape(-1) for target in targets], reduction, values)
        return targets
    sources = [None if entry is None or entry.source is None else entry.source.reshape(-1) for entry in entries]
    with activity("INIT_FUSION_BUFFER"):
        dtype = wire_dtype(batch[0].dtype)
        parts, length = layout(batch, backend.memory.align)
        flat = backend.shared.buffer(length * dtype.itemsize).view(dtype)
    pieces = [flat[part] for part in parts]
    with activity("MEMCPY_IN_FUSION_BUFFER"):  # side by side; None stands for zeros
        backend.memory.copy(list(zip(sources, pieces, strict=True)))
    with activity(f"{backend.name}_ALLREDUCE"):
        backend.collectives.allreduce(flat, reduction)
    with activity("MEMCPY_OUT_FUSION_BUFFER"):
        backend.memory.copy([(piece, each.reshape(-1)) for piece, each in zip(pieces, targets, strict=True)])
    return targets


def reduction_of(response: Response, size: int) -> Reduction:
    """What so many ranks do to the tensor."""
    divisor = size if response.op is ReduceOp.AVERAGE else 1
    return Reduction(response.op.value, response.dtype, response.prescale, response.postscale, divisor)


def _allreduce(response: Response, entry: Entry | None, backend: Backend, activity: Activity) -> Array:
    target = _target(response, entry, backend)
    source = _source(entry, target)
    with activity(f"{backend.name}_ALLREDUCE"):
        reduction, given = reduction_of(response, backend.size), None if source is target else source.reshape(-1)
        backend.collectives.allreduce(target.reshape(-1), reduction, response.offsets, given)
    return target


def _source(entry: Entry | None, target: Array) -> Array:
    """This rank's values: the caller's array; or the target, filled with zeros, where there is no tensor."""
    source = entry.source if entry else None
    if source is None:
        target[...] = 0
        return target
    return source


def _allgather(response: Response, entry: Entry | None, backend: Backend, activity: Activity) -> Array:
    width = prod(response.shape[1:])
    lengths = [rows * width for rows in response.rows]
    if entry is not None and entry.target is not None:
        out = entry.target
    else:
        with activity("ALLOCATE_OUTPUT"):
            out = _new((sum(response.rows), *response.shape[1:]), response, entry, backend)
    if entry is not None and entry.source is not None:
        part(out.reshape(-1), lengths, backend.rank)[...] = entry.source.reshape(-1)
    with activity(f"{backend.name}_ALLGATHER"):
        backend.collectives.allgather(out.reshape(-1), lengths)
    return out


def _broadcast(response: Response, entry: Entry | None, backend: Backend, activity: Activity) -> Array:
    target = _target(response, entry, backend)
    root = backend.ranks.index(response.root)
    source = entry.source if entry and entry.source is not target and backend.rank == root else None
    with activity(f"{backend.name}_BCAST"):
        backend.collectives.broadcast(target.reshape(-1), root, None if source is None else source.reshape(-1))
    return target


def _alltoall(response: Response, entry: Entry | None, backend: Backend, activity: Activity) -> tuple[Array, Array]:
    width = prod(response.shape[1:])
    rank, size = backend.rank, backend.size
    mine, theirs = response.rows[rank * size : (rank + 1) * size], response.rows[rank::size]  # [sender, receiver]
    with activity("ALLOCATE_OUTPUT"):
        rows = sum(theirs)
        out = _new((rows, *response.shape[1:]), response, entry, backend, _of_rows(entry, rows))
    source = entry.source if entry else None
    if source is None:
        source = _new((sum(mine) * width,), response, entry, backend)
        source[...] = 0
    sent, received = ([rows * width for rows in each] for each in (mine, theirs))
    with activity(f"{backend.name}_ALLTOALL"):
        backend.collectives.alltoall(source.reshape(-1), sent, out.reshape(-1), received)
    return out, _counts(theirs)


def _reducescatter(response: Response, entry: Entry | None, backend: Backend, activity: Activity) -> Array:
    lengths = [rows * prod(response.shape[1:]) for rows in response.rows]
    reduction, name = reduction_of(response, backend.size), f"{backend.name}_REDUCESCATTER"
    source, target = (entry.source, entry.target) if entry else (None, None)
    if source is not None and target is source:  # the caller's array may be overwritten
        with activity(name):
            backend.collectives.reducescatter(source.reshape(-1), lengths, reduction, response.offsets)
        return source
    with activity("ALLOCATE_OUTPUT"):
        mine = _new((response.rows[backend.rank], *response.shape[1:]), response, entry, backend, target)
        if source is None:
            source = _new(response.shape, response, entry, backend)
            source[...] = 0
        flat, out = source.reshape(-1), mine.reshape(-1)
        apart = backend.batches if backend.batches and backend.batches.spares(source.nbytes) else None
        scratch = flat if apart else _scratch(response, entry, backend)
    if apart:
        with activity(name):
            apart.reducescatter_into(out, flat, lengths, reduction)
        return mine
    scratch[...] = flat
    with activity(name):
        backend.collectives.reducescatter(scratch, lengths, reduction)
    out[...] = part(scratch, lengths, backend.rank)
    return mine


def _send(response: Response, entry: Entry | None, backend: Backend, activity: Activity) -> Array | None:
    """A message from the first of two ranks to the second; the others have no part in it."""
    source, dest = (backend.ranks.index(rank) for rank in response.rows)
    if backend.rank not in (source, dest) or entry is None or entry.target is None:
        return None
    assert backend.link
    array = entry.target.reshape(-1)
    with activity(f"{backend.name}_SEND"):
        if backend.rank == source:
            backend.link.sendrecv(array, dest, None, dest)
        else:
            backend.link.sendrecv(None, source, array, source)
    return entry.target


STEPS: dict[Kind, Callable[[Response, Entry | None, Backend, Activity], Any]] = {
    Kind.ALLREDUCE: _allreduce,
    Kind.ALLGATHER: _allgather,
    Kind.BROADCAST: _broadcast,
    Kind.ALLTOALL: _alltoall,
    Kind.REDUCESCATTER: _reducescatter,
    Kind.SEND: _send,
}
"""Every verb that moves data has its steps here."""


def _target(response: Response, entry: Entry | None, backend: Backend) -> Array:
    """Where the result goes: the caller's memory, or new memory."""
    return _new(response.shape, response, entry, backend, entry.target if entry else None)


def _scratch(response: Response, entry: Entry | None, backend: Backend) -> Array:
    """Memory for a copy of the input: that of a batch, which is there and shared, or new memory for a large one."""
    length, dtype = prod(response.shape), wire_dtype(response.dtype)
    if length * dtype.itemsize > _KEPT_BYTES:
        return _new((length,), response, entry, backend)
    return backend.shared.buffer(length * dtype.itemsize).view(dtype)


def _new(
    shape: tuple[int, ...], response: Response, entry: Entry | None, backend: Backend, target: Array | None = None
) -> Array:
    if target is not None:
        return target
    memory: Memory = backend.memory
    return memory.empty(shape, wire_dtype(response.dtype), entry.arrival if entry else None)
