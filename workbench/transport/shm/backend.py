"""Shared memory as a backend: the ranks of one machine, or some of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from workbench.core.backend.base import SLOT_BYTES, Array, Backend, Lifecycle, SharedMemory
from workbench.core.backend.memory import HOST
from workbench.errors import CollectiveError
from workbench.transport.life import Life
from workbench.transport.shm.collectives import ShmCollectives
from workbench.transport.shm.node import HEADER_BYTES, Node
from workbench.transport.shm.staged import STAGE_BYTES

_STAGE = HEADER_BYTES + SLOT_BYTES
_FUSION = _STAGE + STAGE_BYTES


def reserved_bytes(fusion_bytes: int) -> int:
    """Bytes after the header of every arena: slot, stage, and fusion buffer, at the same offsets everywhere."""
    return SLOT_BYTES + STAGE_BYTES + fusion_bytes


def fusion_offsets(fusion_bytes: int) -> range:
    """The offsets of the fusion buffer, in the arena of any rank."""
    return range(_FUSION, _FUSION + fusion_bytes)


def shm_backend(flat: Backend, node: Node, fusion_bytes: int, members: Sequence[int] | None = None) -> Backend:
    """The backend of ranks of one machine.

    Args:
        flat: connects the same ranks in another way, and takes what does not gain by shared memory.
        node: the ranks of this machine.
        fusion_bytes: size of the fusion buffer.
        members: those of them that take part, by their number in ``node``, if not all do. They have a stage of their
            own, for a rank in two sets may be slow in one of them; all members call this at the same point.
    """
    stages, close = [_STAGE] * node.size, node.close
    if members is None:
        numbers: Sequence[int] = range(node.size)
    else:
        numbers = members
        # Used again when this set is gone, but not freed: a slow rank may still read the last result there.
        stage = node.spare.pop() if node.spare else node.keep(STAGE_BYTES)
        stages, close = node.exchange(members, stage), lambda: node.spare.append(stage)

    def subset(some: Sequence[int]) -> Backend:
        theirs = [numbers[flat.ranks.index(rank)] for rank in some]
        return shm_backend(flat.life.subset(some), node, fusion_bytes, theirs)

    collectives = ShmCollectives(flat.collectives, node, numbers, stages, fusion_offsets(fusion_bytes))
    shared = ArenaMemory(node, fusion_bytes, flat.shared)
    life = shm_life(node, flat.life, subset, close)
    slots = node.slots if members is None else ()
    return Backend("SHM", flat.rank, flat.ranks, collectives, shared, life, HOST, flat.link, collectives, slots=slots)


class ArenaMemory:
    """See :class:`workbench.core.backend.base.SharedMemory`.

    Args:
        node: see :func:`shm_backend`.
        fusion_bytes: size of the fusion buffer.
        private: for a batch that is larger, and when the job has ended.
    """

    def __init__(self, node: Node, fusion_bytes: int, private: SharedMemory) -> None:
        self._node, self._fusion_bytes, self._private = node, fusion_bytes, private
        own = node.own
        self.addresses = (own.address, own.address + own.size) if own else (0, 0)

    def allocate(self, nbytes: int) -> Array:
        """A piece of the arena; ordinary memory when the job has ended."""
        own = self._node.own
        return own.allocate(nbytes) if own else self._private.allocate(nbytes)

    def buffer(self, nbytes: int) -> Array:
        """It begins at one offset in every rank's arena."""
        if nbytes > self._fusion_bytes:
            return self._private.buffer(nbytes)
        return self._node.bytes(self._node.rank, _FUSION, nbytes)

    def lend(self, address: int, nbytes: int, file: int, lives: Callable[[], bool]) -> None:
        if own := self._node.own:
            own.lend(address, nbytes, file, lives)

    def offset(self, array: Array) -> int:
        return self._node.offset(array)


def shm_life(
    node: Node, flat: Lifecycle, subset: Callable[[Sequence[int]], Backend], close: Callable[[], None]
) -> Lifecycle:
    """Of shared memory, and of what connects the ranks besides.

    Args:
        node: the ranks of this machine.
        flat: the other's.
        subset: makes the backend of a process set.
        close: lets go of the memory; it ends with the last array over it.
    """

    def tick(function: Callable[[], None]) -> None:
        node.tick = function
        flat.tick(function)

    def give_up(why: CollectiveError) -> None:
        node.give_up()
        flat.give_up(why)

    def end(clean: bool) -> None:
        flat.close(clean)
        close()

    return Life(tick, subset, end, give_up)
