"""From a caller's tensor to an entry, and to the engine. What framework modules stand on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from threading import get_ident
from typing import Any

import numpy as np

from workbench.collectives.reduction import wire_dtype
from workbench.core.backend.base import Array
from workbench.core.handle import Handle
from workbench.core.messages import Kind
from workbench.core.pending import Entry
from workbench.core.verbs import MOVED, verb
from workbench.errors import CollectiveError, DuplicateNameError, UnsupportedTensorError
from workbench.job.context import HOLDER
from workbench.job.process_sets import ProcessSet, global_process_set
from workbench.job.requests import checked, group_name

MakeEntry = Callable[[Any, str | None, dict[str, Any]], Entry]
"""Makes an entry of a tensor, its name, and fields of the request."""

_MOST_REQUESTS = 10_000


class KnownRequests(dict[Any, Any]):
    """Requests that were made before, by what they were made of: steps are alike."""

    def remember(self, known: Any, request: Any) -> None:
        """Have a request, or those of a group, at hand for the next step."""
        if len(self) >= _MOST_REQUESTS:
            self.clear()
        self[known] = request


class Waiters(set[int]):
    """Threads that will wait at once for what they submit."""


def entry(
    kind: Kind,
    source: Array | None,
    name: str | None,
    *,
    dtype: str | None = None,
    shape: tuple[int, ...] | None = None,
    target: Array | None = None,
    convert: Callable[[Any], Any] | None = None,
    splits: Sequence[int] | None = None,
    process_set: ProcessSet = global_process_set,
    caller: Any = None,
    **fields: Any,
) -> Entry:
    """Check one tensor and wrap it for :func:`submit`.

    Args:
        kind: the verb.
        source: C-contiguous array, or None where this rank has nothing to send.
        name: the caller's name, or None for a numbered one; the verb is put before it.
        dtype, shape: of the tensor, where the array's own are not it (bfloat16, an absent gradient).
        target: memory for the result.
        convert: makes of the result array what the caller gets.
        splits: rows for each rank, for alltoall; even by default.
        process_set: who takes part.
        caller: of arrays on a GPU; supplies stream and allocator (:class:`workbench.transport.gpu.device.Caller`).
        fields: further fields of :class:`~workbench.core.messages.Request`.

    Raises:
        UnsupportedTensorError: dtype or shape cannot be sent.
        ValueError: an unknown rank, or splits that do not fit.
    """
    context = HOLDER.get()
    if source is not None:
        if dtype is None:
            dtype, bits = _name_and_bits(source.dtype)
            if bits is not None:
                source, target, back = _as_bits(source, target, bits)
                convert = convert or back
        shape = source.shape if shape is None else shape
    if source is not None and target is source and caller is None and verb(kind).reduces:  # in shared memory
        fields["offset"] = context.sets.everybody.shared.offset(source)
    splits = splits if splits is None else tuple(splits)
    known = (kind, name, dtype, shape, process_set.process_set_id, splits, *fields.items())
    requests = context.part(KnownRequests)
    request = requests.get(known)
    if request is None:
        request = checked(kind, name, dtype or "", shape or (), splits, process_set, context, fields)
        if name is not None:
            requests.remember(known, request)
    return Entry(request, source, target, Handle(request.name), convert, caller=caller)


@lru_cache(64)
def _name_and_bits(dtype: np.dtype[Any]) -> tuple[str, np.dtype[Any] | None]:
    """The dtype's name, which numpy makes anew each time; and for one that ml_dtypes adds, that of its bits."""
    if not dtype.isnative:
        raise UnsupportedTensorError(
            f"The byte order of dtype {dtype.str} is not this machine's. Convert it with astype()."
        )
    bits = wire_dtype(dtype.name) if dtype.name in MOVED else dtype
    return dtype.name, None if bits == dtype else bits


def _as_bits(
    source: Array, target: Array | None, bits: np.dtype[Any]
) -> tuple[Array, Array | None, Callable[[Any], Any]]:
    """An array of a dtype that numpy itself lacks, bfloat16 say, as the bits that the engine takes, and back."""
    own, taken = source.dtype, source.view(bits)

    def back(result: Any) -> Any:
        return (result[0].view(own), *result[1:]) if isinstance(result, tuple) else result.view(own)

    return taken, taken if target is source else None if target is None else target.view(bits), back


def submit(entries: list[Entry], at_once: bool = False) -> list[Handle]:
    """Hand entries to the engine and return their handles; see :meth:`workbench.core.engine.Engine.submit`.

    What makes arrays on a GPU must be queued by now, on the stream that is current on this thread.
    """
    context = HOLDER.get()
    on_gpu = [one for one in entries if one.caller is not None]
    if on_gpu:
        for one, arrival in zip(on_gpu, context.sets.gpu.arrive([one.caller for one in on_gpu]), strict=True):
            one.arrival, one.handle.joins = arrival, arrival.join
    context.engine.submit(entries, at_once or get_ident() in context.part(Waiters))
    return [entry.handle for entry in entries]


def submit_group(
    kind: Kind,
    name: str | None,
    tensors: Sequence[Any],
    make: MakeEntry,
    fields: dict[str, Any],
    submit: Callable[[list[Entry]], list[Handle]] = submit,
) -> list[Handle]:
    """Submit tensors as one group: none starts before all are ready on every rank. A single one needs no group.

    Args:
        kind: the verb.
        name: of the group.
        tensors: of a framework.
        make: makes an entry of a tensor, its name, and fields of the request.
        fields: those of all members, ``process_set`` among them.
        submit: hands the entries to the engine.
    """
    count = len(tensors)
    if count < 2:
        return submit([make(each, name, fields) for each in tensors])
    with group_name(kind, name, fields["process_set"]) as base:
        fields = fields | {"group": f"{kind.value}.{base}.{count}", "group_size": count}
        return submit([make(each, f"{base}_{i}of{count}", fields) for i, each in enumerate(tensors)])


def submit_when_free(entries: list[Entry], at_once: bool = False) -> list[Handle]:
    """As :func:`submit`; a name that is in flight belongs to a step that was broken off, so its end is waited for.

    For gradients, of which nobody submits one twice in a step.
    """
    try:
        return submit(entries, at_once)
    except DuplicateNameError:
        for handle in HOLDER.get().engine.in_flight(entries):
            with suppress(CollectiveError):
                handle.wait()
        return submit(entries, at_once)


def wait_for(begin: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Begin a collective and wait for it: then its announcement is not held back, for nothing can follow it.

    Args:
        begin, args, options: an asynchronous verb, whose handle has ``wait()``, and what it is called with.
    """
    waiters, me = HOLDER.get().part(Waiters), get_ident()
    try:
        waiters.add(me)
        handle = begin(*args, **options)
    finally:
        waiters.discard(me)
    return handle.wait()
