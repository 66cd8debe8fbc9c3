"""Lesson 04, parallel SGD: the mean over uneven shards, one step of it, and how stale gradients get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from workbench.course.judging.task import Bound, Case, CommTask, PlainTask, stated
from workbench.course.provenance.weights import Weighed
from workbench.course.simulator import Run

Array = np.ndarray[Any, Any]


def average_gradients(comm: Any, total: Any, count: Any) -> Any:
    """Return the mean gradient over all samples of all ranks, on every rank.

    total: the SUM of the gradients of this rank's own samples.
    count: the number of these samples; on some ranks it may be 0.
    Gradients are large: add them up on the way, so that no rank gets those of all ranks.
    """
    ### BEGIN SOLUTION
    return comm.allreduce(total) / comm.allreduce(count)
    ### END SOLUTION


def _counted(*counts: int, length: int = 6) -> Case:
    random = np.random.default_rng([len(counts), *counts])
    totals = [random.integers(-9, 10, (count, length)).sum(axis=0).astype(float) for count in counts]
    return Case(len(counts), f"counts {', '.join(map(str, counts))}", list(zip(totals, counts, strict=True)))


def _average_cases() -> list[Case]:
    shards = ((3,), (4, 4), (1, 3), (5, 0), (2, 1, 4), (0, 0, 2), (2, 2, 2, 2), (0, 7, 1, 3), (3, 2, 2, 2, 2, 2, 2))
    return [_counted(*counts) for counts in shards]


def _mean(case: Case) -> Array:
    return np.array(sum(total for total, _ in case.inputs) / sum(count for _, count in case.inputs))


def _no_lists(case: Case, run: Run) -> Sequence[Bound]:
    """Any way to add up passes, even everybody to everybody; gathering all gradients everywhere does not."""
    nbytes = case.inputs[0][0].nbytes
    return [
        Bound.busiest(
            run,
            2 * (case.n - 1) / case.n * nbytes,
            case.n * nbytes,
            "Add up on the way, so that no rank gets all gradients",
        )
    ]


_WEIGHED = Weighed(
    counts=lambda case: [count for _, count in case.inputs],
    ones=lambda case, rank: [
        (np.full_like(total, float(count) if one == rank else 0.0), count)
        for one, (total, count) in enumerate(case.inputs)
    ],
)


def sgd_step(comm: Any, w: Any, x: Any, y: Any, lr: Any) -> Any:
    """Return the weights after one step of gradient descent on the samples of all ranks.

    w: the weights, equal on all ranks. lr: the learning rate.
    x, y: this rank's own samples, one in each row of x; on some ranks there may be none.
    The loss is the mean over all ranks' samples of (x @ w - y)² / 2, so the gradient of
    one sample is (x @ w - y) x. Every rank must return the same bits.
    """
    ### BEGIN SOLUTION
    total = comm.allreduce(x.T @ (x @ w - y))
    count = comm.allreduce(len(y))
    return w - lr * total / count
    ### END SOLUTION


def _samples(*counts: int) -> Case:
    random = np.random.default_rng([len(counts), *counts])
    weights = random.normal(size=3)
    inputs = [(weights.copy(), random.normal(size=(count, 3)), random.normal(size=count), 0.3) for count in counts]
    return Case(len(counts), f"samples {', '.join(map(str, counts))}", inputs)


def _sgd_cases() -> list[Case]:
    return [_samples(*counts) for counts in ((4,), (2, 2), (3, 1), (0, 2), (2, 2, 2), (5, 0, 3, 1), (2,) * 7)]


def _serial_step(case: Case) -> Array:
    w, _, _, lr = case.inputs[0]
    x, y = np.concatenate([one[1] for one in case.inputs]), np.concatenate([one[2] for one in case.inputs])
    return np.array(w - lr * x.T @ (x @ w - y) / len(y))


def _ones(case: Case, rank: int) -> list[tuple[Any, ...]]:
    """Weights of 0, and samples whose gradient is 1 on that rank and 0 on the others; the rate is 1."""
    return [
        (w * 0.0, x * 0.0 + 1.0, y * 0.0 - (1.0 if one == rank else 0.0), 1.0)
        for one, (w, x, y, _) in enumerate(case.inputs)
    ]


_STEP_WEIGHED = Weighed(
    counts=lambda case: [len(y) for _, _, y, _ in case.inputs], ones=_ones, read=lambda result: -result
)


def _same_bits(case: Case, run: Run) -> Sequence[Bound]:
    first = np.asarray(run.results[0]).tobytes()
    others = sum(np.asarray(one).tobytes() != first for one in run.results)
    what = "ranks with other bits than rank 0 (sums in another order)"
    return [Bound.none(what, others, "Let all take the result of one sum")]


def stale(order: Any) -> Any:
    """Return the staleness of every gradient that reached an asynchronous server.

    order: the worker of each gradient, as they came: [0, 1, 0] is one of worker 0, one of
    worker 1, and again one of worker 0.
    At the beginning every worker gets the first weights. Each gradient changes the weights
    at once, and its worker gets the new ones. The staleness of a gradient is how many
    times the weights have changed since its worker got them. Return a list, one number for
    each gradient.
    """
    ### BEGIN SOLUTION
    got = dict.fromkeys(order, 0)
    found = []
    for update, worker in enumerate(order):
        found.append(update - got[worker])
        got[worker] = update + 1
    return found
    ### END SOLUTION


def _told(function: Callable[..., Any], order: list[int]) -> str:
    wanted = []
    for i, worker in enumerate(order):
        before = [j for j in range(i) if order[j] == worker]
        wanted.append(i - before[-1] - 1 if before else i)
    yours = function(list(order))
    if yours is None:
        return f"order {order}: your result is None. Is there a return?"
    if not hasattr(yours, "__iter__"):
        return f"order {order}: your result is {yours!r}. A list is asked for, with one number for each gradient"
    yours = [int(one) for one in yours]
    if yours == wanted:
        return ""
    return f"order {order}: your result is {yours}, expected {wanted}"


_TELLING = [[0, 0], [0, 1, 0, 1], [1, 0, 0, 1, 1, 0], [0, 1, 1, 1, 2, 0], [2, 0, 1, 2, 2, 1, 0, 0]]


def any_order(function: Callable[..., Any]) -> str:
    """Any order, 200 of them."""
    random = np.random.default_rng(4)
    orders = sorted((random.integers(0, 4, random.integers(1, 12)).tolist() for _ in range(200)), key=len)
    return next((wrong for order in orders if (wrong := _told(function, order))), "")


TASKS = [
    CommTask(
        "04.average_gradients",
        "the mean gradient over uneven shards",
        average_gradients,
        cases=_average_cases,
        expected=lambda case: [_mean(case)] * case.n,
        bounds=_no_lists,
        scored=_counted(3, 0, 2, 4, length=10_000),
        shown=_counted(3, 0, 2, 4, length=10_000),
        weighed=_WEIGHED,
    ),
    CommTask(
        "04.sgd_step",
        "one step on n ranks is one step on one",
        sgd_step,
        cases=_sgd_cases,
        expected=lambda case: [_serial_step(case)] * case.n,
        bounds=_same_bits,
        scored=_samples(3, 3, 3, 3, 3, 3, 3),
        shown=_samples(5, 0, 3, 1),
        weighed=_STEP_WEIGHED,
        start=lambda case: case.inputs[0][0],
        points=2,
    ),
    PlainTask(
        "04.stale",
        "how stale are the gradients?",
        stale,
        probes=lambda: [(one,) for one in (*_TELLING, [0, 0, 0], [1, 2, 3, 3])],
        properties=[
            *stated(
                (
                    "One worker is never stale.",
                    lambda f: next((wrong for n in range(4) if (wrong := _told(f, [0] * n))), ""),
                ),
                (
                    "Workers of one speed: after the first round, as stale as there are other workers.",
                    lambda f: next((wrong for n in (2, 3, 5) if (wrong := _told(f, list(range(n)) * 2))), ""),
                ),
                ("Workers may have any numbers.", lambda f: _told(f, [7, 99, 7, 7, 12, 99])),
            ),
            any_order,
        ],
    ),
]
