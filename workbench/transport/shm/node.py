"""The ranks of one machine: the memory that they share, and how they wait for each other.

Every rank counts, for each other rank, the barriers that it has come to with it, in its own arena, where only it
writes. All ranks execute collectives in one order, so for two ranks the n-th barrier is the same one, whatever others
take part. A waiting rank polls the others' counts for a moment, then sleeps.

A rank that gives up, after a timeout or the end of its job, sets a flag in its arena before its caller gets the error.
Others may have passed the barrier with it, and read in its arrays what the caller has written there since. So they
check the flag at the end of each barrier, and fail as well.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

from workbench.common.fence import Fence
from workbench.core.backend.base import SLOT_BYTES, Array
from workbench.errors import DeadlineError
from workbench.transport.polling import offer_core
from workbench.transport.shm import futex
from workbench.transport.shm.arena import LENT, Arena, OwnArena, open_arena
from workbench.transport.shm.process_memory import works

log = logging.getLogger("workbench")

HEADER_BYTES = 12 << 10  # whole pages, with the table of what is lent
# Offsets in the header. The counts, which others poll, begin on a cache line of their own; the bell, which each barrier
# writes, would else take that line away from them.
_BELL, _GONE, _VALUE, _COUNTS = 64, 68, 72, 128
_MOST_RANKS = (LENT - _COUNTS) // 8
_LOOKS = 50  # before the first sleep, with the core offered to others in between: some 30 µs
_TICK_S = 0.01  # a rank that dies here is noticed so late


class Node:
    """This rank among the ranks of its machine.

    Args:
        arenas: of all ranks, by rank; one's own is an ``OwnArena``.
        rank: this one.
        timeout_s: deadline of one barrier.
        pids: of the ranks' processes, if they can read each other's memory.

    Attributes:
        own: memory of this rank to give out; None when the node is closed.
        spare: offsets in it for the stage of a process set.
        slots: see :class:`workbench.core.backend.base.Backend`.
        tick: called some hundred times a second amid a long wait; it may raise to end it.
    """

    def __init__(self, arenas: Sequence[Arena], rank: int, timeout_s: float, pids: Sequence[int] = ()) -> None:
        self.pids = pids
        own = arenas[rank]
        assert isinstance(own, OwnArena)
        self.own: OwnArena | None = own
        self.rank, self.size, self.timeout_s = rank, len(arenas), timeout_s
        self.tick: Callable[[], None] = lambda: None
        self._arenas, self.spare = list(arenas), list[int]()
        self.slots = [arena.view(HEADER_BYTES, SLOT_BYTES) for arena in arenas]
        self._counts = [arena.view(_COUNTS, 8 * self.size).cast("q") for arena in arenas]
        self._bells = [arena.view(_BELL, 4).cast("I") for arena in arenas]
        self._gone = [arena.view(_GONE, 4).cast("I") for arena in arenas]
        self._values = [arena.view(_VALUE, 8).cast("q") for arena in arenas]
        self._order = Fence()

    def bytes(self, rank: int, offset: int, nbytes: int) -> Array:
        return self._arenas[rank].piece(offset, nbytes)

    def array(self, rank: int, offset: int, like: Array) -> Array:
        """The array of a rank that begins at ``offset``, as long as ``like`` and of its dtype."""
        return self.bytes(rank, offset, like.nbytes).view(like.dtype)

    def offset(self, array: Array) -> int:
        """Where in this rank's arena an array begins; -1 outside of it, and when the node is closed."""
        return self.own.offset(array) if self.own else -1

    def keep(self, nbytes: int) -> int:
        """The offset of bytes that are nobody else's until the end; -1 when the node is closed."""
        return self.own.keep(nbytes) if self.own else -1

    def barrier(self, members: Sequence[int]) -> None:
        """Wait until all members have come. What they wrote before can be read after.

        Raises:
            DeadlineError: not all came in time.
            RuntimeError: one of them has given up.
        """
        # Data, then counts, then bell, then the call that wakes. Who sees the count may read the data. Who looks at
        # the bell before the count does not sleep through this; a tick at most, where stores change their order.
        mine = self._counts[self.rank]
        self._order()
        for rank in members:
            if rank != self.rank:
                mine[rank] += 1  # aligned, and written by this rank alone: others see the old count or the new one
        bell = self._bells[self.rank]
        bell[0] = (bell[0] + 1) & 0x7FFFFFFF
        futex.wake(self._arenas[self.rank].address + _BELL)
        for rank in members:
            if rank != self.rank:
                self._await(rank, mine[rank])
        self._order()
        # After the wait: a rank that gives up amid it has its flag by now, and before it writes into its arrays again.
        if gone := [rank for rank in members if self._gone[rank][0]]:
            raise RuntimeError(f"local rank {gone[0]} has left this collective")

    def allgather(self, members: Sequence[int], value: int) -> list[int]:
        """Every member's number, by member; all of them call it, with one more barrier before the next one."""
        self._values[self.rank][0] = value
        self.barrier(members)
        return [self._values[rank][0] for rank in members]

    def exchange(self, members: Sequence[int], value: int) -> list[int]:
        """As :meth:`allgather`, with the second barrier."""
        values = self.allgather(members, value)
        self.barrier(members)  # all have read: the slot of the header may hold the next value
        return values

    def give_up(self) -> None:
        """This rank takes part in no barrier any more; nobody else's writes reach its arrays from now on."""
        if self.own is None:
            return
        self._gone[self.rank][0] = 1
        self._order()
        # First the flag, or another rank could accept what it reads in pages that this one no longer shares. The header
        # stays shared: the flag is in it.
        try:
            self.own.detach(HEADER_BYTES)
        except OSError as error:
            log.warning("Memory that other ranks may still write to could not be detached from them: %s", error)

    def close(self) -> None:
        """Let go of all memory, one's own too; it ends with the last array over it."""
        self.own = None
        for each in (self._arenas, self._counts, self._bells, self._gone, self._values, self.slots):
            each.clear()

    def _await(self, rank: int, count: int) -> None:
        theirs, bell = self._counts[rank], self._bells[rank]
        for _ in range(_LOOKS):
            if theirs[self.rank] >= count:
                return
            offer_core()
        deadline = time.monotonic() + self.timeout_s
        while True:
            rung = bell[0]  # read first: if the rank comes after the check, it has changed and the sleep ends at once
            self._order()
            if theirs[self.rank] >= count:
                return
            futex.sleep_while(self._arenas[rank].address + _BELL, rung, _TICK_S)
            if bell[0] == rung:
                self.tick()
                if time.monotonic() > deadline:
                    raise DeadlineError(
                        f"Shared memory: local rank {rank} did not come within {self.timeout_s:g} s "
                        "(WORKBENCH_DATA_TIMEOUT_S)."
                    )


