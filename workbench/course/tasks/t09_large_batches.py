"""Lesson 09, large batches: the learning rate of every step, and who gets which part of a batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np

from workbench.course.judging.ratio import Factor, of_numbers
from workbench.course.judging.task import PlainTask, stated

_DROPS = (30, 60, 80)


def learning_rate(step: Any, base: Any, n: Any, steps_per_epoch: Any, warmup_epochs: Any, drops: Any) -> Any:
    """Return the learning rate of a step (0, 1, 2 …) on n ranks.

    Warm-up: in the first warmup_epochs epochs it grows by the same amount in every step,
    from base in step 0 to n * base in the first step after the warm-up.
    From then on it is n * base, times 0.1 for each epoch in drops that has begun.
    Epoch 30 begins with step 30 * steps_per_epoch.
    No epoch in drops lies in the warm-up. warmup_epochs may be 0.
    """
    ### BEGIN SOLUTION
    warmup_steps = warmup_epochs * steps_per_epoch
    if step < warmup_steps:
        return base * (1 + (n - 1) * step / warmup_steps)
    begun = sum(step >= epoch * steps_per_epoch for epoch in drops)
    return base * n * 0.1**begun
    ### END SOLUTION


def local_batches(global_batch: Any, n: Any) -> Any:
    """Return (sizes, weights), two lists with one item per rank.

    sizes: the local batches. They add up to global_batch and differ by one at most,
    the larger ones first.
    weights: each rank has the gradient of the mean loss over its own samples.
    The sum over the ranks of weights[rank] * gradient is to be
    the gradient of the mean loss over the whole global batch.
    """
    ### BEGIN SOLUTION
    sizes = [global_batch // n + (rank < global_batch % n) for rank in range(n)]
    return sizes, [size / global_batch for size in sizes]
    ### END SOLUTION


# --- 09.learning_rate -------------------------------------------------------------------------------------


_FACTORS = (
    Factor("one n-th of", lambda case: 1 / case.n, "the rate was not multiplied by the number of ranks"),
    Factor("n times", lambda case: case.n, "the rate was multiplied by the number of ranks twice"),
)
_DROPPED = (
    (10.0, "ten times as much: the last drop that has begun is missing"),
    (0.1, "a tenth: one drop too many. Drops are epochs, and epoch e begins with step e * steps_per_epoch"),
)


def _rates(function: Callable[..., Any], cases: Sequence[tuple[Any, ...]]) -> str:
    for case in cases:
        mine, wanted = function(*case), learning_rate(*case)
        if not isinstance(mine, (int, float, np.number)) or not math.isclose(float(mine), wanted, rel_tol=1e-9):
            step, base, n, steps_per_epoch, warmup_epochs, drops = case
            about = f"step {step}, base {base:g}, n = {n}, {steps_per_epoch} steps per epoch"
            about += f", {warmup_epochs} epochs of warm-up, drops {drops}"
            told = f"{mine:.6g}" if isinstance(mine, (int, float, np.number)) else repr(mine)
            answers = [(one[2], function(*one), learning_rate(*one)) for one in cases]
            factor = ". Is there a return?" if mine is None else of_numbers(answers, _FACTORS)
            factor = factor or _drop(mine, wanted)
            return f"{about}: your result is {told}, expected {wanted:.6g}{factor}"
    return ""


_TELLING = [
    (step, 0.1, n, 7, 5, _DROPS) for n in (4, 2) for step in (0, 1, 20, 34, 35, 209, 210, 211, 217, 245, 420, 630)
]


def _drop(mine: Any, wanted: float) -> str:
    """Is it a drop too few or too many?"""
    if not isinstance(mine, (int, float, np.number)):
        return ""
    return next((f". That is {why}" for k, why in _DROPPED if math.isclose(float(mine), k * wanted, rel_tol=1e-9)), "")


def falls(function: Callable[..., Any]) -> str:
    """It falls to a tenth with the first step of each epoch in drops."""
    steps = [epoch * 7 + i for epoch in _DROPS for i in (-1, 0, 1)]
    return _rates(function, [(step, 0.1, 4, 7, 5, _DROPS) for step in steps])


def any_schedule(function: Callable[..., Any]) -> str:
    """Any other schedule, too."""
    schedules = product((0.05, 0.8), (1, 3, 64), (1, 9), (1, 3), ((), (4,), (3, 5)))
    return _rates(function, [(step, *schedule) for schedule in schedules for step in range(60)])


# --- 09.local_batches -------------------------------------------------------------------------------------

_CASES = [(8, 1), (8, 2), (9, 2), (10, 4), (11, 4), (7, 3), (100, 7), (1797, 8), (2, 3), (3, 8)]


def _batches(function: Callable[..., Any], global_batch: int, n: int) -> tuple[list[int], list[float], str]:
    """The learner's sizes and weights, or what is wrong with their form."""
    mine, about = function(global_batch, n), f"global batch {global_batch}, n = {n}"
    if not isinstance(mine, (tuple, list)) or len(mine) != 2:
        return [], [], f"{about}: your result is {mine!r}. Two lists are asked for: the sizes, and the weights"
    sizes, weights = list(mine[0]), list(mine[1])
    if len(sizes) != n or len(weights) != n:
        return [], [], f"{about}: your result has {len(sizes)} sizes and {len(weights)} weights, expected {n} of each"
    return sizes, weights, ""


