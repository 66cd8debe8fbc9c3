"""Ranks in this process, one at a time, on a virtual clock: every run is the same.

Only the rank with the token runs (``turns.py``), until it has to wait for another rank. Then the token is given to the
ready rank with the lowest clock. If all ranks wait, that is a deadlock; the error shows the line of each rank.

The clock. A message of m bytes takes α + β·m seconds, one at a time into a rank and one at a time out of it. A large
one (more than ``eager_bytes``) leaves when its receiver is there, as MPI's rendezvous; a small one leaves at once.
Computing takes no time, unless the function says ``comm.compute(seconds)``. Ranks die as ``kills`` says; see
``failures.py``.

    >>> def hello(comm):
    ...     return comm.sendrecv(comm.rank, dest=(comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)
    >>> simulate(4, hello).results
    [3, 0, 1, 2]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from heapq import heappop, heappush
from typing import Any, NoReturn

from workbench.course.simulator.collective_calls import Calls, CollectiveCall
from workbench.course.simulator.comm import Comm
from workbench.course.simulator.communicator import ANY, Array, nbytes
from workbench.course.simulator.deadline import LOOP, Halt, Patience
from workbench.course.simulator.deadlock import Wait, explain
from workbench.course.simulator.failures import NEVER, NOTICE_S, Died, Failures, Kill
from workbench.course.simulator.request import Request, fits, logged
from workbench.course.simulator.run import Computed, DeadlockError, InVain, Run, SimulatedMessage
from workbench.course.simulator.turns import Turns
from workbench.errors import DeadlineError
from workbench.runtime.faults.blocked_threads import users_line

ALPHA_S, BETA_S = 20e-6, 1e-9
"""A message's latency, and its time per byte: MPI between two cores, roughly."""
EAGER_BYTES = 8192
_POLLS = 1000  # that find nothing, while nothing else happens


def simulate(
    n: int,
    function: Callable[..., Any],
    *args: Any,
    alpha_s: float = ALPHA_S,
    beta_s: float = BETA_S,
    eager_bytes: int = EAGER_BYTES,
    deadline_s: float = 20.0,
    link: Callable[[int, int], tuple[float, float]] | None = None,
    kills: Sequence[Kill] = (),
    notice_s: float = NOTICE_S,
) -> Run:
    """Run ``function(comm, *args)`` on n ranks.

    Args:
        n: how many ranks.
        function: as for mpi4py; ``comm`` is a :class:`Comm`.
        args: for every rank the same objects; what a rank changes of them, others see.
        alpha_s, beta_s: seconds per message, and per byte.
        eager_bytes: up to this size a message leaves though nobody waits for it.
        deadline_s: in real seconds, without those in which other programs have the cores; ends a loop that never
            communicates.
        link: (source, dest) → (α, β) of their messages, where links differ; instead of ``alpha_s`` and ``beta_s``.
        kills: which ranks die, and when.
        notice_s: virtual seconds from a death until the others know.

    Raises:
        DeadlockError: nobody can go on.
        DeadlineError: it takes too long.
        RankDiedError: a rank is dead, and another one did not catch that.
        Exception: what the function raised on the first rank that raised; ``error.rank`` says which.

    Example:
        >>> import numpy as np
        >>> def ring(comm):
        ...     comm.send(np.ones(10_000), dest=(comm.rank + 1) % comm.size)
        ...     return comm.recv(source=(comm.rank - 1) % comm.size)
        >>> try:
        ...     simulate(2, ring)
        ... except DeadlockError as error:
        ...     print(str(error).splitlines()[0])
        Deadlock: nobody can go on.
        >>> run = simulate(2, ring, eager_bytes=100_000)
        >>> len(run.messages), round(run.time_s * 1e6)
        (2, 100)
    """
    if n < 1:
        raise ValueError(f"There must be at least one rank, not {n}.")
    links = link or (lambda source, dest: (alpha_s, beta_s))
    return SimulatedWorld(n, alpha_s, links, eager_bytes, Failures(n, kills, notice_s)).run(function, args, deadline_s)


