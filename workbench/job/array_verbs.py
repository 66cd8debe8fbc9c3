"""The verbs on numpy arrays, and on cupy's where the ranks have a GPU backend.

Each verb has up to four forms: ``allreduce`` returns the result in new memory, ``allreduce_`` puts it into the array
itself, and with ``_async`` both return a handle at once. ``grouped_`` takes several arrays, of which none starts before
all are ready on every rank. ``make verbs`` prints which form each framework has.

What all share: :mod:`workbench.job.api`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from workbench.core.handle import GroupHandle, Handle
from workbench.core.messages import Kind, ReduceOp
from workbench.core.pending import Entry
from workbench.core.verbs import verb
from workbench.errors import UnsupportedTensorError
from workbench.job.arrays import given, on_gpu
from workbench.job.entries import entry, submit, submit_group
from workbench.job.process_sets import ProcessSet, global_process_set

Array = NDArray[Any]
_AVERAGE = ReduceOp.AVERAGE


def allreduce(
    array: ArrayLike,
    name: str | None = None,
    op: ReduceOp = _AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """Reduce over all ranks; every rank gets the result in new memory.

    Args:
        array: the same shape and dtype on every rank.
        name, process_set: see the module.
        op: Average (default), Sum, Min, Max, Product or Adasum.
        prescale_factor, postscale_factor: multiply before and after the reduction.

    Example:
        >>> from workbench.job.api import rank, run_threads
        >>> run_threads(2, lambda: allreduce(np.array([rank(), 1.0])).tolist())
        [[0.5, 1.0], [0.5, 1.0]]
    """
    fields = _reduction(op, prescale_factor, postscale_factor, process_set)
    return _begin(Kind.ALLREDUCE, [array], name, fields, at_once=True)[0].wait()  # type: ignore[no-any-return]


def allreduce_(
    array: Array,
    name: str | None = None,
    op: ReduceOp = _AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Array:
    """As :func:`allreduce`, in place; the array itself is returned.

    Raises:
        UnsupportedTensorError: nothing can be written into the array, or it is not contiguous.
    """
    fields = _reduction(op, prescale_factor, postscale_factor, process_set)
    return _begin(Kind.ALLREDUCE, [array], name, fields, True, True)[0].wait()  # type: ignore[no-any-return]


def allreduce_async(
    array: ArrayLike,
    name: str | None = None,
    op: ReduceOp = _AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """As :func:`allreduce`, but returns a handle without waiting. Do not change the array until the handle is done."""
    fields = _reduction(op, prescale_factor, postscale_factor, process_set)
    return _begin(Kind.ALLREDUCE, [array], name, fields)[0]


def allreduce_async_(
    array: Array,
    name: str | None = None,
    op: ReduceOp = _AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """As :func:`allreduce_`, but returns a handle without waiting."""
    fields = _reduction(op, prescale_factor, postscale_factor, process_set)
    return _begin(Kind.ALLREDUCE, [array], name, fields, in_place=True)[0]


def grouped_allreduce(
    arrays: Sequence[ArrayLike],
    name: str | None = None,
    op: ReduceOp = _AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """As :func:`allreduce` for several arrays; none starts before all are ready on every rank.

    Example:
        >>> from workbench.job.api import Sum, rank, run_threads
        >>> run_threads(2, lambda: [float(each) for each in grouped_allreduce([rank(), 2.0 * rank()], op=Sum)])
        [[1.0, 2.0], [1.0, 2.0]]
    """
    fields = _reduction(op, prescale_factor, postscale_factor, process_set)
    return GroupHandle(_begin(Kind.ALLREDUCE, arrays, name, fields, at_once=True)).wait()


def grouped_allreduce_(
    arrays: Sequence[Array],
    name: str | None = None,
    op: ReduceOp = _AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[Array]:
    """As :func:`grouped_allreduce`, in place, see :func:`allreduce_`."""
    fields = _reduction(op, prescale_factor, postscale_factor, process_set)
    return GroupHandle(_begin(Kind.ALLREDUCE, arrays, name, fields, True, True)).wait()


def grouped_allreduce_async(
    arrays: Sequence[ArrayLike],
    name: str | None = None,
    op: ReduceOp = _AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> GroupHandle:
    """As :func:`grouped_allreduce`, but returns one handle of all without waiting."""
    fields = _reduction(op, prescale_factor, postscale_factor, process_set)
    return GroupHandle(_begin(Kind.ALLREDUCE, arrays, name, fields))


def grouped_allreduce_async_(
    arrays: Sequence[Array],
    name: str | None = None,
    op: ReduceOp = _AVERAGE,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> GroupHandle:
    """As :func:`grouped_allreduce_`, but returns one handle of all without waiting."""
    fields = _reduction(op, prescale_factor, postscale_factor, process_set)
    return GroupHandle(_begin(Kind.ALLREDUCE, arrays, name, fields, in_place=True))


def allgather(array: ArrayLike, name: str | None = None, process_set: ProcessSet = global_process_set) -> Array:
    """Concatenate the ranks' arrays along the first dimension, which may differ between ranks.

    Example:
        >>> from workbench.job.api import rank, run_threads
        >>> run_threads(2, lambda: allgather(np.full(rank() + 1, rank())).tolist())
        [[0, 1, 1], [0, 1, 1]]
    """
    fields = {"process_set": process_set}
    return _begin(Kind.ALLGATHER, [array], name, fields, at_once=True)[0].wait()  # type: ignore[no-any-return]


def allgather_async(array: ArrayLike, name: str | None = None, process_set: ProcessSet = global_process_set) -> Handle:
    """As :func:`allgather`, but returns a handle without waiting."""
    return _begin(Kind.ALLGATHER, [array], name, {"process_set": process_set})[0]


def grouped_allgather(
    arrays: Sequence[ArrayLike], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[Array]:
    """As :func:`allgather` for several arrays; none starts before all are ready on every rank."""
    return GroupHandle(_begin(Kind.ALLGATHER, arrays, name, {"process_set": process_set}, at_once=True)).wait()


def grouped_allgather_async(
    arrays: Sequence[ArrayLike], name: str | None = None, process_set: ProcessSet = global_process_set
) -> GroupHandle:
    """As :func:`grouped_allgather`, but returns one handle of all without waiting."""
    return GroupHandle(_begin(Kind.ALLGATHER, arrays, name, {"process_set": process_set}))


def broadcast(
    array: ArrayLike, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """The root's array on every rank, in new memory.

    Example:
        >>> from workbench.job.api import rank, run_threads
        >>> run_threads(2, lambda: broadcast(np.array([rank()]), root_rank=1).tolist())
        [[1], [1]]
    """
    fields = {"root": root_rank, "process_set": process_set}
    return _begin(Kind.BROADCAST, [array], name, fields, at_once=True)[0].wait()  # type: ignore[no-any-return]


def broadcast_(
    array: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Array:
    """As :func:`broadcast`, in place; the array itself is returned. Errors as :func:`allreduce_`."""
    fields = {"root": root_rank, "process_set": process_set}
    return _begin(Kind.BROADCAST, [array], name, fields, True, True)[0].wait()  # type: ignore[no-any-return]


def broadcast_async(
    array: ArrayLike, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """As :func:`broadcast`, but returns a handle without waiting."""
    return _begin(Kind.BROADCAST, [array], name, {"root": root_rank, "process_set": process_set})[0]


def broadcast_async_(
    array: Array, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> Handle:
    """As :func:`broadcast_`, but returns a handle without waiting."""
    return _begin(Kind.BROADCAST, [array], name, {"root": root_rank, "process_set": process_set}, in_place=True)[0]


def alltoall(
    array: ArrayLike,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> tuple[Array, Array]:
    """Send ``splits[i]`` rows to rank i; get (the rows received, how many from each rank).

    Example:
        >>> from workbench.job.api import rank, run_threads
        >>> run_threads(2, lambda: alltoall(np.array([0, 1]) + 10 * rank())[0].tolist())
        [[0, 10], [1, 11]]
    """
    fields = {"splits": splits, "process_set": process_set}
    return _begin(Kind.ALLTOALL, [array], name, fields, at_once=True)[0].wait()  # type: ignore[no-any-return]


def alltoall_async(
    array: ArrayLike,
    splits: Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Handle:
    """As :func:`alltoall`, but returns a handle without waiting."""
    return _begin(Kind.ALLTOALL, [array], name, {"splits": splits, "process_set": process_set})[0]


def reducescatter(
    array: ArrayLike,
    name: str | None = None,
    op: ReduceOp = _AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Array:
    """Reduce and keep this rank's rows; the first ``len(array) % size()`` ranks get one row more.

    Args:
        array: the same shape and dtype on every rank.
        name, process_set: see the module.
        op, prescale_factor, postscale_factor: as :func:`allreduce`; not Adasum.

    Example:
        >>> from workbench.job.api import Sum, run_threads
        >>> run_threads(2, lambda: reducescatter(np.arange(3.0), op=Sum).tolist())
        [[0.0, 2.0], [4.0]]
    """
    fields = _reduction(op, prescale_factor, postscale_factor, process_set)
    return _begin(Kind.REDUCESCATTER, [array], name, fields, at_once=True)[0].wait()  # type: ignore[no-any-return]


def reducescatter_async(
    array: ArrayLike,
    name: str | None = None,
    op: ReduceOp = _AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> Handle:
    """As :func:`reducescatter`, but returns a handle without waiting."""
    fields = _reduction(op, prescale_factor, postscale_factor, process_set)
    return _begin(Kind.REDUCESCATTER, [array], name, fields)[0]


def grouped_reducescatter(
    arrays: Sequence[ArrayLike],
    name: str | None = None,
    op: ReduceOp = _AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[Array]:
    """As :func:`reducescatter` for several arrays; none starts before all are ready on every rank."""
    fields = _reduction(op, prescale_factor, postscale_factor, process_set)
    return GroupHandle(_begin(Kind.REDUCESCATTER, arrays, name, fields, at_once=True)).wait()


def grouped_reducescatter_async(
    arrays: Sequence[ArrayLike],
    name: str | None = None,
    op: ReduceOp = _AVERAGE,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> GroupHandle:
    """As :func:`grouped_reducescatter`, but returns one handle of all without waiting."""
    fields = _reduction(op, prescale_factor, postscale_factor, process_set)
    return GroupHandle(_begin(Kind.REDUCESCATTER, arrays, name, fields))


def poll(handle: Handle | GroupHandle) -> bool:
    """True when :func:`synchronize` would not block."""
    return handle.poll()


def synchronize(handle: Handle | GroupHandle) -> Any:
    """Wait for a handle and return its result; of a group, the list of results."""
    return handle.wait()


def _reduction(op: ReduceOp, prescale: float, postscale: float, process_set: ProcessSet) -> dict[str, Any]:
    return {"op": op, "prescale": prescale, "postscale": postscale, "process_set": process_set}


def _begin(
    kind: Kind,
    arrays: Sequence[ArrayLike],
    name: str | None,
    fields: dict[str, Any],
    in_place: bool = False,
    at_once: bool = False,
) -> list[Handle]:
    """Submit a verb on one array, or on several as a group.

    Args:
        kind: the verb.
        arrays, name: the caller's.
        fields: of :func:`workbench.job.entries.entry`.
        in_place: the results go into the arrays.
        at_once: the caller waits for the result and submits nothing before it has it.
    """
    return submit_group(kind, name, arrays, partial(_entry, kind, in_place), fields, partial(submit, at_once=at_once))


def _entry(kind: Kind, in_place: bool, array: Any, name: str | None, fields: dict[str, Any]) -> Entry:
    if in_place:
        _must_be_writable(array)
    source, about = given(array)
    if in_place:
        return entry(kind, source, name, target=source, convert=lambda _: array, **about, **fields)
    target = None if verb(kind).by_rows else np.empty_like(source)
    return entry(kind, source, name, target=target, **about, **fields)


def _must_be_writable(array: Any) -> None:
    """Refuse what :func:`given` would copy, and what is only to be read: the result would not be in the array."""
    if not isinstance(array, np.ndarray) and not on_gpu(array):
        why = f"a {type(array).__name__}"
    elif not array.flags.c_contiguous:
        why = f"one of strides {array.strides}"
    elif isinstance(array, np.ndarray) and not (array.flags.writeable and array.dtype.isnative):
        why = "one with another byte order" if array.flags.writeable else "one that is read-only"
    else:
        return
    raise UnsupportedTensorError(
        f"In place an array must be writable and contiguous, and have this machine's byte order. This is {why}: make "
        "one with np.array(x, order='C'), or call the verb without `_` at its end, which returns a new array."
    )


__all__ = [
    "allgather",
    "allgather_async",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "synchronize",
]
