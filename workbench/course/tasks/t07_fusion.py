"""Lesson 07, tensor fusion: what travels together, and up to which size."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from workbench.common.text import count
from workbench.course.judging.task import PlainTask, is_blank, stated

_SAME = 1e-9


def finish_time(buckets: Sequence[Sequence[float]], ready: Sequence[float], alpha: float, beta: float) -> float:
    """When the last bucket has arrived, in the model: one at a time, α + β · size each, none before it is complete.

    Args:
        buckets: the tensors' sizes, in the order in which they become ready.
        ready: for each tensor, when that is.
        alpha, beta: the time of a message, and of a unit of size.

    Example:
        >>> finish_time([[4, 4], [4]], ready=[1, 2, 3], alpha=1, beta=0.5)
        10.0
    """
    now, last = 0.0, 0
    for bucket in buckets:
        last += len(bucket)
        now = max(now, ready[last - 1]) + alpha + beta * sum(bucket)
    return now


def plan_buckets(sizes: Any, threshold: Any) -> Any:
    """Return the sizes as a list of lists, the buckets, in the same order.

    A bucket's sum is at most the threshold, unless it holds a single tensor.
    There are as few buckets as possible.
    """
    ### BEGIN SOLUTION
    buckets: list[list[int]] = []
    for size in sizes:
        if buckets and sum(buckets[-1]) + size <= threshold:
            buckets[-1].append(size)
        else:
            buckets.append([size])
    return buckets
    ### END SOLUTION


def best_threshold(sizes: Any, ready: Any, alpha: Any, beta: Any) -> Any:
    """Return a threshold with which the last bucket arrives as early as possible.

    It does at finish_time(plan_buckets(sizes, threshold), ready, alpha, beta).

    sizes, ready: of each tensor, in the order in which they become ready.
    Sizes are whole numbers.
    """
    ### BEGIN SOLUTION
    # Between two sums of neighbours the plan does not change.
    sums = {sum(sizes[i:j]) for i in range(len(sizes)) for j in range(i, len(sizes) + 1)}
    return min(sorted(sums), key=lambda one: finish_time(plan_buckets(sizes, one), ready, alpha, beta), default=0)
    ### END SOLUTION


def _plans() -> Iterator[tuple[list[int], int]]:
    """The smallest first: all sizes of up to four small tensors, then longer ones."""
    for length in range(5):
        for number in range(3**length):
            sizes = [1 + number // 3**i % 3 for i in range(length)]
            yield from ((sizes, threshold) for threshold in range(8))
    random = np.random.default_rng(7)
    for _ in range(200):
        sizes = [int(size) for size in random.integers(0, 50, random.integers(1, 30))]
        yield sizes, int(random.integers(0, 120))


def _buckets(function: Callable[..., Any], sizes: list[int], threshold: int) -> list[list[int]]:
    """What the function returns, as lists.

    Raises:
        TypeError: it is no list of lists.
    """
    given = list(sizes)
    found = function(given, threshold)
    what = f"plan_buckets({sizes}, {threshold})"
    if given != sizes:
        raise TypeError(f"{what} changes the list of sizes, which belongs to the caller")
    if found is None:
        raise TypeError(f"{what} is None. Is there a return?")
    try:
        return [[int(size) for size in bucket] for bucket in found]
    except TypeError:
        raise TypeError(f"{what} is {found!r}, and no list of lists") from None


def _all_in_order(function: Callable[..., Any]) -> str:
    """Every tensor is in a bucket, in the old order, and no bucket is empty."""
    for sizes, threshold in _plans():
        found = _buckets(function, sizes, threshold)
        if [size for bucket in found for size in bucket] != sizes:
            return f"sizes {sizes}, threshold {threshold}: your result is {found}{_not_in_order(sizes, found)}"
        if [] in found:
            return (
                f"sizes {sizes}, threshold {threshold}: your result is {found}, with an empty bucket. A bucket is made "
                "only when there is a tensor for it"
            )
    return ""


def _not_in_order(sizes: list[int], found: list[list[int]]) -> str:
    """What is wrong with these buckets, as the end of a sentence."""
    flat = [size for bucket in found for size in bucket]
    if sorted(flat) == sorted(sizes):
        return ". The sizes are all there, in another order: tensors are sent in the order in which they are ready"
    if len(flat) < len(sizes) and flat == sizes[: len(flat)]:
        return ". The last sizes are missing: is the last bucket added when the loop ends?"
    if sum(flat) == sum(sizes):
        return (
            ". A tensor was cut in pieces, or several became one number: a bucket lists whole tensors, by their sizes"
        )
    return f". Its numbers are {flat}, and the sizes are {sizes}: each size belongs into one bucket, as it is"


def _within(function: Callable[..., Any]) -> str:
    """No bucket of several tensors is over the threshold."""
    for sizes, threshold in _plans():
        for bucket in _buckets(function, sizes, threshold):
            if len(bucket) > 1 and sum(bucket) > threshold:
                return (
                    f"sizes {sizes}, threshold {threshold}: your result has the bucket {bucket}, together {sum(bucket)}"
                )
    return ""


def _few(function: Callable[..., Any]) -> str:
    """There are as few buckets as possible."""
    for sizes, threshold in _plans():
        yours, best = _buckets(function, sizes, threshold), plan_buckets(sizes, threshold)
        if len(yours) > len(best):
            return (
                f"sizes {sizes}, threshold {threshold}: your result has {len(yours)} buckets, {yours}, "
                f"expected {len(best)}, such as {best}"
            )
    return ""


def _settings(seed: int, rounds: int) -> Iterator[tuple[list[int], list[float], float, float]]:
    """Tensors, when they are ready, and a network; all numbers small, the fewest tensors first."""
    random = np.random.default_rng(seed)
    for number in range(rounds):
        tensors = 1 + number * 8 // rounds
        sizes = [int(size) for size in random.integers(1, 10, tensors)]
        ready = np.cumsum(random.integers(0, 6, tensors)).tolist()
        yield sizes, [float(one) for one in ready], float(random.integers(0, 6)), float(random.integers(1, 5)) / 4


Plan = Callable[[Any, Any], Any]


def _plan_of(function: Callable[..., Any]) -> Plan:
    """The learner's own plan_buckets, which the function calls, if it is right: more than one plan is. Else ours."""
    theirs = getattr(function, "__globals__", {}).get(plan_buckets.__name__)
    if not callable(theirs) or is_blank(theirs):
        return plan_buckets
    try:
        right = not any(holds(theirs) for holds in (_all_in_order, _within, _few))
    except Exception:  # noqa: BLE001 - the learner's
        return plan_buckets
    return theirs if right else plan_buckets


