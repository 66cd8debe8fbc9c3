"""One collective, described once, for every framework: how it is called on host arrays, and what its derivative is.

A framework's verb turns its tensors into arrays, hands them to a :class:`Call`, and makes tensors of what comes back;
inside a graph it puts the Call into the graph and does the same when the graph runs. What is *not* in the frameworks'
folders, because it stands here: names, groups, shapes of results, derivatives.

The derivative of a collective is a collective again. With ``dy`` for what comes from behind::

    allreduce       dx = allreduce(dy), with the same op and factors (Average and Sum only)
    allgather       dx = this rank's rows of the average of dy
    broadcast       dx = the average of dy on the root, 0 elsewhere
    alltoall        dx = alltoall(dy) back to where the rows came from
    reducescatter   dx = allgather(dy), times the number of ranks for Sum

Where averages stand for sums, the loss is understood as the average of the ranks' losses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from workbench import api, arrays
from workbench.api import Average, ReduceOp, Sum
from workbench.context import HOLDER
from workbench.errors import UnsupportedTensorError
from workbench.process_sets import ProcessSet, global_process_set
from workbench.runtime.interrupts import INTERRUPTS
from workbench.runtime.messages import Kind
from workbench.runtime.pending import Array, Entry

Shape = tuple[int | None, ...]
Derivative = Callable[[Sequence[Array], Sequence[int]], list[Array]]


@dataclass(frozen=True)
class Call:
    """A collective, ready to be called with arrays: one, or several as a group.

    Args:
        kind: the verb.
        name: the same on every rank, or None for a numbered one.
        op, prescale, postscale, root, splits: as the verb has them.
        process_set: who takes part.

    Example:
        >>> def both():
        ...     call = Call(Kind.ALLREDUCE, op=Sum)
        ...     return call([np.array([1.0, 2.0])])[0].tolist()
        >>> api.run_threads(2, both)
        [[2.0, 4.0], [2.0, 4.0]]
    """

    kind: Kind
    name: str | None = None
    op: ReduceOp | None = None
    prescale: float = 1.0
    postscale: float = 1.0
    root: int | None = None
    splits: tuple[int, ...] | None = None
    process_set: ProcessSet = field(default=global_process_set)

    def __call__(self, given: Sequence[Array]) -> list[Array]:
        """The results in new memory, one per array; for alltoall two: the rows, and how many came from each rank."""
        return api.wait_for(self._begin, given)  # type: ignore[no-any-return]

    def _begin(self, given: Sequence[Array]) -> _Handles:
        fields: dict[str, Any] = {"process_set": self.process_set}
        if self.op is not None:
            fields |= {"op": self.op, "prescale": self.prescale, "postscale": self.postscale}
        if self.root is not None:
            fields |= {"root": self.root}
        if self.kind is Kind.ALLTOALL:
            fields |= {"splits": self.splits}
        count = len(given)
        if count < 2:
            return _Handles(api.submit([self._entry(each, self.name, fields) for each in given]))
        with api.group_name(self.kind, self.name, self.process_set) as base:
            fields |= {"group": f"{self.kind.value}.{base}.{count}", "group_size": count}
            entries = [self._entry(each, f"{base}_{i}of{count}", fields) for i, each in enumerate(given)]
            return _Handles(api.submit(entries))

    def _entry(self, array: Array, name: str | None, fields: dict[str, Any]) -> Entry:
        array, about = arrays.given(array)
        target = np.empty_like(array) if self.kind in (Kind.ALLREDUCE, Kind.BROADCAST) else None
        return api.entry(self.kind, array, name, target=target, **about, **fields)

    def shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Shapes of the results, with None for what depends on the other ranks.

        Raises:
            UnsupportedTensorError: one has no rows, and they are what the verb is about.
        """
        members = self.process_set.size() or 1
        if self.kind in (Kind.ALLREDUCE, Kind.BROADCAST):
            return list(shapes)
        if () in shapes:
            raise UnsupportedTensorError(f"{self.kind.value} needs at least one dimension. Give it shape (1,).")
        if self.kind is Kind.REDUCESCATTER:
            return [(_share(shape[0], members, self.process_set.rank() or 0), *shape[1:]) for shape in shapes]
        if self.kind is Kind.ALLTOALL:
            return [(None, *shapes[0][1:]), (members,)]
        return [(None, *shape[1:]) for shape in shapes]

    def derivative(self) -> Derivative:
        """A function from arrays dy, and the numbers of rows of the inputs, to arrays dx.

        It is a collective again: all ranks call it.

        Raises:
            NotImplementedError: the op has no derivative here.
        """
        if self.op not in (None, Average, Sum):
            raise NotImplementedError(f"{self.op.value} has no gradient here: use Average or Sum, or stop it before.")
        same = replace(self, name=self._of("grad"))
        average = replace(same, kind=Kind.ALLREDUCE, op=Average, prescale=1.0, postscale=1.0, root=None, splits=None)
        if self.kind is Kind.ALLREDUCE:
            return lambda dy, _: same(dy)
        if self.kind is Kind.BROADCAST:
            return lambda dy, _: [each if api.rank() == self.root else np.zeros_like(each) for each in average(dy)]
        if self.kind is Kind.ALLGATHER:
            return lambda dy, rows: self._own(average(dy), rows)
        if self.kind is Kind.ALLTOALL:
            return lambda dy, rows: self._back(dy[0], rows[0])
        factor = self.prescale * self.postscale * ((self.process_set.size() or 1) if self.op is Sum else 1)
        gather = replace(average, kind=Kind.ALLGATHER, op=None)
        return lambda dy, _: [(each * each.dtype.type(factor)).astype(each.dtype, copy=False) for each in gather(dy)]

    def _own(self, totals: Sequence[Array], mine: Sequence[int]) -> list[Array]:
        """This rank's rows of each gather."""
        rows = api.allgather(np.array([mine], np.int64), self._of("rows"), self.process_set)
        starts = rows[: self.process_set.rank()].sum(0)
        return [total[start : start + count] for total, start, count in zip(totals, starts, mine, strict=True)]

    def _back(self, dy: Array, mine: int) -> list[Array]:
        """The rows that this rank had, from where they are now."""
        members = self.process_set.size() or 1
        sent = np.array(self.splits if self.splits is not None else [mine // members] * members, np.int64)
        received, _ = api.alltoall(sent, name=self._of("rows"), process_set=self.process_set)
        back = replace(self, name=self._of("grad"), splits=tuple(int(each) for each in received))
        return back([dy])[:1]

    def _of(self, what: str) -> str | None:
        """A name for a part of this collective."""
        return None if self.name is None else f"{self.name}.{what}"


class _Handles:
    """Several handles as one; alltoall's result is two arrays."""

    def __init__(self, members: Sequence[Any]) -> None:
        self._members = members

    def wait(self) -> list[Array]:
        results = [handle.wait() for handle in self._members]
        return list(results[0]) if results and isinstance(results[0], tuple) else results


def choose_op(op: ReduceOp | None, average: bool | None) -> ReduceOp:
    """``op`` and the older ``average`` in one.

    Raises:
        ValueError: both were given.
    """
    if op is not None and average is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    if op is not None:
        return op
    return Sum if average is False else Average


def _share(rows: int | None, members: int, rank: int) -> int | None:
    """How many of so many rows a rank keeps."""
    return None if rows is None else rows // members + (rank < rows % members)


@dataclass
class GraphCalls:
    """Between a framework's graphs and the host: functions that its runtime calls, on threads of its own.

    Attributes:
        error: what the last failing one raised. The framework makes another error of it, with this one's text.
    """

    error: BaseException | None = None

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """``function``, for the graph: it runs as this rank, and what it raises is remembered."""
        context = HOLDER.own()
        INTERRUPTS.install()

        def run(*args: Any) -> Any:
            try:
                with HOLDER.as_rank(context), INTERRUPTS.heeded():
                    return function(*args)
            except BaseException as error:
                self.error = error
                raise

        return run

    @contextmanager
    def own_errors(self, *foreign: type[BaseException]) -> Iterator[None]:
        """Within the block, the framework's error is the one that our function raised."""
        self.error = None
        try:
            yield
        except foreign:
            if self.error is None:
                raise
            raise self.error from None


__all__ = ["Call", "Derivative", "GraphCalls", "Shape", "choose_op"]
