"""One collective, described once, for every framework: how it is called on host arrays.

A framework's verb turns its tensors into arrays, hands them to a :class:`Call`, and makes tensors of what comes back;
inside a graph it puts the Call into the graph and does the same when the graph runs. So names, groups and the shapes of
results are made here, once for all frameworks.

The rules of the derivatives are in :mod:`workbench.training.derivatives`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from workbench.core.backend.base import Array
from workbench.core.backend.memory import RESULTS
from workbench.core.handle import Handle
from workbench.core.messages import Kind, ReduceOp
from workbench.core.pending import Entry
from workbench.core.verbs import Verb, verb
from workbench.errors import UnsupportedTensorError
from workbench.job.arrays import given
from workbench.job.entries import MakeEntry, entry, submit, submit_group, submit_when_free
from workbench.job.process_sets import ProcessSet, global_process_set

Shape = tuple[int | None, ...]


@dataclass(slots=True)  # nobody changes one; to freeze it takes 1.5 µs of each small collective
class Call:
    """A collective, ready to be called with arrays: one, or several as a group.

    Args:
        kind: the verb.
        name: the same on every rank, or None for a numbered one.
        op, prescale, postscale, root, splits: as the verb has them.
        process_set: who takes part.
        about: fields that say whose tensors they are, see :class:`workbench.job.requests.OrderOfUse`.

    Example:
        >>> import numpy as np
        >>> from workbench.job.api import Sum, run_threads
        >>> def both():
        ...     call = Call(Kind.ALLREDUCE, op=Sum)
        ...     return call([np.array([1.0, 2.0])])[0].tolist()
        >>> run_threads(2, both)
        [[2.0, 4.0], [2.0, 4.0]]
    """

    kind: Kind
    name: str | None = None
    op: ReduceOp | None = None
    prescale: float = 1.0
    postscale: float = 1.0
    root: int | None = None
    splits: Sequence[int] | None = None
    process_set: ProcessSet = field(default=global_process_set)
    about: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, arrays: Sequence[Any]) -> list[Array]:
        """The results in new memory, one per array; for alltoall two: the rows, and how many came from each rank."""
        results = [handle.wait() for handle in self.begin(arrays, self.entry, at_once=True)]
        return list(results[0]) if results and self.verb.splits else results

    @property
    def verb(self) -> Verb:
        return verb(self.kind)

    def begin(self, tensors: Sequence[Any], entry: MakeEntry, at_once: bool = False) -> list[Handle]:
        """Submit tensors as one group; a single one needs no group.

        Args:
            tensors: of a framework.
            entry: makes an entry of a tensor, its name, and further fields of the request.
            at_once: the caller waits for the results and submits nothing before it has them.
        """
        fields: dict[str, Any] = {"process_set": self.process_set, **self.about}
        if self.op is not None:
            fields |= {"op": self.op, "prescale": self.prescale, "postscale": self.postscale}
        if self.root is not None:
            fields |= {"root": self.root}
        if self.verb.splits:
            fields |= {"splits": self.splits}
        send = partial(submit_when_free if self.about else submit, at_once=at_once)
        return submit_group(self.kind, self.name, tensors, entry, fields, send)

    def entry(self, array: Any, name: str | None, fields: dict[str, Any]) -> Entry:
        """Of an array whose result goes into new memory; see :meth:`begin`."""
        array, about = given(array)
        target = None if self.verb.by_rows else RESULTS.empty_like(array)
        return entry(self.kind, array, name, target=target, **about, **fields)

    def shapes(self, shapes: Sequence[Shape]) -> list[Shape]:
        """Shapes of the results, with None for what depends on the other ranks.

        Raises:
            UnsupportedTensorError: one has no rows, and they are what the verb is about.
        """
        members = self.process_set.size() or 1
        if not self.verb.moves:
            raise NotImplementedError(f"{self.kind.value} moves no data: its result has no shape.")
        if not self.verb.by_rows:
            return list(shapes)
        if () in shapes:
            raise UnsupportedTensorError(f"{self.kind.value} needs at least one dimension. Give it shape (1,).")
        if self.verb.splits:
            return [(None, *shapes[0][1:]), (members,)]
        if self.verb.ragged:
            return [(None, *shape[1:]) for shape in shapes]
        return [(_share(shape[0], members, self.process_set.rank() or 0), *shape[1:]) for shape in shapes]


def choose_op(op: ReduceOp | None, average: bool | None) -> ReduceOp:
    """``op`` and the older ``average`` in one.

    Raises:
        ValueError: both were given.
    """
    if op is not None and average is not None:
        raise ValueError("The op parameter supersedes average. Please provide only one of them.")
    if op is not None:
        return op
    return ReduceOp.SUM if average is False else ReduceOp.AVERAGE


def rows_of(splits: Sequence[int] | None) -> tuple[int, ...] | None:
    """The splits of an alltoall as numbers."""
    return None if splits is None else tuple(int(each) for each in splits)


def _share(rows: int | None, members: int, rank: int) -> int | None:
    """How many of so many rows a rank keeps."""
    return None if rows is None else rows // members + (rank < rows % members)
