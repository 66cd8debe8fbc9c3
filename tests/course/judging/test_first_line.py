"""The first line of a verdict says what is wrong in words of the lesson, and the numbers come behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from workbench.course.judging import judge
from workbench.course.judging.compare import difference
from workbench.course.judging.mistake import GENERAL, Mistake
from workbench.course.judging.task import Bound, CommTask, PlainTask
from workbench.course.provenance.case import Case

LONG = 5000


def total(comm: Any, x: Any) -> Any:
    """The right answer."""
    return comm.allreduce(x)


def first(task: CommTask | PlainTask, function: Callable[..., Any]) -> tuple[str, str]:
    """Of the stage that is red: its name, and the first line of its text."""
    red = [stage for stage in judge.judge(task, function) if stage.passed is False]
    assert len(red) == 1
    return red[0].name, red[0].text.splitlines()[0]


def sums(**options: Any) -> CommTask:
    """All ranks' arrays are to be added up."""

    def case(length: int) -> Case:
        return Case(2, f"length {length}", [(np.arange(length) + 0.1,), (np.ones(length),)])

    defaults = {
        "cases": lambda: [case(3)],
        "expected": lambda one: [sum(x for (x,) in one.inputs)] * one.n,
        "bounds": lambda one, run: [Bound("messages", len(run.messages), 0, 2, "Two are enough")],
        "scored": case(LONG),
    }
    return CommTask("00.sum", "a sum", total, ("", "", ""), **{**defaults, **options})  # type: ignore[arg-type]


def test_a_deadlock_begins_with_who_waits_for_whom() -> None:
    """In one line; the ranks, one by one, and the circle are told after it."""

    def both_send(comm: Any, x: Any) -> Any:
        comm.send(np.ones(LONG * 100), dest=1 - comm.rank)

    def returned(comm: Any, x: Any) -> Any:
        return comm.recv(source=1) if comm.rank == 0 else x

    name, line = first(sums(), both_send)
    assert (name, line) == (
        "no deadlock",
        "n = 2, length 3: ranks 0 and 1 wait for each other: all of them send, and nobody receives",
    )
    assert first(sums(), returned)[1].endswith("rank 0 waits in recv(source=1), and rank 1 has returned")


def test_what_is_only_wrong_when_it_is_scored_is_told_so() -> None:
    """The numbers of a long array say nothing; that the shorter ones were right does."""

    def short_alone(comm: Any, x: Any) -> Any:
        return total(comm, x) if len(x) < LONG else x

    name, line = first(sums(), short_alone)
    assert name == "score"
    assert (
        "the smaller cases were right, this one is wrong. What is done only with long arrays? rank 0, index 0" in line
    )


def test_a_missed_bound_says_what_need_not_be_done() -> None:
    """Behind the figure, which alone does not tell where the messages come from."""

    def twice(comm: Any, x: Any) -> Any:
        total(comm, x)
        return total(comm, x)

    name, line = first(sums(), twice)
    assert name == "score"
    assert line == "4 messages; the limit is 2, the best possible 0. Two are enough"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (np.float16, "All of your numbers fit into 16 bits: they were rounded, and float64 was asked for"),
        (np.float32, "All of your numbers fit into 32 bits"),
    ],
)
def test_rounded_numbers_are_told(change: Any, words: str) -> None:
    """A sum that was sent in fewer bits, and comes back as float64."""
    assert words in first(sums(), lambda comm, x: total(comm, x).astype(change).astype(float))[1]


def test_whole_numbers_are_not_taken_for_rounded_ones() -> None:
    """If the right numbers fit into few bits as well, nothing is said of bits."""
    assert difference([np.array([1.0, 2.0])], [np.array([1.0, 2.0 + 2**-8])]) == (
        "rank 0, index 1: your result is 2, expected 2.00391"
    )


def test_numbers_are_as_long_as_it_takes_to_tell_them_apart() -> None:
    """Six digits, or all of them where six are the same."""
    assert difference([np.array([1 / 3])], [np.array([2 / 3])]).endswith("your result is 0.333333, expected 0.666667")
    assert difference([np.array([1 / 3])], [np.array([1 / 3 + 1e-8])]).endswith(
        "your result is 0.3333333333333333, expected 0.3333333433333333"
    )
    assert difference([np.array([np.nan])], [np.array([1.0])]).endswith(
        "your result is nan, expected 1.0. Something was divided by 0, or inf was taken from inf"
    )


def test_a_result_has_a_name() -> None:
    """A wrong number is told as what it is; of several items the one that is wrong is named, also the eleventh."""
    names = [f"part {letter}" for letter in "abcdefghijkl"]
    yours, wanted = [list(range(12))], [[*range(11), 0]]
    assert difference(yours, wanted, names) == "rank 0, part l: your result is 11, expected 0"
    assert (
        difference([np.zeros(1)], [np.ones(1)], ["the mean"])
        == "rank 0, the mean, index 0: your result is 0.0, expected 1.0"
    )


@pytest.mark.parametrize("kind", ["ranks", "plain"])
def test_an_exception_of_pythons_comes_behind_what_it_means(kind: str) -> None:
    """And one that is not known stays as it is."""
    known = (Mistake("How many are there?", ("division by zero",), "there may be no sample at all"),)

    def calls(function: Callable[..., Any]) -> str:
        """It runs."""
        function(None, 0)
        return ""

    plain = PlainTask("00.plain", "", total, ("", "", ""), properties=[calls], mistakes=known)
    task = plain if kind == "plain" else sums(mistakes=known)
    assert "there may be no sample at all; ZeroDivisionError: division by zero" in first(task, lambda c, x: 1 / 0)[1]
    assert first(task, lambda c, x: {}["a"])[1].endswith("KeyError: 'a'")  # type: ignore[index]
    assert (
        "it ends the whole process (SystemExit: 3); a function ends by return" in first(task, lambda c, x: exit(3))[1]
    )


def test_the_exercises_own_hint_comes_before_a_general_one() -> None:
    """What may go wrong anywhere is looked at last."""
    verdict = "right: n = 2, length 3: rank 0: your result is None. Is there a return?"
    general = next(one.hint for one in GENERAL if "your result is None" in one.words)
    assert sums().helps(verdict) == general
    assert sums(mistakes=(Mistake("Who has the sum?", ("your result is None",)),)).helps(verdict) == "Who has the sum?"
    assert sums().helps("right: something else") == ""
