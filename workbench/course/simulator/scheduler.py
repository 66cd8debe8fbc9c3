"""Ranks as threads of this process, one at a time, on a virtual clock: every run is the same.

Only the rank with the token (the baton) runs, until it has to wait for another rank. Then the baton is given to the
ready rank with the lowest clock. If all ranks wait, that is a deadlock; the error shows the line of each rank.

The clock. A message of m bytes takes α + β·m seconds, one at a time into a rank and one at a time out of it. A large
one (more than ``eager_bytes``) leaves when its receiver is there, as MPI's rendezvous; a small one leaves at once.
Computing takes no time, unless the function says ``comm.compute(seconds)``.

    >>> def hello(comm):
    ...     return comm.sendrecv(comm.rank, dest=(comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size)
    >>> simulate(4, hello).results
    [3, 0, 1, 2]
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from workbench.course.judging.deadline import Halt, halt
from workbench.course.simulator.communicator import ANY, Array, Communicator, Pending, nbytes
from workbench.course.simulator.deadlock import Wait, explain
from workbench.course.simulator.run import Computed, DeadlockError, Message, Run
from workbench.errors import DeadlineError, WorkbenchError
from workbench.faults.blocked_threads import users_line

ALPHA_S, BETA_S = 20e-6, 1e-9
"""A message's latency, and its time per byte: MPI between two cores, roughly."""
EAGER_BYTES = 8192
_POLLS = 10_000  # that find nothing, while nothing else happens
_NEVER = float("inf")


def simulate(
    n: int,
    function: Callable[..., Any],
    *args: Any,
    alpha_s: float = ALPHA_S,
    beta_s: float = BETA_S,
    eager_bytes: int = EAGER_BYTES,
    deadline_s: float = 20.0,
    link: Callable[[int, int], tuple[float, float]] | None = None,
) -> Run:
    """Run ``function(comm, *args)`` on n ranks.

    Args:
        n: how many ranks.
        function: as for mpi4py; ``comm`` is a :class:`Comm`.
        args: for every rank the same objects; what a rank changes of them, others see.
        alpha_s, beta_s: seconds per message, and per byte.
        eager_bytes: up to this size a message leaves though nobody waits for it.
        deadline_s: in real seconds; ends a loop that never communicates.
        link: (source, dest) → (α, β) of their messages, where links differ; instead of ``alpha_s`` and ``beta_s``.

    Raises:
        DeadlockError: nobody can go on.
        DeadlineError: it takes too long.
        Exception: what the function raised on the first rank that raised; ``error.rank`` says which.

    Example:
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
    return _World(n, alpha_s, link or (lambda source, dest: (alpha_s, beta_s)), eager_bytes).run(
        function, args, deadline_s
    )


class Comm(Communicator):
    """A simulated rank's communicator; see :class:`workbench.course.simulator.communicator.Communicator`.

    It is a Link as well, so :mod:`workbench.collectives` runs on it.
    """

    def __init__(self, world: _World, rank: int) -> None:
        self._world, self.rank, self.size = world, rank, world.size

    @property
    def now(self) -> float:
        """This rank's clock, in virtual seconds."""
        return self._world.clocks[self.rank]

    def compute(self, seconds: float, label: str = "") -> None:
        """Spend virtual time."""
        self._world.turn(self.rank)
        if not seconds >= 0:
            raise ValueError(f"compute({seconds}): time does not run backwards.")
        begin = self.now
        self._world.clocks[self.rank] += seconds
        self._world.log.computed.append(Computed(self.rank, begin, self.now, label))

    def sendrecv(self, *args: Any, **options: Any) -> Any:
        """As mpi4py's; with two arrays or None, ``sendrecv(send, dest, recv, source)``, as a Link's."""
        if len(args) == 4 and not options and isinstance(args[0] if args[0] is not None else args[2], np.ndarray):
            return self._as_link(*args)
        return super().sendrecv(*args, **options)

    def _as_link(self, send: Array | None, dest: int, recv: Array | None, source: int) -> None:
        pending = [] if send is None else [self.post_send(send, dest, 0, "sendrecv")]
        pending += [] if recv is None else [self.post_recv(recv, source, 0, "sendrecv")]
        self.finish(pending, "sendrecv")

    def post_send(self, data: Any, dest: int, tag: int, verb: str) -> Pending:
        """See :class:`Communicator`."""
        return self._world.post_send(self.rank, data, dest, tag, verb)

    def post_recv(self, buffer: Array | None, source: int, tag: int, verb: str) -> Pending:
        """See :class:`Communicator`."""
        return self._world.post_recv(self.rank, buffer, source, tag, verb)

    def finish(self, pending: Sequence[Pending], verb: str) -> list[Any]:
        """See :class:`Communicator`."""
        return [one.wait() for one in pending]


