"""Who sends what to whom, and when it has arrived: an algorithm's own messages, timed by LogGP.

The algorithms of ``workbench/collectives`` do not look at the data: which message follows which depends on the rank and
the number of ranks alone. So :func:`record` runs the algorithm itself, rank by rank, on a link that carries nothing
and notes what it is asked to carry. :func:`finish_times` then gives the time at which each rank has finished.

LogGP (Alexandrov et al. 1995): a message of m bytes costs its sender ``overhead_s``, leaves with ``per_byte_s`` for
each byte, is ``latency_s`` on its way, and costs its receiver ``overhead_s`` again. Ranks of one host that send to
other hosts in the same step share the host's wire, and those of a rack its uplink. A receiver takes one message after
the other. Where ranks are timed one by one, since they do not send in step, messages of several ranks share nothing.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.collectives.traffic import Array, Link
from workbench.simulate.machines import NOBODY as NOBODY
from workbench.simulate.machines import Machines

Times = NDArray[np.float64]
"""Seconds, by rank."""
Algorithm = Callable[[Link, Array, Any], Any]
"""As :func:`workbench.collectives.ring.ring_allreduce`: of a link, an array, and a function that combines two."""
_ALL_UP_TO = 64


@dataclass(frozen=True, eq=False)
class Schedule:
    """What each rank does, in its order; one column for each of its ``sendrecv``.

    Args:
        dest, source: ranks, :data:`NOBODY` where nothing is sent or received; by step and rank.
        sent, received, combined: parts of the whole array; combined is what is added after the step.
        lockstep: what a rank receives in a step is sent in the same step.
    """

    dest: NDArray[np.int64]
    source: NDArray[np.int64]
    sent: Times
    received: Times
    combined: Times
    lockstep: bool

    @property
    def n(self) -> int:
        return int(self.dest.shape[1])


class _Notes:
    """A link that carries nothing."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, self.steps = rank, size, list[list[int]]()

    def sendrecv(self, send: Array | None, dest: int, recv: Array | None, source: int) -> None:
        to, sent = (NOBODY, 0) if send is None else (dest, len(send))
        of, received = (NOBODY, 0) if recv is None else (source, len(recv))
        self.steps.append([to, of, sent, received, 0])

    def combine(self, first: Array, second: Array, /, *, out: Array) -> Array:
        self.steps[-1][4] += len(first)
        return out


