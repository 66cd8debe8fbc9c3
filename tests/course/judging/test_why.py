"""A wrong number's factor has a name, and the last verdict chooses the hint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wrong_answers import load

from workbench.course import exercise
from workbench.course.judging.ratio import CaseOutcome, named, ratio
from workbench.course.judging.task import Case
from workbench.course.tasks import task

MEANING = {
    "n times": lambda n: n,
    "n² times": lambda n: n * n,
    "one n-th of": lambda n: 1 / n,
    "1/n² of": lambda n: 1 / n**2,
    "twice": lambda n: 2,
    "half of": lambda n: 0.5,
    "minus": lambda n: -1,
}


def _outcome(n: int, factor: float) -> CaseOutcome:
    right = [np.array([1.5, -2.0, 0.0]) + rank for rank in range(n)]
    return CaseOutcome(Case(n, "", []), [factor * each for each in right], right)


def test_exact_factors_are_named() -> None:
    """Two cases of different n tell twice from n times, and half from an n-th."""
    for words, factor in MEANING.items():
        assert named([_outcome(n, factor(n)) for n in (2, 3)]).startswith(f"{words} the right number: ")


def test_what_is_only_near_has_no_name() -> None:
    """A factor of 2.001, one that differs from rank to rank, and one that differs from case to case."""
    assert named([_outcome(3, 2.001)]) == ""
    uneven = _outcome(2, 1.0)
    assert named([CaseOutcome(uneven.case, [2 * uneven.expected[0], 3 * uneven.expected[1]], uneven.expected)]) == ""
    assert named([_outcome(3, 2.0), _outcome(4, 3.0)]) == ""


def test_what_cannot_be_compared_has_no_factor() -> None:
    """Other shapes, other objects, and what is no number."""
    for yours in [
        None,
        "text",
        np.array([1.0]),
        np.array([np.nan, 1.0]),
        np.array([np.inf, 1.0]),
        np.array([[1.0, 2.0]]),
    ]:
        assert ratio(CaseOutcome(Case(1, "", []), [yours], [np.array([1.0, 2.0])])) is None


def test_a_step_is_compared_from_where_it_starts() -> None:
    """Half a step is half of a step, wherever the weights are."""
    w, step = np.array([10.0, -3.0]), np.array([0.5, 0.25])
    assert ratio(CaseOutcome(Case(1, "", []), [w - step / 2], [w - step], start=w)) == pytest.approx(0.5)


@pytest.fixture(autouse=True)
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a learner's own is touched."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(exercise, "BOARD", exercise.ProgressBoard())


def test_the_hint_follows_the_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    """First what helps against the mistake that check() found, once; then the three; after another mistake its own."""
    wrong = load("w03")
    name = "03.ring_allreduce"

    def hinted(function: Callable[..., Any] | None = None) -> str:
        if function is not None:
            exercise.exercise(name)(function)
            exercise.check(name)
        capsys.readouterr()
        exercise.hint(name)
        return capsys.readouterr().out

    assert hinted().startswith("Hint 1 of 3: ")
    assert hinted(wrong.sends_the_chunk_of_the_first_half_again).startswith(
        "About what check() found: Which chunk is complete after the first half?"
    )
    assert hinted().startswith("Hint 2 of 3: ")
    assert "What comes in the second half is complete." in hinted(wrong.adds_in_the_second_half_too)
    assert hinted(task(name).reference).startswith("Hint 3 of 3: ")
    exercise.exercise(name)(wrong.adds_in_the_second_half_too)
    exercise.check(name)
    assert exercise.ProgressBoard().entry(name).verdict.startswith("right: the second half adds what comes")