def join_memory(
    exchange: Callable[[Any], list[Any]], rank: int, reserved: int, timeout_s: float
) -> tuple[Node | None, str]:
    """Share memory with all ranks; all of them call it.

    Args:
        exchange: every rank's value, by rank.
        rank: this one.
        reserved: bytes behind the header that are not given out.
        timeout_s: deadline of one barrier.

    Returns:
        The node, or None and the reason, the same on every rank.
    """
    own, problem = None, "" if futex.available else "there is no futex on this system"
    try:
        own = None if problem else OwnArena(HEADER_BYTES + reserved)
    except (OSError, AttributeError, ValueError) as error:
        problem = f"no shared memory could be made: {error}"
    tickets = exchange(own.ticket if own else None)
    arenas: list[Arena] = []
    try:
        if own and None not in tickets and len(tickets) <= _MOST_RANKS:
            arenas = [own if r == rank else open_arena(ticket) for r, ticket in enumerate(tickets)]
        elif own:
            problem = "another rank has no shared memory" if None in tickets else "too many ranks"
    except (OSError, ValueError) as error:
        problem = f"another rank's memory could not be opened: {error}"
    remote = not problem and all(works(ticket.pid, ticket.address, ticket.token) for ticket in tickets)
    found = exchange((problem, remote))
    if own:
        own.seal()
    if problems := [text for text, _ in found if text]:
        return None, problems[0]
    pids = [ticket.pid for ticket in tickets] if all(there for _, there in found) else []
    return Node(arenas, rank, timeout_s, pids), ""
