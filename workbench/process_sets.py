"""Process sets: collectives among some of the ranks, several sets at once.

::

    even = hvd.add_process_set([0, 2])          # every rank calls it, members or not
    if even.included():
        hvd.allreduce(x, process_set=even)
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from workbench.context import HOLDER
from workbench.runtime.handle import Handle
from workbench.runtime.messages import Kind, Request
from workbench.runtime.pending import Entry


class ProcessSet:
    """Some of the ranks. It holds no more than their numbers; which sets there are is known to the job.

    Args:
        ranks: global ranks, or an mpi4py communicator whose members are meant.

    Attributes:
        mpi_comm: the communicator, if it was given as one.

    Example:
        >>> ProcessSet([2, 0])
        ProcessSet(process_set_id=None, ranks=[0, 2], mpi_comm=None)
    """

    def __init__(self, ranks: Iterable[int] | Any) -> None:
        self.mpi_comm = ranks if hasattr(ranks, "Get_rank") else None
        self._ranks = None if self.mpi_comm is not None else tuple(sorted({int(rank) for rank in ranks}))

    @property
    def process_set_id(self) -> int | None:
        """Its number in the running job; None if it is not registered there, by init() or :func:`add_process_set`."""
        context = HOLDER.find()
        sets = list(context.engine.sets.members.items()) if context is not None else []
        return next((set_id for set_id, members in sets if members == self._ranks), None)

    @property
    def ranks(self) -> list[int] | None:
        """The members' global ranks, sorted; None for a communicator whose set was never registered."""
        return None if self._ranks is None else list(self._ranks)

    def included(self) -> bool | None:
        """Does this rank belong to it? None if the set is not registered."""
        return None if self.process_set_id is None else HOLDER.get().world.rank in (self.ranks or [])

    def size(self) -> int | None:
        """How many ranks belong to it; None if the set is not registered or this rank is not in it."""
        return len(self.ranks or []) if self.included() else None

    def rank(self) -> int | None:
        """This rank's number within the set; None if the set is not registered or this rank is not in it."""
        return (self.ranks or []).index(HOLDER.get().world.rank) if self.included() else None

    def __repr__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks}, mpi_comm={self.mpi_comm})"


class _Everybody(ProcessSet):
    """All ranks of whatever job is running."""

    @property
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
    if new.mpi_comm is not None:
        new._ranks = tuple(sorted(_members(new.mpi_comm)))
    if new.process_set_id is not None:
        raise ValueError(f"Attempted to add a duplicate process set: {new}")
    ranks = tuple(new.ranks or ())
    if not ranks or not all(0 <= rank < context.world.size for rank in ranks):
        raise ValueError(
            f"A process set needs ranks between 0 and {context.world.size - 1}, at least one; not {list(ranks)}."
        )
    _agree(Kind.ADD_SET, ranks)
    return new


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forget a set; a collective of ALL ranks. False for the global set and for one that is not registered."""
    set_id = process_set.process_set_id
    if not set_id:
        return False
    _agree(Kind.REMOVE_SET, tuple(process_set.ranks or ()), set_id)
    return True


def _agree(kind: Kind, ranks: tuple[int, ...], set_id: int = -1) -> None:
    name = f"{kind.value}.{','.join(map(str, ranks))}"
    handle = Handle(name)
    HOLDER.get().engine.submit([Entry(Request(name, kind, splits=ranks, root=set_id), None, None, handle)])
    handle.wait()


def _members(comm: Any) -> list[int]:
    """Global ranks of a communicator, as its own members see it."""
    from mpi4py import MPI

    return list(comm.Get_group().Translate_ranks(range(comm.Get_size()), MPI.COMM_WORLD.Get_group()))