class _Request(Pending):
    """A send or a receive that was posted."""

    def __init__(self, world: _World, rank: int, peer: int, tag: int, verb: str, sends: bool) -> None:
        self.world, self.rank, self.peer, self.tag, self.verb, self.sends = world, rank, peer, tag, verb, sends
        self.posted, self.begins, self.ends, self.where = world.clocks[rank], _NEVER, _NEVER, ""
        self.data: Any = None  # what is sent, or has come
        self.array: Array | None = None  # the caller's own
        self.waited = False
        if verb[0] in "iI":
            world._posted.append(self)

    def wait(self) -> Any:
        """See :class:`Pending`."""
        self.waited = True
        self.world.wait(self)
        if self.array is None:
            return None if self.sends else self.data
        if self.sends and not _same(self.array, self.data):
            raise WorkbenchError(
                f"Rank {self.rank}: the array given to {self.verb}(dest={self.peer}) was changed before wait(). Until "
                "then it belongs to the message: real ranks would send wrong numbers, sometimes. Wait first, or copy."
            )
        if not self.sends:
            _fill(self.array, self.data, self)
        self.array = None
        return None

    def test(self) -> tuple[bool, Any]:
        """See :class:`Pending`."""
        if not self.world.poll(self):
            return False, None
        return True, self.wait()

    Wait, Test = wait, test


