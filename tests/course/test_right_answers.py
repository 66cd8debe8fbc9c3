"""Right answers that are unlike the reference solution pass; so do some that a check once refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from judged import exercises
from right_answers import right_answers

from workbench.course.judging import judge
from workbench.course.tasks import task

BEST = """
def best_threshold(sizes, ready, alpha, beta):
    return min(range(sum(sizes) + 1), key=lambda one: finish_time(plan_buckets(sizes, one), ready, alpha, beta))
"""
FROM_THE_END = """
def plan_buckets(sizes, threshold):
    buckets = []
    for size in reversed(sizes):
        if buckets and sum(buckets[0]) + size <= threshold:
            buckets[0].insert(0, size)
        else:
            buckets.insert(0, [size])
    return buckets
"""
ONE_TOO_MANY = """
def plan_buckets(sizes, threshold):
    return [[size] for size in sizes]
"""


def verdict(name: str, function: Callable[..., Any]) -> list[str]:
    """The names and words of the stages that are red."""
    return [f"{stage.name}: {stage.text}" for stage in judge.judge(task(name), function) if stage.passed is False]


def in_a_notebook(*cells: str) -> dict[str, Any]:
    """The names after some cells, as a kernel has them."""
    from workbench.course.tasks.t07_fusion import finish_time

    names: dict[str, Any] = {"finish_time": finish_time}
    for cell in cells:
        exec(cell, names)
    return names


def test_the_best_threshold_of_ones_own_plan() -> None:
    """Who packs from the end has as few buckets as possible, and the best threshold of that plan is right."""
    names = in_a_notebook(FROM_THE_END, BEST)
    assert verdict("07.plan_buckets", names["plan_buckets"]) == []
    assert verdict("07.best_threshold", names["best_threshold"]) == []


def test_a_wrong_plan_does_not_make_a_threshold_right() -> None:
    """A plan that packs nothing makes every threshold the best: then the reference's plan counts."""
    names = in_a_notebook(ONE_TOO_MANY, BEST)
    assert verdict("07.plan_buckets", names["plan_buckets"])
    assert verdict("07.best_threshold", names["best_threshold"])


RIGHT = right_answers()


@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", exercises())
def test_other_ways_are_right(name: str) -> None:
    """Of four at least, none with the official one's code, every stage is green, or left out for want of real ranks."""
    answers = [answer for other, answer in RIGHT if other == name]
    assert len(answers) >= 4
    official = task(name).reference.__code__
    for answer in answers:
        mine = answer.__code__
        assert (mine.co_code, mine.co_consts[1:]) != (official.co_code, official.co_consts[1:]), answer.__name__
        assert verdict(name, answer) == [], answer.__name__
