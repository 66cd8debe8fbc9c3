"""Checks of a call on this rank, before anything is sent; a call that passes becomes a named Request."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from workbench.context import HOLDER, Context
from workbench.core.messages import Kind, ReduceOp, Request
from workbench.core.verbs import verb
from workbench.errors import UnsupportedTensorError
from workbench.process_sets import NOT_REGISTERED, ProcessSet, global_process_set

_LONGEST_NAME = 4096
_INTEGERS = ("uint8", "int8", "int16", "uint16", "int32", "int64")
DTYPES = frozenset(("bool", *_INTEGERS, "float16", "bfloat16", "float32", "float64"))
"""Names of the dtypes that can be sent."""


def checked(
    kind: Kind,
    name: str | None,
    dtype: str,
    shape: tuple[int, ...],
    splits: Sequence[int] | None,
    process_set: ProcessSet,
    context: Context,
    fields: dict[str, Any],
) -> Request:
    """What the coordinator is told of a tensor.

    Raises:
        UnsupportedTensorError: dtype or shape cannot be sent.
        ValueError: an unknown process set or root, splits that do not fit, or a name that is too long.
    """
    set_id = _set_id(process_set, context)
    full_name = f"{kind.value}.{'noname' if name is None else name}"
    if len(full_name) > _LONGEST_NAME:
        raise ValueError(
            f"A name of {len(full_name)} characters is too long; {_LONGEST_NAME} are allowed: {full_name[:50]}…"
        )
    ranks = context.sets.members[set_id]
    _check(kind, full_name, dtype, shape, ranks, fields)
    rows = _splits(full_name, shape, splits, len(ranks)) if verb(kind).splits else ()
    if name is None:  # not before the checks: a call that is refused must not use up a number
        full_name = context.auto_name(kind.value, set_id)
    return Request(full_name, kind, dtype, shape, process_set=set_id, splits=rows, **fields)


def _set_id(process_set: ProcessSet, context: Context) -> int:
    set_id = process_set.process_set_id
    if set_id is None or set_id not in context.sets.members:
        raise ValueError(NOT_REGISTERED.format(process_set))
    if context.sets.backend(set_id) is None:
        raise ValueError(
            f"Rank {context.world.rank} does not belong to {process_set}. Call the collective on its members only: "
            "if process_set.included(): ..."
        )
    return set_id


def _check(kind: Kind, name: str, dtype: str, shape: tuple[int, ...], ranks: Sequence[int], fields: Any) -> None:
    one = verb(kind)
    if not one.moves:
        return
    if dtype not in DTYPES:
        known = ", ".join(sorted(DTYPES))
        raise UnsupportedTensorError(f"{name!r}: dtype {dtype} cannot be sent. Convert it to one of {known}.")
    if one.by_rows and not shape:
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


def auto_name(kind: Kind, process_set: ProcessSet = global_process_set) -> str:
    """A numbered name, for a group that the caller did not name."""
    return HOLDER.get().auto_name(kind.value, process_set.process_set_id or 0).partition(".")[2]


def name_of_object(kind: str, made_ns: int, process_set: ProcessSet = global_process_set) -> str:
    """A name for the collectives of an object that is used in this job for the first time.

    It counts the objects that came before, and which of them were made before. So where a rank uses two objects in
    another order than the others, the second has another name there, and is not mixed with another object. Objects that
    are not used do not count: on one rank a notebook's cell may have been run more often.

    Args:
        made_ns: when the object was made, by a clock of this process.
    """
    came = HOLDER.get().came.setdefault((kind, process_set.process_set_id or 0), [])
    name = f"{kind} {len(came)}.{sum(other < made_ns for other in came)}"
    came.append(made_ns)
    return name


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


__all__ = ["DTYPES", "auto_name", "checked", "group_name", "name_of_object"]