def _worse(function: Callable[..., Any], settings: Iterator[tuple[list[int], list[float], float, float]]) -> str:
    """The first setting in which another threshold is better than the one that the function finds."""
    plan = _plan_of(function)
    return next((wrong for setting in settings if (wrong := _worse_in(function, plan, setting))), "")


def _worse_in(function: Callable[..., Any], plan: Plan, setting: tuple[list[int], list[float], float, float]) -> str:
    sizes, ready, alpha, beta = setting
    yours = function(list(sizes), list(ready), alpha, beta)
    words = f"sizes {sizes}, ready {ready}, α = {alpha}, β = {beta}"
    if not isinstance(yours, (int, float, np.number)) or isinstance(yours, bool):
        return f"{words}: your result is {yours!r}. " + (
            "Is there a return?" if yours is None else "A threshold is one number: which sum may a bucket reach?"
        )
    times = {one: finish_time(plan(list(sizes), one), ready, alpha, beta) for one in range(sum(sizes) + 1)}
    best = min(times, key=lambda one: times[one])
    mine = finish_time(plan(list(sizes), yours), ready, alpha, beta)
    if mine <= times[best] + _SAME:
        return ""
    why = "as many, but cut at other tensors: is that threshold among those that you try?"
    sent, better = (len(plan(list(sizes), one)) for one in (yours, best))
    if sent != better:
        why = "the first ones wait for later tensors" if sent < better else "each of them pays α"
    return (
        f"{words}: with your threshold {yours} it ends at {mine:g}, with {best} at {times[best]:g}. Your threshold "
        f"sends {count(sent, 'message')}, that one {better}: {why}"
    )


_FINE = [  # one threshold alone is best, and sums are some 3,000
    ([811, 626, 723, 640, 796, 257, 606], [575, 996, 1481, 2136, 2558, 2878, 3450], 267, 0.5),
    ([215, 851, 696, 318, 420, 226, 787], [396, 796, 1362, 1784, 2087, 2359, 3011], 406, 0.75),
    ([454, 581, 608, 297, 750, 483, 551], [423, 678, 1336, 1351, 1962, 2487, 2537], 196, 0.75),
    ([573, 422, 548, 659, 407, 218, 406], [277, 463, 1108, 1169, 1864, 1962, 2154], 186, 0.25),
    ([584, 216, 378, 711, 430, 504, 243], [118, 586, 794, 1046, 1616, 1626, 2079], 494, 0.5),
]


def _one_threshold_alone(function: Callable[..., Any]) -> str:
    """Also with large sizes, where one threshold alone is best."""
    settings = ((sizes, [float(at) for at in ready], float(alpha), beta) for sizes, ready, alpha, beta in _FINE)
    wrong = _worse(function, settings)
    return f"{wrong}. Do you try only some of the thresholds? The plan changes at sums of neighbours" if wrong else ""


_PROBES = [
    ([3, 1, 2, 2, 5, 1], 4),
    ([1, 1], 2),
    ([2, 7, 1, 1, 1], 3),
    ([1, 2, 3], 6),
    ([4, 1, 3, 1, 1, 2], 5),
    ([1, 1, 1, 1, 1], 3),
    ([5, 6], 4),
    ([2, 1, 2, 1], 3),
]

TASKS = [
    PlainTask(
        "07.plan_buckets",
        "pack small tensors up to a threshold",
        plan_buckets,
        probes=lambda: _PROBES,
        properties=[_all_in_order, _within, _few],
    ),
    PlainTask(
        "07.best_threshold",
        "the threshold with which the last bucket arrives first",
        best_threshold,
        properties=[
            *stated(
                (
                    "All tensors ready at once: one message for all is best.",
                    lambda f: _worse(
                        f, ((sizes, [0.0] * len(sizes), alpha, beta) for sizes, _, alpha, beta in _settings(1, 60))
                    ),
                ),
                (
                    "Without latency: nothing has to wait for anything else.",
                    lambda f: _worse(f, ((sizes, ready, 0.0, beta) for sizes, ready, _, beta in _settings(2, 60))),
                ),
                (
                    "As early as with the best of all thresholds, in 400 settings.",
                    lambda f: _worse(f, _settings(3, 400)),
                ),
            ),
            _one_threshold_alone,
        ],
        points=2,
    ),
]