@lru_cache(maxsize=32)
def record(algorithm: Algorithm, n: int, per_rank: int = 1) -> Schedule:
    """What an algorithm does on n ranks.

    Of more than 64 ranks four are recorded. If they do the same, each seen from its own place, so do all.

    Args:
        algorithm: is run on an array of n · per_rank elements.
        n: ranks.
        per_rank: so many that the algorithm can cut the array evenly.

    Raises:
        ValueError: there is no rank.

    Example:
        >>> from workbench.collectives.ring import ring_allreduce
        >>> schedule = record(ring_allreduce, n=4)
        >>> schedule.dest.shape, schedule.dest[0].tolist(), schedule.sent[0].tolist(), schedule.lockstep
        ((6, 4), [1, 2, 3, 0], [0.25, 0.25, 0.25, 0.25], True)
    """
    if n < 1:
        raise ValueError(f"{n} ranks: at least one is needed.")
    few = range(n) if n <= _ALL_UP_TO else (0, 1, n // 2, n - 1)
    by_rank = [_steps(algorithm, rank, n, per_rank) for rank in few]
    first = by_rank[0]
    if n > _ALL_UP_TO and all(
        np.array_equal(_turned(first, rank, n), own) for rank, own in zip(few, by_rank, strict=True)
    ):
        table = np.stack([_turned(first, rank, n) for rank in range(n)], axis=1)
    else:
        by_rank = by_rank if n <= _ALL_UP_TO else [_steps(algorithm, rank, n, per_rank) for rank in range(n)]
        table = np.zeros((max(map(len, by_rank)), n, 5), np.int64)
        table[:, :, :2] = NOBODY
        for rank, steps in enumerate(by_rank):
            table[: len(steps), rank] = steps
    dest, source, *amounts = np.moveaxis(table, 2, 0)
    sent, received, combined = (amount / (n * per_rank) for amount in amounts)
    return Schedule(dest, source, sent, received, combined, _is_lockstep(dest, source))


def _steps(algorithm: Algorithm, rank: int, n: int, per_rank: int) -> NDArray[np.int64]:
    notes = _Notes(rank, n)
    algorithm(notes, np.ones(n * per_rank, np.int8), notes.combine)
    return np.array(notes.steps, np.int64).reshape(-1, 5)


def _turned(steps: NDArray[np.int64], by: int, n: int) -> NDArray[np.int64]:
    """What rank ``by`` does, if it does the same as rank 0 with ranks so much further on."""
    ranks = steps[:, :2]
    return np.hstack([np.where(ranks == NOBODY, NOBODY, (ranks + by) % n), steps[:, 2:]])


def _is_lockstep(dest: NDArray[np.int64], source: NDArray[np.int64]) -> bool:
    """Is each step of a rank that receives one of its source that sends to it?"""
    steps, ranks = np.nonzero(source != NOBODY)
    return bool(np.all(dest[steps, source[steps, ranks]] == ranks))


def finish_times(schedule: Schedule, nbytes: float, machines: Machines, start: Times | float = 0.0) -> Times:
    """When each rank has finished.

    Args:
        schedule: what the ranks do.
        nbytes: of the whole array.
        machines: the ranks' hosts and wires.
        start: when each rank begins.

    Raises:
        ValueError: the schedule has more ranks than the machines, or ``nbytes`` is negative.

    Example:
        >>> from workbench.collectives.ring import ring_allreduce
        >>> from workbench.simulate.machines import Wire
        >>> two = Machines(hosts=2, per_host=1, inside=Wire(0, 0), between=Wire(latency_s=1, per_byte_s=0.5))
        >>> finish_times(record(ring_allreduce, n=2), nbytes=8, machines=two).tolist()
        [6.0, 6.0]
    """
    machines.needs(schedule.n)
    if not (np.isfinite(nbytes) and nbytes >= 0):
        raise ValueError(f"nbytes is {nbytes}: a finite number, 0 at least, is needed.")
    ready = np.zeros(schedule.n) + start
    run = _in_lockstep if schedule.lockstep else _one_by_one
    return run(schedule, nbytes, machines, ready)


def _in_lockstep(schedule: Schedule, nbytes: float, machines: Machines, ready: Times) -> Times:
    came = np.full(schedule.n, -np.inf)
    sends, waits = schedule.dest != NOBODY, schedule.source != NOBODY
    anew = np.any(schedule.dest[1:] != schedule.dest[:-1], axis=1)  # in a ring never: each step is like the first
    combine_s = schedule.combined * nbytes * machines.combine_s
    for i, (dest, source) in enumerate(zip(schedule.dest, schedule.source, strict=True)):
        if i == 0 or anew[i - 1]:
            way = machines.ways(dest)
        busy = way.overhead_s + schedule.sent[i] * nbytes * way.per_byte_s
        gone = ready + busy * sends[i]
        there = np.maximum((gone + way.latency_s + way.overhead_s)[source], came + busy[source])
        came = np.where(waits[i], there, came)
        ready = np.where(waits[i], np.maximum(gone, there), gone) + combine_s[i]
    return ready


def _one_by_one(schedule: Schedule, nbytes: float, machines: Machines, ready: Times) -> Times:
    """Each rank goes on as soon as what it waits for is on its way."""
    ready, at = ready.copy(), [0] * schedule.n
    arrived: dict[tuple[int, int], deque[tuple[float, float]]] = defaultdict(deque)
    came = [-np.inf] * schedule.n
    sent_at, runnable = np.zeros(schedule.n), deque(range(schedule.n))
    begun = [False] * schedule.n
    waiting: dict[tuple[int, int], int] = {}
    while runnable:
        rank = runnable.popleft()
        while at[rank] < len(schedule.dest):
            step = at[rank]
            dest, source = int(schedule.dest[step, rank]), int(schedule.source[step, rank])
            if not begun[rank]:
                begun[rank], sent_at[rank] = True, ready[rank]
                if dest != NOBODY:
                    way = machines.way(rank, dest)
                    busy = way.overhead_s + schedule.sent[step, rank] * nbytes * way.per_byte_s
                    sent_at[rank] += busy
                    arrived[rank, dest].append((sent_at[rank] + way.latency_s + way.overhead_s, busy))
                    if (rank, dest) in waiting:
                        runnable.append(waiting.pop((rank, dest)))
            if source != NOBODY and not arrived[source, rank]:
                waiting[source, rank] = rank
                break
            if source != NOBODY:
                there, busy = arrived[source, rank].popleft()
                came[rank] = max(there, came[rank] + busy)
            ready[rank] = max(sent_at[rank], came[rank]) + schedule.combined[step, rank] * nbytes * machines.combine_s
            begun[rank], at[rank] = False, step + 1
    return ready


def timed(algorithm: Algorithm, machines: Machines, per_rank: int = 1) -> Callable[[float], float]:
    """How long an algorithm takes for so many bytes, until the last rank has finished.

    Args:
        algorithm: on all ranks of the machines.
        machines: the ranks' hosts and wires.
        per_rank: see :func:`record`.
    """

    @lru_cache(maxsize=1024)
    def seconds(nbytes: float) -> float:
        return float(finish_times(record(algorithm, machines.n, per_rank), nbytes, machines).max())

    return seconds
