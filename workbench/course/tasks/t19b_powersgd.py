"""Lesson 19, second half: a gradient sent as two factors, and the part that they leave out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.course.judging.task import Bound, Case, CommTask
from workbench.course.simulator import Run


def powersgd(comm: Any, gradient: Any, error: Any, q: Any) -> Any:
    """Return the ranks' averaged gradient, as PowerSGD approximates it, and this rank's new error.

    gradient, error: this rank's, of shape (m, n); what is sent is their sum. q: (n, r), the same on every rank.
    First round: p is the average of (what is sent) @ q, then made orthonormal by np.linalg.qr(p)[0].
    Second round: the new q is the average of (what is sent).T @ p. The averaged gradient is p @ (new q).T.
    The error is what p cannot express of what this rank sends: that, minus p @ p.T @ that.
    """
    ### BEGIN SOLUTION
    sent = gradient + error
    p = np.linalg.qr(comm.allreduce(sent @ q) / comm.size)[0]
    mine = sent.T @ p
    q = comm.allreduce(mine) / comm.size
    return p @ q.T, sent - p @ mine.T
    ### END SOLUTION


def _matrices(n: int, shape: tuple[int, int], rank: int, errors: bool = True) -> Case:
    random = np.random.default_rng([n, *shape, rank])
    q = random.normal(size=(shape[1], rank))
    inputs = [
        (random.normal(size=shape), errors * random.normal(size=shape) * (1 + each), q.copy()) for each in range(n)
    ]
    before = "" if errors else ", nothing left out before"
    return Case(n, f"{shape[0]} x {shape[1]} by rank {rank}{before}", inputs)


def _right(case: Case) -> list[Any]:
    sent, q = [gradient + error for gradient, error, _ in case.inputs], case.inputs[0][2]
    p = np.linalg.qr(np.mean(sent, axis=0) @ q)[0]
    average = p @ np.mean([one.T @ p for one in sent], axis=0).T
    return [(average, one - p @ (one.T @ p).T) for one in sent]


def _two_factors(case: Case, run: Run) -> Sequence[Bound]:
    """Two factors are sent; to send the whole matrix is no compression."""
    (m, n), rank = case.inputs[0][0].shape, case.inputs[0][2].shape[1]
    nbytes = 8 * rank * (m + n)
    return [
        Bound.busiest(
            run, 2 * (case.n - 1) / case.n * nbytes, case.n * nbytes, "Only the two thin matrices must be sent"
        )
    ]


TASKS = [
    CommTask(
        "19.powersgd",
        "one round of PowerSGD, with error feedback",
        powersgd,
        cases=lambda: [
            *(_matrices(n, (4, 3), 1, errors=False) for n in (1, 2)),
            *(_matrices(n, shape, rank) for shape, rank in (((4, 3), 1), ((6, 5), 2)) for n in (1, 2, 3, 4)),
        ],
        expected=_right,
        names=("the average", "the error"),
        bounds=_two_factors,
        scored=_matrices(4, (60, 50), 2),
        shown=_matrices(4, (60, 50), 2),
        points=2,
    )
]
