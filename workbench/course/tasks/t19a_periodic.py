"""Lesson 19, first half: steps without communication, and what is done with their sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.course.judging.task import Bound, Case, CommTask
from workbench.course.simulator import Run

Array = np.ndarray[Any, Any]


def local_sgd(comm: Any, w: Any, batches: Any, lr: Any, every: Any) -> Any:
    """Return the weights after local SGD over this rank's batches: the same on every rank.

    w: the weights, equal on all ranks. batches: pairs x, y; all ranks have equally many. A batch's gradient is
    x.T @ (x @ w - y) / len(y). Each rank steps alone; after every `every` steps the ranks average their weights, and
    at the end once more if there have been steps since. An average is one sum; no rank gets all ranks' weights.
    """
    ### BEGIN SOLUTION
    for step, (x, y) in enumerate(batches, 1):
        w = w - lr * x.T @ (x @ w - y) / len(y)
        if step % every == 0 or step == len(batches):
            w = comm.allreduce(w) / comm.size
    return w
    ### END SOLUTION


def _regression(n: int, steps: int, every: int, length: int = 3) -> Case:
    random = np.random.default_rng([n, steps, every])
    weights = random.normal(size=length)
    inputs = [
        (weights.copy(), [(random.normal(size=(4, length)), random.normal(size=4)) for _ in range(steps)], 0.1, every)
        for _ in range(n)
    ]
    return Case(n, f"{steps} steps, an average every {every}", inputs)


def _step(w: Array, batch: tuple[Array, Array], lr: float) -> Array:
    x, y = batch
    return np.array(w - lr * x.T @ (x @ w - y) / len(y))


def _trained(case: Case) -> list[Array]:
    ws = [w for w, *_ in case.inputs]
    for step in range(1, len(case.inputs[0][1]) + 1):
        ws = [_step(w, batches[step - 1], lr) for w, (_, batches, lr, _) in zip(ws, case.inputs, strict=True)]
        if step in _exchanges(case):
            ws = [sum(ws) / case.n] * case.n
    return ws


def _exchanges(case: Case) -> set[int]:
    _, batches, _, every = case.inputs[0]
    return {*range(every, len(batches) + 1, every), len(batches)}


def _few_exchanges(case: Case, run: Run) -> Sequence[Bound]:
    """Any way to add up passes, even everybody to everybody; one exchange in each step does not."""
    exchanges, nbytes = len(_exchanges(case)), case.inputs[0][0].nbytes
    best = exchanges * 2 * (case.n - 1) / case.n * nbytes
    return [Bound.busiest(run, best, exchanges * case.n * nbytes, "One sum of w travels when an average is due")]


def outer_step(comm: Any, start: Any, w: Any, velocity: Any, lr: Any, momentum: Any) -> Any:
    """Return the new start and the new velocity after DiLoCo's outer step: the same on every rank.

    start: the weights that all ranks began with; w: what this rank's own steps have made of them. The change
    start - w, averaged over the ranks, is the outer gradient g. Nesterov's momentum: velocity becomes
    momentum * velocity + g, and the step is lr * (g + momentum * velocity) with that new velocity. One sum is all that
    has to travel.
    """
    ### BEGIN SOLUTION
    change = comm.allreduce(start - w) / comm.size
    velocity = momentum * velocity + change
    return start - lr * (change + momentum * velocity), velocity
    ### END SOLUTION


def _round(n: int, length: int) -> Case:
    random = np.random.default_rng([n, length, 19])
    start, velocity = random.normal(size=length), random.normal(size=length)
    ws = [start + 0.3 * random.normal(size=length) for _ in range(n)]
    return Case(n, f"length {length}", [(start.copy(), w, velocity.copy(), 0.7, 0.9) for w in ws])


def _outer(case: Case) -> list[Any]:
    start, _, velocity, lr, momentum = case.inputs[0]
    change = np.mean([start - w for start, w, *_ in case.inputs], axis=0)
    new = momentum * velocity + change
    return [(start - lr * (change + momentum * new), new)] * case.n


def _one_average(case: Case, run: Run) -> Sequence[Bound]:
    nbytes = case.inputs[0][0].nbytes
    return [
        Bound.busiest(run, 2 * (case.n - 1) / case.n * nbytes, case.n * nbytes, "One sum of the changes has to travel")
    ]


TASKS = [
    CommTask(
        "19.local_sgd",
        "average the weights every so many steps",
        local_sgd,
        cases=lambda: [
            _regression(n, steps, every)
            for steps, every in ((1, 1), (4, 2), (7, 3), (5, 1), (3, 8))
            for n in (1, 2, 3, 4, 7)[: 5 if steps == 7 else 4]
        ],
        expected=_trained,
        bounds=_few_exchanges,
        scored=_regression(4, 14, 4, 1000),
        shown=_regression(4, 6, 3),
    ),
    CommTask(
        "19.outer_step",
        "the ranks' change is a gradient",
        outer_step,
        cases=lambda: [_round(n, length) for length in (1, 5) for n in (1, 2, 3, 4)],
        expected=_outer,
        names=("w", "the velocity"),
        bounds=_one_average,
        scored=_round(4, 10_000),
        shown=_round(4, 1000),
    ),
]