class _World:
    """All ranks, and the baton. Only the thread that holds it touches anything."""

    def __init__(
        self, size: int, alpha_s: float, link: Callable[[int, int], tuple[float, float]], eager_bytes: int
    ) -> None:
        self.size, self.alpha_s, self.link, self.eager_bytes = size, alpha_s, link, eager_bytes
        self.log = Run(size, [None] * size)
        self.clocks = [0.0] * size
        self._sends: list[_Request] = []  # posted, not matched
        self._recvs: list[_Request] = []
        self._posted: list[_Request] = []  # by isend, irecv and their like
        self._out_free, self._in_free = [0.0] * size, [0.0] * size
        self._gates = [threading.Semaphore(0) for _ in range(size)]
        self._waiting: dict[int, _Request] = {}
        self._finished: set[int] = set()
        self._halted: set[int] = set()
        self._polls = 0  # since anything else has happened
        self._over = threading.Event()
        self._error: BaseException | None = None

    # --- the baton ----------------------------------------------------------------------------------

    def run(self, function: Callable[..., Any], args: Sequence[Any], deadline_s: float) -> Run:
        """See :func:`simulate`."""
        threads = [
            threading.Thread(target=self._rank, args=(rank, function, args), daemon=True, name=f"rank {rank}")
            for rank in range(self.size)
        ]
        for thread in threads:
            thread.start()
        self._gates[0].release()
        try:
            in_time = self._over.wait(deadline_s)
        except BaseException:  # Ctrl-C
            self._stop_all(threads)
            raise
        if not in_time:
            self._error = DeadlineError(
                f"The function did not end within {deadline_s:g} s. Is there a loop whose condition never changes?"
            )
            self._stop_all(threads)
        for thread in threads:
            thread.join(1.0)
        self.log.clocks = self.clocks
        self.log.unwaited = [(one.rank, one.peer, one.verb) for one in self._posted if not one.waited]
        self.log.unreceived = [(one.rank, one.peer, one.verb) for one in self._sends]
        if self._error is not None:
            raise self._error
        return self.log

    def _rank(self, rank: int, function: Callable[..., Any], args: Sequence[Any]) -> None:
        try:
            self._pause(rank)
            self.log.results[rank] = function(Comm(self, rank), *args)
        except Halt:
            return
        except BaseException as error:  # noqa: BLE001 - raised by simulate()
            if self._error is None:
                error.rank = rank  # type: ignore[attr-defined]
                self._error = error
            self._end()
            return
        self._finished.add(rank)
        self._polls = 0
        self._pass_on()

    def _stop_all(self, threads: Sequence[threading.Thread]) -> None:
        self._end()
        for thread in threads:
            if thread.is_alive():
                halt(thread.ident)

    def _end(self) -> None:
        self._over.set()
        for gate in self._gates:
            gate.release()

    def turn(self, rank: int) -> None:
        """Let those whose clock is behind go first: then messages happen in the order of their times."""
        first = self._next()
        if first is not None and first != rank:
            self._gates[first].release()
            self._pause(rank)

    def _next(self) -> int | None:
        """The rank with the lowest clock among those that can go on."""
        able = [rank for rank in range(self.size) if rank not in self._finished and not self._stuck(rank)]
        return min(able, key=lambda rank: (self._time(rank), rank), default=None)

    def _stuck(self, rank: int) -> bool:
        return rank in self._waiting and self._waiting[rank].ends == _NEVER

    def _time(self, rank: int) -> float:
        waiting = self._waiting.get(rank)
        return max(self.clocks[rank], waiting.ends) if waiting else self.clocks[rank]

    def _pass_on(self) -> None:
        following = self._next()
        if following is not None:
            self._gates[following].release()
            return
        if self._waiting and self._error is None:
            self._deadlock()
        self._end()

    def _deadlock(self) -> None:
        waits = [
            Wait(rank, one.verb, one.peer, nbytes(one.data) if one.sends else 0, one.where, one.sends)
            for rank, one in sorted(self._waiting.items())
        ]
        self.log.clocks = self.clocks
        self._error = DeadlockError(explain(waits, sorted(self._finished)), waits, self.log)

    def _pause(self, rank: int) -> None:
        self._gates[rank].acquire()
        if self._over.is_set():
            if rank in self._halted:  # a bare except has caught it: then this thread waits, and costs nothing
                threading.Event().wait()
            self._halted.add(rank)
            self._gates[rank].release()
            raise Halt

    # --- messages -------------------------------------------------------------------------------------

    def post_send(self, rank: int, data: Any, dest: int, tag: int, verb: str) -> _Request:
        """A message is ready to leave."""
        self.turn(rank)
        request = _Request(self, rank, dest, tag, verb, sends=True)
        if verb[0].isupper():
            request.array, data = data, data.copy()
        request.data = data
        if nbytes(data) <= self.eager_bytes:
            self._move(request, request.posted)
        self._sends.append(request)
        self._match()
        return request

    def post_recv(self, rank: int, buffer: Array | None, source: int, tag: int, verb: str) -> _Request:
        """A message is asked for."""
        self.turn(rank)
        request = _Request(self, rank, source, tag, verb, sends=False)
        request.array = buffer
        self._recvs.append(request)
        self._match()
        return request

    def wait(self, request: _Request) -> None:
        """Until the request is done; meanwhile the others run."""
        rank = request.rank
        if request.ends == _NEVER:
            request.where = users_line()
        self._waiting[rank] = request
        while request.ends == _NEVER or self._next() != rank:
            self._pass_on()
            self._pause(rank)
        del self._waiting[rank]
        self.clocks[rank] = max(self.clocks[rank], request.ends)

    def poll(self, request: _Request) -> bool:
        """Is it done by now? Asking costs a little time, in which others can go on."""
        rank = request.rank
        self.clocks[rank] += self.alpha_s / 10
        self.turn(rank)
        if request.ends <= self.clocks[rank]:
            return True
        self._polls += 1
        if self._polls > _POLLS and request.ends == _NEVER:
            request.where = users_line()
            self._waiting[rank] = request
            self._pass_on()
            self._pause(rank)
        return False

    def _match(self) -> None:
        """Bring sends and receives together, in the order in which they were posted."""
        self._polls = 0
        for recv in list(self._recvs):
            send = next((one for one in self._sends if _fit(one, recv)), None)
            if send is not None:
                self._sends.remove(send)
                self._recvs.remove(recv)
                if send.ends == _NEVER:
                    self._move(send, max(send.posted, recv.posted))
                recv.data, recv.ends = send.data, max(recv.posted, send.ends)
                self._log(send, recv)

    def _move(self, send: _Request, ready: float) -> None:
        """The message's transfer time; a rank sends one message at a time and receives one at a time."""
        alpha_s, beta_s = self.link(send.rank, send.peer)
        send.begins = max(ready, self._out_free[send.rank], self._in_free[send.peer])
        send.ends = send.begins + alpha_s + beta_s * nbytes(send.data)
        self._out_free[send.rank] = self._in_free[send.peer] = send.ends

    def _log(self, send: _Request, recv: _Request) -> None:
        on_the_way, size = (send.begins, send.ends), nbytes(send.data)
        message = Message(send.rank, recv.rank, send.tag, size, send.posted, *on_the_way, recv.posted, send.verb)
        self.log.messages.append(message)


def _fit(send: _Request, recv: _Request) -> bool:
    return send.peer == recv.rank and recv.peer in (ANY, send.rank) and (recv.tag < 0 or recv.tag == send.tag)


def _same(a: Array, b: Array) -> bool:
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))


def _fill(target: Array, data: Any, request: _Request) -> None:
    if not isinstance(data, np.ndarray):
        raise TypeError(
            f"Rank {request.rank}: {request.verb}() got an object that send() sent; receive it with recv()."
        )
    if data.dtype != target.dtype or data.size > target.size:
        raise ValueError(
            f"Rank {request.rank}: {request.verb}(source={request.peer}) has room for {target.size} × {target.dtype}, "
            f"but {data.size} × {data.dtype} came. Give it an array of the sender's dtype that is large enough."
        )
    target.reshape(-1)[: data.size] = data.reshape(-1)


__all__ = ["ALPHA_S", "BETA_S", "EAGER_BYTES", "Comm", "Computed", "DeadlockError", "Message", "Run", "simulate"]
