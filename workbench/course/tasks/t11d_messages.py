"""Lesson 11, find the bug: cards 11 and 12. Messages: a buffer that is used again, a ring that blocks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from workbench.common.text import count
from workbench.course.drawing import space_time
from workbench.course.judging.card import CommCard, PlainCard
from workbench.course.judging.compare import about, difference
from workbench.course.judging.task import Bound, Case
from workbench.course.simulator import DeadlockError, Run, simulate
from workbench.course.simulator.communicator import Array, Communicator, Pending
from workbench.course.simulator.deadlock import in_short
from workbench.observe.figure import Figure

# --- 11 -----------------------------------------------------------------------------------------------


def pipeline(comm: Any, rows: Any) -> Any:
    """Send twice each row to the right neighbour, and return the rows that the left neighbour sends.

    A row is computed while the previous row is still being sent.
    """
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    got, row, pending = np.empty_like(rows), np.empty_like(rows[0]), []
    for i in range(len(rows)):
        row = 2 * rows[i]
        pending.append(comm.Isend(row, dest=right))
    for i in range(len(rows)):
        comm.Recv(got[i], source=left)
    for request in pending:
        request.wait()
    return got


class WatchedCommunicator(Communicator):
    """Remembers what is sent without waiting."""

    def __init__(self, comm: Any) -> None:
        self.comm, self.rank, self.size = comm, comm.rank, comm.size
        self.sent: list[Any] = []

    def post_send(self, data: Any, dest: int, tag: int, verb: str) -> Pending:
        request = self.comm.post_send(data, dest, tag, verb)
        self.sent.append(request)
        return request  # type: ignore[no-any-return]

    def post_recv(self, buffer: Array | None, source: int, tag: int, verb: str) -> Pending:
        return self.comm.post_recv(buffer, source, tag, verb)  # type: ignore[no-any-return]

    def finish(self, pending: Sequence[Pending], verb: str) -> list[Any]:
        return self.comm.finish(pending, verb)  # type: ignore[no-any-return]


def _rows(n: int, rows: int, length: int) -> Case:
    inputs = [(np.arange(rows * length, dtype=float).reshape(rows, length) + 1000.0 * rank,) for rank in range(n)]
    return Case(n, f"{count(rows, 'row')} of {length:,}", inputs)


def _piped(function: Callable[..., Any], case: Case) -> tuple[Run, int]:
    """The run, and how many messages nobody has waited for."""
    watched: list[WatchedCommunicator] = []

    def rank(comm: Any) -> Any:
        watched.append(WatchedCommunicator(comm))
        return function(watched[-1], case.inputs[comm.rank][0].copy())

    run = simulate(case.n, rank)
    return run, sum(request.array is not None for one in watched for request in one.sent)


def right_rows(function: Callable[..., Any]) -> str:
    """the left neighbour's rows, doubled."""
    for case in (_rows(2, 1, 4), _rows(2, 2, 4), _rows(3, 4, 10), _rows(3, 3, 20_000)):
        try:
            run, left = _piped(function, case)
        except DeadlockError as error:
            return f"{about(case)}: {in_short(error.waits)}\n{error}"
        expected = [2 * case.inputs[(rank - 1) % case.n][0] for rank in range(case.n)]
        if wrong := difference(run.results, expected, ["the rows"]):
            return f"{about(case)}: {wrong}"
        if left:
            return f"{about(case)}: {left} of {len(run.messages)} messages were never waited for, so they may not leave"
    return ""


def _shown(function: Callable[..., Any]) -> Figure:
    return space_time(_piped(function, _rows(3, 3, 20_000))[0], "11.pipeline on 3 ranks")


PIPELINE = PlainCard(
    "11.pipeline",
    "right with one row, sometimes wrong numbers with more",
    pipeline,
    draw=_shown,
    properties=[right_rows],
)

# --- 12 -----------------------------------------------------------------------------------------------


def ring(comm: Any, x: Any) -> Any:
    """Return the sum of all ranks' x, on every rank: each x goes once around the ring."""
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    total = x
    for _ in range(comm.size - 1):
        x = comm.sendrecv(x, dest=right, source=left)
        total = total + x
    return total


def _arrays(n: int, length: int) -> Case:
    return Case(n, f"length {length:,}", [(np.arange(length) + 100.0 * rank,) for rank in range(n)])


def _messages(case: Case, run: Run) -> Sequence[Bound]:
    most = max(count for count, _ in run.sent())
    return [Bound("messages per rank", most, case.n - 1, case.n - 1, "Each x goes once around: n - 1 steps")]


RING = CommCard(
    "11.ring",
    "right in every test, hangs with the real model",
    ring,
    cases=lambda: [_arrays(n, length) for length in (10, 100_000) for n in (1, 2, 3, 4)],
    expected=lambda case: [sum(x for (x,) in case.inputs)] * case.n,
    names=("the sum",),
    bounds=_messages,
    scored=_arrays(4, 100_000),
    shown=_arrays(4, 100_000),
    asks_for=("comm.allreduce", "comm.Allreduce", "comm.reduce"),
)

TASKS = [PIPELINE, RING]
