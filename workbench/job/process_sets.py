"""Process sets: collectives among some of the ranks, several sets at once.

::

    even = hvd.add_process_set([0, 2])          # every rank calls it, members or not
    if even.included():
        hvd.allreduce(x, process_set=even)
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from typing import Any

from workbench.core.handle import Handle
from workbench.core.messages import Kind, Request
from workbench.core.pending import Entry
from workbench.job.context import HOLDER
from workbench.transport.select import Bootstrap

NOT_REGISTERED = "{} is not registered. Call add_process_set() on every rank first."


class ProcessSet:
    """Some of the ranks. The object holds only their numbers; the job knows which sets exist.

    Args:
        ranks_or_comm: global ranks, or an mpi4py communicator whose members are meant.

    Attributes:
        mpi_comm: the communicator, if it was given as one; else None.

    Raises:
        ValueError: it is neither.

    Example:
        >>> ProcessSet([2, 0])
        ProcessSet(process_set_id=None, ranks=[0, 2], mpi_comm=None)
    """

    mpi_comm: Any = None

    def __init__(self, ranks_or_comm: Iterable[int] | Any) -> None:
        self._ranks: tuple[int, ...] | None = None
        if hasattr(ranks_or_comm, "Get_rank"):
            self.mpi_comm = ranks_or_comm
            return
        try:
            self._ranks = tuple(sorted({operator.index(rank) for rank in ranks_or_comm}))
        except TypeError:
            raise ValueError(
                f"A process set is made from ranks, or from an MPI communicator, not from {ranks_or_comm!r}."
            ) from None

    @property
    def process_set_id(self) -> int | None:
        """Its number in the running job; None if it is not registered there, by init() or :func:`add_process_set`."""
        context = HOLDER.find()
        sets = list(context.sets.members.items()) if context is not None else []
        return next((set_id for set_id, members in sets if members == self._ranks), None)

    @process_set_id.setter
    def process_set_id(self, value: int | None) -> None:
        raise ValueError(
            "The job chooses the number of a process set: pass this set to init() or to add_process_set()."
        )

    @property
    def ranks(self) -> list[int] | None:
        """The members' global ranks, sorted; None for a communicator whose set was never registered."""
        return None if self._ranks is None else list(self._ranks)

    def included(self) -> bool | None:
        """Does this rank belong to it? None if the set is not registered."""
        return None if self.process_set_id is None else HOLDER.get().world.rank in (self.ranks or [])

    def size(self) -> int | None:
        """How many ranks belong to it, asked on any rank; None if the set is not registered."""
        return None if self.included() is None else len(self.ranks or [])

    def rank(self) -> int | None:
        """This rank's number within the set; None if the set is not registered or this rank is not in it."""
        return (self.ranks or []).index(HOLDER.get().world.rank) if self.included() else None

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"


class _Everybody(ProcessSet):
    """All ranks of whatever job is running."""

    @property  # type: ignore[misc]  # nobody sets it
    def process_set_id(self) -> int:
        return 0

    @property
    def ranks(self) -> list[int] | None:
        context = HOLDER.find()
        return None if context is None else list(range(context.world.size))


