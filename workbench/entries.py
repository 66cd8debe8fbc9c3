"""From a caller's tensor to an entry: names, checks, and the way into the engine. What framework modules stand on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any

import numpy as np

from workbench.context import HOLDER, Context
from workbench.errors import UnsupportedTensorError
from workbench.process_sets import ProcessSet, global_process_set
from workbench.runtime.handle import Handle
from workbench.runtime.messages import Kind, ReduceOp, Request
from workbench.runtime.pending import Array, Entry

_LONGEST_NAME = 4096
_IN_PLACE = (Kind.ALLREDUCE, Kind.REDUCESCATTER)
_INTEGERS = ("uint8", "int8", "int16", "uint16", "int32", "int64")
DTYPES = frozenset(("bool", *_INTEGERS, "float16", "bfloat16", "float32", "float64"))
"""Names of the dtypes that can travel."""


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
        caller: whose the arrays are, if they lie on a GPU: a :class:`workbench.backends.gpu.Caller`.
        fields: further fields of :class:`~workbench.runtime.messages.Request`.

    Raises:
        UnsupportedTensorError: dtype or shape cannot travel.
        ValueError: an unknown rank, or splits that do not fit.
    """
    context = HOLDER.get()
    if source is not None:
        if dtype is None:
            dtype = source.dtype.name
            if dtype == "bfloat16":
                source, target, convert = _as_bits(source, target)
        shape = source.shape if shape is None else shape
    if kind in _IN_PLACE and source is not None and target is source and caller is None:
        fields["place"] = context.engine.sets.everybody.place(source)
    known = (kind, name, dtype, shape, process_set.process_set_id, splits is None, *fields.items())
    request = context.requests.get(known)
    if request is None:
        request = _request(kind, name, dtype or "", shape or (), splits, process_set, context, fields)
        if name is not None and splits is None:
            context.remember(known, request)
    one = Entry(request, source, target, Handle(request.name), convert)
    if caller is not None:
        one.arrival = context.engine.sets.gpu.arrive(caller)
        one.handle.joins = one.arrival.join
    return one


def _as_bits(source: Array, target: Array | None) -> tuple[Array, Array | None, Callable[[Any], Any]]:
    """bfloat16, which numpy itself lacks and ml_dtypes adds, as the bits that the engine takes, and back."""
    own, bits = source.dtype, source.view(np.uint16)

    def back(result: Any) -> Any:
        return (result[0].view(own), *result[1:]) if isinstance(result, tuple) else result.view(own)

    return bits, bits if target is source else None if target is None else target.view(np.uint16), back


def _request(
    kind: Kind,
    name: str | None,
    dtype: str,
    shape: tuple[int, ...],
    splits: Sequence[int] | None,
    process_set: ProcessSet,
    context: Context,
    fields: dict[str, Any],
) -> Request:
    set_id = _set_id(process_set, context)
    full_name = f"{kind.value}.{'noname' if name is None else name}"
    if len(full_name) > _LONGEST_NAME:
        raise ValueError(
            f"A name of {len(full_name)} characters is too long; {_LONGEST_NAME} are allowed: {full_name[:50]}…"
        )
    ranks = context.engine.sets.members[set_id]
    _check(kind, full_name, dtype, shape, ranks, fields)
    rows = _splits(full_name, shape, splits, len(ranks)) if kind is Kind.ALLTOALL else ()
    if name is None:  # not before the checks: a call that is refused must not use up a number
        full_name = context.auto_name(kind.value, set_id)
    return Request(full_name, kind, dtype, shape, process_set=set_id, splits=rows, **fields)


def auto_name(kind: Kind, process_set: ProcessSet = global_process_set) -> str:
    """A numbered name, for a group that the caller did not name."""
    return HOLDER.get().auto_name(kind.value, process_set.process_set_id or 0).partition(".")[2]