def _sizes(function: Callable[..., Any], cases: Sequence[tuple[int, int]]) -> str:
    for global_batch, n in cases:
        sizes, _, wrong = _batches(function, global_batch, n)
        wanted = local_batches(global_batch, n)[0]
        if not wrong and sizes != wanted:
            why = _why(sizes, wanted)
            wrong = f"global batch {global_batch}, n = {n}: your sizes {sizes}, expected {wanted}{why}"
        if wrong:
            return wrong
    return ""


def _why(sizes: list[int], wanted: list[int]) -> str:
    if sum(sizes) != sum(wanted):
        what = "samples that are left over have no rank" if sum(sizes) < sum(wanted) else "some samples have two ranks"
        return f". The sum of your sizes is {sum(sizes)}, and not {sum(wanted)}: {what}"
    return ". The same sizes, but the first ranks have the larger ones" if sorted(sizes) == sorted(wanted) else ""


def same_gradient(function: Callable[..., Any]) -> str:
    """The weighted sum of the ranks' gradients is that of the whole batch."""
    for global_batch, n in _CASES:
        sizes, weights, wrong = _batches(function, global_batch, n)
        if wrong:
            return wrong
        samples = np.random.default_rng([global_batch, n]).integers(0, 10, global_batch).astype(float)
        # The loss of one sample is (w - x)² / 2, at w = 0: its gradient is -x, that of a mean is the mean of those.
        parts = np.split(samples, np.cumsum(sizes)[:-1])
        gradients = [-part.mean() if len(part) else 0.0 for part in parts]
        told, wanted = float(sum(w * g for w, g in zip(weights, gradients, strict=True))), float(-samples.mean())
        if not math.isclose(told, wanted, rel_tol=1e-9, abs_tol=1e-12) or not math.isclose(sum(weights), 1.0):
            listed = ", ".join(f"{float(weight):.4g}" for weight in weights)
            total = float(sum(weights))
            ones = (
                "" if math.isclose(total, 1.0) else f". Your weights add up to {total:.4g}; those of a mean add up to 1"
            )
            return (
                f"global batch {global_batch}, n = {n}, weights [{listed}]: the sum is {told:.6g}, "
                f"the gradient of the whole batch {wanted:.6g}{ones}"
            )
    return ""


TASKS = [
    PlainTask(
        "09.learning_rate",
        "linear scaling, warm-up, staircase",
        learning_rate,
        probes=lambda: _TELLING,
        properties=[
            *stated(
                (
                    "After the warm-up, n ranks have n times the learning rate of one.",
                    lambda f: _rates(f, [(step, 0.1, n, 10, 5, _DROPS) for n in (1, 2, 8) for step in (50, 51, 299)]),
                ),
                (
                    "The warm-up begins at base, and grows in every step, not in every epoch.",
                    lambda f: _rates(
                        f, [(step, 0.1, n, 10, 5, _DROPS) for n in (2, 8, 1) for step in (0, 1, 10, 25, 49, 50)]
                    ),
                ),
            ),
            falls,
            *stated(
                (
                    "Without a warm-up it is n times base from the first step on.",
                    lambda f: _rates(
                        f, [(step, 0.1, 4, 10, 0, drops) for drops in ((), (3,)) for step in (0, 1, 29, 30, 31)]
                    ),
                )
            ),
            any_schedule,
        ],
        points=2,
    ),
    PlainTask(
        "09.local_batches",
        "a global batch for n ranks",
        local_batches,
        probes=lambda: _CASES,
        properties=[
            *stated(
                (
                    "Equal parts, where the global batch can be divided.",
                    lambda f: _sizes(f, [(global_batch, n) for global_batch, n in _CASES if global_batch % n == 0]),
                ),
                ("Else the first ranks have one sample more, and none is lost.", lambda f: _sizes(f, _CASES)),
            ),
            same_gradient,
        ],
    ),
]