global_process_set: ProcessSet = _Everybody([])
"""All ranks; always registered, as number 0."""


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Register a set; a collective of ALL ranks, whether they belong to it or not.

    Raises:
        ValueError: a set with these ranks is registered already, or there are no such ranks.
        MismatchError: the ranks gave different sets.
    """
    new = process_set if isinstance(process_set, ProcessSet) else ProcessSet(process_set)
    context = HOLDER.get()
    _resolve(new, context.bootstrap)
    if new.process_set_id is not None:
        raise ValueError(f"Attempted to add a duplicate process set: {new}")
    ranks = tuple(new.ranks or ())
    if wrong := _what_is_wrong(ranks, context.world.size):
        raise ValueError(wrong)
    _agree(Kind.ADD_SET, ranks)
    return new


def add_by_members(ranks: Sequence[int]) -> ProcessSet:
    """Register a set as its members alone do, or find the one that is there already.

    Raises:
        ValueError: there are no such ranks.
    """
    new = ProcessSet(ranks)
    if len(new.ranks or ()) == HOLDER.get().world.size:
        return global_process_set
    if wrong := _what_is_wrong(tuple(new.ranks or ()), HOLDER.get().world.size):
        raise ValueError(wrong)
    if new.process_set_id is None:
        _agree(Kind.ADD_SET, tuple(new.ranks or ()), among=tuple(new.ranks or ()))
    return new


def check_registered(process_set: ProcessSet) -> None:
    """Raise a ValueError if the set is not registered."""
    if process_set.process_set_id is None:
        raise ValueError(NOT_REGISTERED.format(process_set))


def is_alone(process_set: ProcessSet) -> bool:
    """Has this rank nobody in the set to reduce with? A set that is not registered is refused."""
    check_registered(process_set)
    return not process_set.included() or process_set.size() == 1


def collect(given: Iterable[ProcessSet | Iterable[int]], bootstrap: Bootstrap) -> list[tuple[int, ...]]:
    """The sets that the ranks gave to ``init()``, in one order for all. Every rank calls it, also with none.

    Ranks may give different ones, as each does with the communicator that a ``Split`` left it in. They are ordered by
    their place in the ranks' lists, and those at one place by the first rank that gave them.

    Raises:
        ValueError: on all ranks, if one of them gave a set twice, or one of unknown ranks.
    """
    sets = [each if isinstance(each, ProcessSet) else ProcessSet(each) for each in given]
    lists = [
        [ranks if ranks is None else tuple(ranks) for ranks in theirs]
        for theirs in bootstrap.exchange([_resolve(each, bootstrap) for each in sets])
    ]
    everybody = tuple(range(bootstrap.size))
    for rank, theirs in enumerate(lists):
        for i, ranks in enumerate(theirs):
            wrong = ranks is not None and _what_is_wrong(ranks, bootstrap.size)
            if not wrong and ranks is not None and (ranks == everybody or ranks in theirs[:i]):
                wrong = "It is a duplicate of " + ("another entry." if ranks in theirs[:i] else "global_process_set.")
            if wrong:
                raise ValueError(f"init(): process set number {i} of rank {rank}, with the ranks {ranks}: {wrong}")
    return list(dict.fromkeys(tuple(ranks) for place in zip_longest(*lists) for ranks in place if ranks))


class AbsentSets(list[ProcessSet]):
    """Process sets for which this epoch of an elastic job has not the ranks."""


def registered() -> list[ProcessSet]:
    """The sets of the running job but that of all ranks, and those that wait for more ranks; none if no job runs."""
    context = HOLDER.find()
    if context is None:
        return []
    return [ProcessSet(ranks) for set_id, ranks in context.sets.members.items() if set_id] + context.part(AbsentSets)


def register(sets: Sequence[tuple[int, ...]]) -> None:
    """Register what :func:`collect` found; a collective of all ranks."""
    for ranks in sets:
        _agree(Kind.ADD_SET, ranks)


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forget a set; a collective of ALL ranks. False for the global set and for one that is not registered."""
    set_id = process_set.process_set_id
    if not set_id:
        return False
    _agree(Kind.REMOVE_SET, tuple(process_set.ranks or ()), set_id)
    return True


def _agree(kind: Kind, ranks: tuple[int, ...], set_id: int = -1, among: tuple[int, ...] = ()) -> None:
    name = f"{kind.value}.{','.join(map(str, ranks))}"
    handle = Handle(name)
    HOLDER.get().engine.submit([Entry(Request(name, kind, splits=ranks, root=set_id, ranks=among), None, None, handle)])
    handle.wait()


def _resolve(one: ProcessSet, bootstrap: Bootstrap) -> list[int] | None:
    """The ranks of a set; None for a null communicator, which a rank has that is outside of what a Split made."""
    if one.mpi_comm is not None:
        if bootstrap.comm is None:
            raise ValueError("A process set was given as an MPI communicator, but MPI does not connect these ranks.")
        # Only its members can look into a communicator.
        one._ranks = tuple(sorted(_ranks_of(one.mpi_comm, bootstrap.comm))) if one.mpi_comm else None
    return one.ranks


def _ranks_of(comm: Any, everybody: Any) -> list[int]:
    """The members of a communicator, by their numbers in that of all ranks."""
    return list(comm.Get_group().Translate_ranks(range(comm.Get_size()), everybody.Get_group()))


def _what_is_wrong(ranks: Sequence[int], size: int) -> str:
    if ranks and all(0 <= rank < size for rank in ranks):
        return ""
    return f"A process set needs ranks between 0 and {size - 1}, at least one; not {list(ranks)}."