@contextmanager
def group_name(kind: Kind, name: str | None, process_set: ProcessSet = global_process_set) -> Iterator[str]:
    """The caller's name for a group, or a numbered one, which is given back if the block refuses the group."""
    if name is not None:
        yield name
        return
    try:
        yield auto_name(kind, process_set)
    except BaseException:
        HOLDER.get().give_back_name(kind.value, process_set.process_set_id or 0)
        raise


def submit(entries: list[Entry], at_once: bool = False) -> list[Handle]:
    """Hand entries to the engine and return their handles; see :meth:`workbench.runtime.engine.Engine.submit`."""
    context = HOLDER.get()
    context.engine.submit(entries, at_once or get_ident() in context.waiters)
    return [entry.handle for entry in entries]


def wait_for(begin: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Begin a collective and wait for it: then its announcement is not held back, for nothing can follow it.

    Args:
        begin: an asynchronous verb; its handle has ``wait()``.
        args, options: the verb's.
    """
    waiters, me = HOLDER.get().waiters, get_ident()
    waiters.add(me)
    try:
        handle = begin(*args, **options)
    finally:
        waiters.discard(me)
    return handle.wait()


def _set_id(process_set: ProcessSet, context: Context) -> int:
    set_id = process_set.process_set_id
    if set_id is None or set_id not in context.engine.sets.members:
        raise ValueError(f"{process_set} is not registered. Call add_process_set() on every rank first.")
    if context.engine.sets.backend(set_id) is None:
        raise ValueError(
            f"Rank {context.world.rank} does not belong to {process_set}. Call the collective on its members only: "
            "if process_set.included(): ..."
        )
    return set_id


def _check(kind: Kind, name: str, dtype: str, shape: tuple[int, ...], ranks: Sequence[int], fields: Any) -> None:
    if kind in (Kind.BARRIER, Kind.JOIN):
        return
    if dtype not in DTYPES:
        known = ", ".join(sorted(DTYPES))
        raise UnsupportedTensorError(f"{name!r}: dtype {dtype} cannot travel. Convert it to one of {known}.")
    if not shape and kind in (Kind.ALLGATHER, Kind.ALLTOALL, Kind.REDUCESCATTER):
        raise UnsupportedTensorError(f"{name!r}: {kind.value} needs at least one dimension. Give it shape (1,).")
    op = fields.get("op")
    if dtype == "bool" and op in (ReduceOp.AVERAGE, ReduceOp.ADASUM):
        raise UnsupportedTensorError(
            f"{name!r}: {op.value} of bool is not defined. Use op=Sum (or), Product (and), or floats."
        )
    if op is ReduceOp.ADASUM:
        _check_adasum(kind, name, dtype, len(ranks))
    root = fields.get("root", ranks[0])
    if root not in ranks:
        raise ValueError(f"{name!r}: root rank {root} does not take part. Ranks that do: {', '.join(map(str, ranks))}.")


def _check_adasum(kind: Kind, name: str, dtype: str, n: int) -> None:
    if kind is not Kind.ALLREDUCE or "float" not in dtype:
        raise UnsupportedTensorError(f"{name!r}: Adasum goes with allreduce of floating-point tensors only.")
    if n & (n - 1):
        raise NotImplementedError(f"Running Adasum with non-power of 2 ranks is not supported yet; there are {n}.")


def _splits(name: str, shape: tuple[int, ...], splits: Sequence[int] | None, n: int) -> tuple[int, ...]:
    if splits is None:
        if shape[0] % n:
            raise ValueError(f"{name!r}: {shape[0]} rows cannot be split evenly over {n} ranks. Give splits=.")
        return (shape[0] // n,) * n
    rows = tuple(int(part) for part in splits)
    if len(rows) != n or min(rows) < 0 or sum(rows) != shape[0]:
        raise ValueError(
            f"{name!r}: splits {list(rows)} do not fit {shape[0]} rows and {n} ranks: give {n} numbers, none negative, "
            "that add up to the number of rows."
        )
    return rows