class SimulatedWorld:
    """All ranks, and the token. Only the rank that has it touches anything."""

    def __init__(
        self,
        size: int,
        alpha_s: float,
        link: Callable[[int, int], tuple[float, float]],
        eager_bytes: int,
        failures: Failures,
    ) -> None:
        self.size, self.alpha_s, self.link, self.eager_bytes = size, alpha_s, link, eager_bytes
        self.failures = failures
        self.log = Run(size, [None] * size, died=failures.died)
        self.clocks = [0.0] * size
        self._able = [(0.0, rank) for rank in range(size)]  # a heap: when who can go on; what was true once stays in it
        self._sends: list[Request] = []  # posted, not matched
        self._recvs: list[Request] = []
        self.posted: list[Request] = []  # by isend, irecv and their like
        self._shrinking: dict[int, Request] = {}  # by rank, who waits in shrink()
        self._counts = [0] * size  # messages sent
        self._calls = Calls()
        self._out_free, self._in_free = [0.0] * size, [0.0] * size
        self._turns: Turns
        self._waiting: dict[int, Request] = {}
        self._finished: set[int] = set()
        self._polls = 0  # since anything else has happened
        self._error: BaseException | None = None

    # --- the token ----------------------------------------------------------------------------------

    def run(self, function: Callable[..., Any], args: Sequence[Any], deadline_s: float) -> Run:
        self._turns = Turns([partial(self._rank, rank, function, args) for rank in range(self.size)])
        try:
            patience = Patience(deadline_s)
            in_time = self._turns.run(patience)
        except BaseException:  # Ctrl-C
            self._turns.stop()
            raise
        if not in_time:
            self._error = DeadlineError(f"The function {patience.late(LOOP)}")
            self._turns.stop()
            patience.forget_unfinished()
        self.log.clocks = self.clocks
        self.log.unwaited = [(one.rank, one.peer, one.verb) for one in self.posted if not one.waited]
        self.log.unreceived = [(one.rank, one.peer, one.verb) for one in self._sends]
        if self._error is not None:
            self._error.run = self.log  # type: ignore[attr-defined]
            raise self._error
        return self.log

    def _rank(self, rank: int, function: Callable[..., Any], args: Sequence[Any]) -> None:
        result: Any = None
        raised: BaseException | None = None
        try:
            result = function(Comm(self, rank), *args)
        except Died:
            pass
        except Halt:
            return
        except BaseException as error:  # noqa: BLE001 - raised by simulate()
            raised = error
        if raised is not None and rank not in self.failures.died:  # else an error of its last moments, unheard
            if self._error is None:
                raised.rank = rank  # type: ignore[attr-defined]
                self._error = raised
            self._turns.end()
            return
        self.log.results[rank] = None if rank in self.failures.died else result
        self._finished.add(rank)
        self._settle()
        self._polls = 0
        self._pass_on()

    def _turn(self, rank: int) -> None:
        """Let those whose clock is behind go first: then messages happen in the order of their times."""
        first = self._next()
        if first is not None and first != rank:
            self._turns.give(first)
            self._turns.wait(rank)
        if rank in self.failures.died or self.failures.due_s(rank) <= self.clocks[rank]:
            self._die(rank)

    def _next(self) -> int | None:
        """The rank with the lowest clock among those that can go on."""
        if self.failures.kills:  # a death changes the times of all
            able = [(self._time(rank), rank) for rank in range(self.size) if rank not in self._finished]
            return min((one for one in able if one[0] < NEVER), default=(NEVER, None))[1]
        while self._able:
            time_s, rank = self._able[0]
            if rank not in self._finished and self._time(rank) == time_s:
                return rank
            heappop(self._able)
        return None

    def _note(self, rank: int) -> None:
        """The time at which this rank can go on has changed."""
        if (time_s := self._time(rank)) < NEVER:
            heappush(self._able, (time_s, rank))

    def _time(self, rank: int) -> float:
        """When a rank goes on: with what it waits for, with the news that it waits in vain, or to die."""
        waiting, clock = self._waiting.get(rank), self.clocks[rank]
        if waiting is None or rank in self.failures.died:
            return clock
        ends = waiting.ends if waiting.ends < NEVER else self._hopeless_s(waiting)
        return min(max(clock, ends), max(clock, self.failures.due_s(rank)))

    def _hopeless_s(self, request: Request) -> float:
        """When it is known that a message will not come; infinity if it still may."""
        return NEVER if request.verb == "shrink" else self.failures.noticed_s(request.epoch)

    def _pass_on(self) -> None:
        following = self._next()
        if following is not None:
            self._turns.give(following)
            return
        if self._waiting and self._error is None:
            self._deadlock()
        self._turns.end()

    def _deadlock(self) -> None:
        waits = [
            Wait(rank, one.verb, one.peer, nbytes(one.data) if one.sends else 0, one.where, one.sends)
            for rank, one in sorted(self._waiting.items())
        ]
        self.log.clocks = self.clocks
        returned = {rank: self._calls.said_of(rank) for rank in self._finished}
        self._error = DeadlockError(explain(waits, returned), waits, self.log)

    # --- who lives ------------------------------------------------------------------------------------

    def now(self, rank: int) -> float:
        return self.clocks[rank]

    def compute(self, rank: int, seconds: float, label: str) -> None:
        self._turn(rank)
        if not 0 <= seconds < NEVER:
            raise ValueError(f"compute({seconds}): time does not run backwards, nor end.")
        begin = self.clocks[rank]
        self.clocks[rank] = min(begin + seconds, self.failures.due_s(rank))
        self._note(rank)
        self.log.computed.append(Computed(rank, begin, self.clocks[rank], label))
        if self.clocks[rank] == self.failures.due_s(rank):
            self._die(rank)

    def shrink(self, rank: int, epoch: int) -> int:
        """See :meth:`Comm.shrink`; the number of the new epoch."""
        self._turn(rank)
        request = Request(self, rank, epoch, ANY, ANY, "shrink", sends=False)
        self._shrinking[rank] = request
        self._settle()
        self.wait(request)
        return int(request.data)

    def _settle(self) -> None:
        """Begin a new epoch if all who live have come for it. What was on its way in the old one is gone."""
        living = [rank for rank in range(self.size) if rank not in self._finished and rank not in self.failures.died]
        came, self._polls = self._shrinking, 0
        if not living or set(living) != set(came):
            return
        known = [one.posted for one in came.values()] + [self._known_s(rank) for rank in range(self.size)]
        agreed = max(known) + 2 * self.alpha_s * (len(living) - 1).bit_length()
        self.failures.epochs.append(tuple(living))
        for one in came.values():
            one.data, one.ends = len(self.failures.epochs) - 1, agreed
            self._note(one.rank)
        self._shrinking, self._sends, self._recvs = {}, [], []

    def _known_s(self, rank: int) -> float:
        """When the others know that a rank is not to come any more; 0 if it lives."""
        if rank in self.failures.died:
            return self.failures.died[rank] + self.failures.notice_s
        return self.clocks[rank] if rank in self._finished else 0.0

    def _die(self, rank: int) -> NoReturn:
        """End this rank, and take back what it has not begun to send."""
        if rank not in self.failures.died:
            self.failures.died[rank] = self.clocks[rank]
            self._sends = [one for one in self._sends if one.rank != rank or one.ends < NEVER]
            self._recvs = [one for one in self._recvs if one.rank != rank]
            self._shrinking.pop(rank, None)
            self._settle()
        raise Died

    def _alive(self, rank: int, epoch: int, verb: str) -> None:
        """Raise if this rank knows that one of its epoch is dead."""
        if self.failures.noticed_s(epoch) <= self.clocks[rank]:
            raise self.failures.error(rank, epoch, verb)

    # --- messages -------------------------------------------------------------------------------------

    def begins(self, rank: int, epoch: int, call: str) -> None:
        """A rank begins a collective. Once somebody is dead its partners may be in another one than it was."""
        if not self.failures.died:
            self._calls.begin(epoch, rank, CollectiveCall(call, f"({place})" if (place := users_line()) else ""))

    def post_send(self, rank: int, epoch: int, data: Any, dest: int, tag: int, verb: str) -> Request:
        """A message is ready to leave."""
        self._turn(rank)
        if self.failures.due_instead_of(rank, self._counts[rank]):
            self._die(rank)
        self._alive(rank, epoch, verb)
        self._counts[rank] += 1
        request = Request(self, rank, epoch, dest, tag, verb, sends=True)
        request.array = data if verb[0].isupper() else None
        request.data = data = data.copy() if verb[0].isupper() else data
        if nbytes(data) <= self.eager_bytes:
            self._move(request, request.posted)
        self._match(request)
        return request

    def post_recv(self, rank: int, epoch: int, buffer: Array | None, source: int, tag: int, verb: str) -> Request:
        """A message is asked for."""
        self._turn(rank)
        self._alive(rank, epoch, verb)
        request = Request(self, rank, epoch, source, tag, verb, sends=False)
        request.array = buffer
        self._match(request)
        return request

    def wait(self, request: Request) -> Any:
        """Until the request is done; meanwhile the others run. What has come, of a receive."""
        rank = request.rank
        begin = self.clocks[rank]
        if request.ends == NEVER:
            request.where = users_line()
        if begin < request.ends:
            self._holds_up(request)
        self._waiting[rank] = request
        self._note(rank)
        while self._next() != rank:
            self._pass_on()
            self._turns.wait(rank)
        self.clocks[rank] = self._time(rank)
        del self._waiting[rank]
        if rank in self.failures.died or self.failures.due_s(rank) <= self.clocks[rank]:
            self._die(rank)
        if request.ends == NEVER:
            if begin < self.clocks[rank]:
                self.log.in_vain.append(InVain(rank, request.peer, begin, self.clocks[rank], request.verb))
            self._alive(rank, request.epoch, request.verb)
        return None if request.sends else request.data

    def poll(self, request: Request) -> bool:
        """Is it done by now? Asking costs a little time, in which others can go on."""
        rank = request.rank
        self.clocks[rank] += self.alpha_s / 10
        self._note(rank)
        self._turn(rank)
        if request.ends <= self.clocks[rank]:
            return True
        self._alive(rank, request.epoch, request.verb)
        self._polls += 1
        if self._polls > _POLLS and request.ends == NEVER:
            request.where = users_line()
            self._waiting[rank] = request
            self._pass_on()
            self._turns.wait(rank)
        return False

    def _match(self, request: Request) -> None:
        """Bring it together with the first that fits, in the order in which they were posted; else it waits for one."""
        self._polls = 0
        alike, others = (self._sends, self._recvs) if request.sends else (self._recvs, self._sends)
        for other in others:
            send, recv = (request, other) if request.sends else (other, request)
            if fits(send, recv):
                others.remove(other)
                self._bring_together(send, recv)
                return
        alike.append(request)

    def _bring_together(self, send: Request, recv: Request) -> None:
        """A message goes from one to the other."""
        if send.ends == NEVER:
            self._move(send, max(send.posted, recv.posted))
        recv.data, recv.ends = send.data, max(recv.posted, send.ends)
        for one in (send, recv):
            if self._waiting.get(one.rank) is one:
                self._note(one.rank)
        self._log(send, recv)

    def _move(self, send: Request, ready: float) -> None:
        """The message's transfer time; a rank sends one message at a time and receives one at a time."""
        alpha_s, beta_s = self.link(send.rank, send.peer)
        send.begins = max(ready, self._out_free[send.rank], self._in_free[send.peer])
        send.ends = send.begins + alpha_s + beta_s * nbytes(send.data)
        self._out_free[send.rank] = self._in_free[send.peer] = send.ends

    def _log(self, send: Request, recv: Request) -> None:
        send.message = recv.message = len(self.log.messages)
        self.log.messages.append(logged(send, recv))

    def _holds_up(self, request: Request) -> None:
        """A rank waits for what it has posted. Until now it went on, so nothing of that was waiting."""
        request.since = min(request.since, self.clocks[request.rank])
        if request.goes_on and request.message >= 0:
            one = self.log.messages[request.message]
            since = min(request.since, one.begin)
            waits = replace(one, held=since) if request.sends else replace(one, awaited=since)
            self.log.messages[request.message] = waits


__all__ = [
    "ALPHA_S",
    "BETA_S",
    "EAGER_BYTES",
    "Comm",
    "Computed",
    "DeadlockError",
    "Run",
    "SimulatedMessage",
    "simulate",
]
