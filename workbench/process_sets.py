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
    """Some of the ranks.

    Args:
        ranks: global ranks, or an mpi4py communicator whose members are meant.

    Attributes:
        process_set_id: None until the set is registered, by ``init(process_sets=...)`` or :func:`add_process_set`.
        ranks: sorted; None for a set that was given as a communicator and is not registered yet.

    Example:
        >>> ProcessSet([2, 0])
        ProcessSet(process_set_id=None, ranks=[0, 2], mpi_comm=None)
    """

    def __init__(self, ranks: Iterable[int] | Any) -> None:
        self.process_set_id: int | None = None
        self.mpi_comm = ranks if hasattr(ranks, "Get_rank") else None
        self._ranks = None if self.mpi_comm is not None else sorted({int(rank) for rank in ranks})

    @property
    def ranks(self) -> list[int] | None:
        """The members' global ranks, sorted."""
        if self.process_set_id == 0:
            context = HOLDER.find()
            return list(range(context.world.size)) if context is not None else None
        return self._ranks

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


def _everybody() -> ProcessSet:
    everybody = ProcessSet([])
    everybody.process_set_id = 0
    return everybody


global_process_set = _everybody()
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
        new._ranks = sorted(_members(new.mpi_comm))
    ranks = tuple(new.ranks or ())
    if new.process_set_id is not None or context.engine.sets.find(ranks) is not None:
        raise ValueError(f"Attempted to add a duplicate process set: {new}")
    if not ranks or not all(0 <= rank < context.world.size for rank in ranks):
        raise ValueError(
            f"A process set needs ranks between 0 and {context.world.size - 1}, at least one; not {list(ranks)}."
        )
    new.process_set_id = _agree(Kind.ADD_SET, ranks)
    return new


def remove_process_set(process_set: ProcessSet) -> bool:
    """Forget a set; a collective of ALL ranks. False for the global set and for one that is not registered."""
    if not process_set.process_set_id:
        return False
    if process_set.process_set_id not in HOLDER.get().engine.sets.members:
        return False
    _agree(Kind.REMOVE_SET, tuple(process_set.ranks or ()), process_set.process_set_id)
    process_set.process_set_id = None
    return True


def _agree(kind: Kind, ranks: tuple[int, ...], set_id: int = -1) -> int:
    name = f"{kind.value}.{','.join(map(str, ranks))}"
    handle = Handle(name)
    HOLDER.get().engine.submit([Entry(Request(name, kind, splits=ranks, root=set_id), None, None, handle)])
    return int(handle.wait())


def _members(comm: Any) -> list[int]:
    """Global ranks of a communicator, as its own members see it."""
    from mpi4py import MPI

    return list(comm.Get_group().Translate_ranks(range(comm.Get_size()), MPI.COMM_WORLD.Get_group()))
