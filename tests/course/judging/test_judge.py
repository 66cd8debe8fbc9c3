"""The judge, with values that a comparison may let pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from judged import exercises
from thorough import once_more

from workbench.course.judging.judge import judge
from workbench.course.judging.recognise import same
from workbench.course.judging.task import CommTask
from workbench.course.tasks import names, task

VALUES = (math.nan, 0.0)
MORE = (math.inf, -math.inf)
TEXTS = {"06.in_order", "17.table", "17.discover", "21.ready", "22.batch_script"}
"""Exercises whose results have no number in them."""


def with_numbers(value: Any, number: float) -> Any:
    """The same lists, tuples, dicts and arrays, with this number in the place of each."""
    if isinstance(value, dict):
        return {key: with_numbers(one, number) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)([with_numbers(one, number) for one in value])
    if hasattr(value, "shape"):  # numpy's or torch's
        return np.full(value.shape, number)
    return number if isinstance(value, (int, float, np.number)) and not isinstance(value, bool) else value


def answers(name: str, values: tuple[float, ...]) -> list[tuple[str, Callable[..., Any]]]:
    """Functions that return one of the values, the right result with it for its numbers, or an argument."""
    reference = task(name).reference
    found: list[tuple[str, Callable[..., Any]]] = []
    for number in values:
        found.append((f"returns {number}", lambda *args, number=number: number))
        if not task(name).live and name not in TEXTS:
            found.append(
                (f"solution with {number}", lambda *args, number=number: with_numbers(reference(*args), number))
            )
    if not task(name).live:
        found += [(f"returns {odd!r:.9}", lambda *args, odd=odd: odd) for odd in ([], {}, (1.5,), [[]], 10**400)]
    arguments = reference.__code__.co_argcount
    return found + [(f"returns argument {i}", lambda *args, i=i: args[i]) for i in range(arguments)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize("values", [VALUES, once_more(MORE)])
@pytest.mark.parametrize("name", exercises())
def test_no_exercise_takes_any_number(name: str, values: tuple[float, ...]) -> None:
    """NaN, 0, an infinity, what is empty, a number that no float holds and the argument itself are wrong everywhere."""
    one = task(name)
    passed = [
        words
        for words, answer in answers(name, values)
        if all(stage.passed is not False for stage in judge(one, answer))
    ]
    assert passed == []


@pytest.mark.parametrize("name", [name for name in names() if isinstance(task(name), CommTask)])
def test_who_knows_the_result_and_sends_nothing_gets_a_verdict(name: str) -> None:
    """Bounds are counted of a run without a message, too: it ends in no exception of the judge's."""
    one = task(name)
    cases = [*one.cases(), *filter(None, [one.scored])]

    def knows(comm: Any, *given: Any) -> Any:
        case = next(case for case in cases if case.n == comm.size and same(case.inputs[comm.rank], given))
        return one.expected(case)[comm.rank]

    assert list(judge(one, knows))
