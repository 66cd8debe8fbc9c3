"""Lesson 19, second half: a gradient sent as two factors, and the part that they leave out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from workbench.course.judging.task import Bound, Case, CommTask
from workbench.course.simulator import Run

Array = np.ndarray[Any, Any]


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


def _project(sent: Sequence[Array], p: Array) -> list[Any]:
    """By rank the averaged gradient and the error, with this p."""
    average = p @ np.mean([one.T @ p for one in sent], axis=0).T
    return [(average, one - p @ (one.T @ p).T) for one in sent]


def _orthonormal(p: Array) -> Array:
    return np.array(np.linalg.qr(p)[0])


def _right(case: Case) -> list[Any]:
    sent, q = [gradient + error for gradient, error, _ in case.inputs], case.inputs[0][2]
    return _project(sent, _orthonormal(np.mean(sent, axis=0) @ q))


def _other_rounds(case: Case) -> Iterator[tuple[list[Any], str]]:
    """What else one may return."""
    gradients, q, n = [one[0] for one in case.inputs], case.inputs[0][2], case.n
    sent = [gradient + error for gradient, error, _ in case.inputs]
    right = _right(case)
    basis = _orthonormal(np.mean(sent, axis=0) @ q)
    plain = _project(gradients, _orthonormal(np.mean(gradients, axis=0) @ q))
    yield plain, "what was left out before is never sent: add the error to the gradient"
    less = [gradient - error for gradient, error, _ in case.inputs]
    yield _project(less, _orthonormal(np.mean(less, axis=0) @ q)), "the error is added, not taken off"
    yield (
        [(average, error - left) for (average, error), (_, left, _) in zip(right, case.inputs, strict=True)],
        "the new error is measured from the gradient: take gradient + error, because that is what is sent",
    )
    zeros = np.zeros_like(sent[0])
    for found in (right, plain):
        yield [(average, zeros) for average, _ in found], "the new error is lost: return what p cannot express"
    yield (
        [(average, one - average) for (average, _), one in zip(right, sent, strict=True)],
        "the error is measured from the average, so it also holds how this rank differs from the others. Each rank's "
        "own part outside of p is asked for",
    )
    own = [_orthonormal(one @ q) for one in sent]
    yield _project(sent, np.mean(own, axis=0)), "p was made orthonormal before it was averaged: average first"
    yield (
        [(p @ (one.T @ p).T, one - p @ (one.T @ p).T) for one, p in zip(sent, own, strict=True)],
        "each rank has a p and a q of its own: nothing was averaged",
    )
    shared = np.mean([one.T @ p for one, p in zip(sent, own, strict=True)], axis=0)
    yield (
        [(p @ shared.T, one - p @ (one.T @ p).T) for one, p in zip(sent, own, strict=True)],
        "each rank has a p of its own: average sent @ q before it is made orthonormal",
    )
    yield (
        [(basis @ (one.T @ basis).T, one - basis @ (one.T @ basis).T) for one in sent],
        "the second factor was not averaged: each rank returns its own gradient",
    )
    yield _project(sent, np.mean(sent, axis=0) @ q), "p is not orthonormal: np.linalg.qr(p)[0] makes it so"
    yield [(n * average, error) for average, error in right], "the second factor was added up: divide by comm.size"
    exact = np.mean(sent, axis=0)
    yield [(exact, zeros)] * n, "the whole matrices were averaged, and nothing was compressed"
    for left in (right, [(exact, one - exact) for one in sent]):
        whole = [(exact, error) for _, error in left]
        yield whole, "that is the whole average: two factors have to do, p @ q.T"


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
        (
            "Two sums over the ranks: of (m, r), then of (n, r). Each rank computes everything else alone.",
            "The order counts: average first, then np.linalg.qr. Keep this rank's own sent.T @ p for its error, and "
            "average a copy of it for q.",
            "sent = gradient + error; p = np.linalg.qr(comm.allreduce(sent @ q) / comm.size)[0]; mine = sent.T @ p; "
            "q = comm.allreduce(mine) / comm.size; return p @ q.T, sent - p @ mine.T",
        ),
        cases=lambda: [
            *(_matrices(n, (4, 3), 1, errors=False) for n in (1, 2)),
            *(_matrices(n, shape, rank) for shape, rank in (((4, 3), 1), ((6, 5), 2)) for n in (1, 2, 3, 4)),
        ],
        expected=_right,
        names=("the average", "the error"),
        likely=_other_rounds,
        bounds=_two_factors,
        scored=_matrices(4, (60, 50), 2),
        shown=_matrices(4, (60, 50), 2),
        points=2,
    )
]
