"""Lesson 02, collectives by hand: broadcast along a tree, a ring that does not block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.course.judging.task import Bound, Case, CommTask
from workbench.course.provenance.coding import Coded
from workbench.course.simulator import Run

_SIZES = (1, 2, 3, 4, 7, 8)


def tree_broadcast(comm: Any, value: Any, root: Any) -> Any:
    """Return the root's value on every rank, within ceil(log2(n)) rounds.

    Only point-to-point messages: comm.send(value, dest=...), comm.recv(source=...).
    """
    ### BEGIN SOLUTION
    place, step = (comm.rank - root) % comm.size, 1  # the root is in place 0
    while step < comm.size:
        if place < step and place + step < comm.size:
            comm.send(value, dest=(comm.rank + step) % comm.size)
        elif step <= place < 2 * step:
            value = comm.recv(source=(comm.rank - step) % comm.size)
        step *= 2
    return value
    ### END SOLUTION


def _broadcast(n: int, length: int, root: int) -> Case:
    arrays = [np.arange(length) * 1.0 + 100 * rank for rank in range(n)]
    return Case(n, f"length {length}, root {root}", [(array, root) for array in arrays])


def _rounds(run: Run) -> int:
    """How many messages follow each other; none of who has guessed the value."""
    return round(run.time_s / (run.messages[0].end - run.messages[0].begin)) if run.messages else 0


def _as_a_tree(case: Case, run: Run) -> Sequence[Bound]:
    best = (case.n - 1).bit_length()
    return [
        Bound(
            "messages", len(run.messages), case.n - 1, case.n - 1, "Every rank but the root receives the value, once"
        ),
        Bound("rounds", _rounds(run), best, best, "In each round, all ranks that have the value can send it"),
        Bound.by_hand(run, "Build it from messages: send and recv"),
    ]


_BROADCAST = Coded(  # root 2 of 4, 4 of 8: not rank 0
    inputs=lambda arrays: [(array, len(arrays) // 2) for array in arrays],
    returned=lambda result, rank, n: {0: result},
    wanted=lambda rank, chunk, n: [n // 2],
    sums=False,
    chunked=False,
    n=8,
)


def shift_right(comm: Any, x: Any) -> Any:
    """Send x, which may be large, to the right neighbour; return what the left one sent. In two rounds at most."""
    ### BEGIN SOLUTION
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    return comm.sendrecv(x, dest=right, source=left)
    ### END SOLUTION


def _shift(n: int, length: int) -> Case:
    return Case(n, f"length {length:,}", [(np.full(length, float(rank)),) for rank in range(n)])


def _one_step(case: Case, run: Run) -> Sequence[Bound]:
    return [Bound("rounds", _rounds(run), 1, 2, "Even ranks can send while odd ones receive: that is two")]


_SHIFT = Coded(
    inputs=lambda arrays: [(array,) for array in arrays],
    returned=lambda result, rank, n: {0: result},
    wanted=lambda rank, chunk, n: [(rank - 1) % n],
    sums=False,
    chunked=False,
)

TASKS = [
    CommTask(
        "02.tree_broadcast",
        "broadcast in log2(n) rounds",
        tree_broadcast,
        # 2,000 floats do not leave before their receiver comes: a message that nobody takes is then noticed.
        cases=lambda: [
            _broadcast(n, length, root) for length in (1, 2000) for n in _SIZES for root in {0, n - 1, n // 2}
        ],
        expected=lambda case: [case.inputs[case.inputs[0][1]][0]] * case.n,
        bounds=_as_a_tree,
        scored=_broadcast(8, 100_000, 5),
        shown=_broadcast(8, 100_000, 0),
        coded=_BROADCAST,
        asks_for=("comm.bcast", "comm.Bcast", "workbench.broadcast", "workbench.torch.broadcast"),
    ),
    CommTask(
        "02.shift_right",
        "pass something round the ring without a deadlock",
        shift_right,
        cases=lambda: [_shift(n, length) for length in (1, 100_000) for n in (*_SIZES[1:], 1)],
        expected=lambda case: [case.inputs[(rank - 1) % case.n][0] for rank in range(case.n)],
        bounds=_one_step,
        scored=_shift(4, 100_000),
        shown=_shift(4, 100_000),
        coded=_SHIFT,
    ),
]
