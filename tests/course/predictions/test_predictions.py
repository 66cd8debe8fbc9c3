"""Guesses come before facts: they are stored, compared, kept, and not changed afterwards."""

from __future__ import annotations

import html
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.course import exercise, progress_file
from workbench.course.predictions import ask, guess, predict, reveal, widget
from workbench.course.predictions.book import Book
from workbench.course.predictions.names import NAMES
from workbench.course.predictions.question import Question

CHOICES = ["2 MB", "8 MB", "12 MB"]


@pytest.fixture(autouse=True)
def book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Book:
    """A folder and a book of the test's own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ask, "BOOK", Book())
    monkeypatch.setattr(exercise, "BOARD", exercise.ProgressBoard())
    return ask.BOOK


@pytest.fixture
def learner(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody sits there, at a notebook without widgets."""
    monkeypatch.setattr(ask, "is_somebody_there", lambda: True)
    monkeypatch.setitem(sys.modules, "anywidget", None)
    widget._widget_class.cache_clear()


def data(shown: Any, what: str) -> dict[str, Any]:
    """What a page reads out of a division."""
    (found,) = re.findall(rf'data-{what}="([^"]*)"', shown.html)
    return json.loads(html.unescape(found))  # type: ignore[no-any-return]


def test_without_a_learner_the_fact_is_told_alone() -> None:
    """No guess is invented; for people and for a page's script; and no file is written."""
    asked = predict("03.bytes", "How many <bytes>?", choices=CHOICES)
    told = reveal("03.bytes", "12 MB", 'it is "2(n - 1)/n"')
    assert data(asked, "predict") == {
        "name": "03.bytes",
        "question": "How many <bytes>?",
        "kind": "choices",
        "options": CHOICES,
        "unit": "",
    }
    assert data(told, "reveal") == {"name": "03.bytes", "fact": "12 MB", "why": 'it is "2(n - 1)/n"', "value": "12 MB"}
    assert "<bytes>" not in asked.html
    assert repr(told) == '03.bytes. Fact: 12 MB.\nit is "2(n - 1)/n"'
    assert not progress_file.FILE.exists()


@pytest.mark.usefixtures("learner")
def test_nothing_is_told_before_a_guess(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a guess the fact is nowhere in what is shown; with one it is, and the guess stays as it was."""
    asked = predict("03.bytes", "How many?", choices=CHOICES)
    assert 'guess("03.bytes", 1)' in repr(asked)
    shown = reveal("03.bytes", "12 MB", "because")
    assert "12 MB" not in shown.html + repr(shown)
    assert "because" not in shown.html + repr(shown)
    assert "First make a guess" in repr(shown)
    guess("03.bytes", "2 MB")
    guess("03.bytes", 2)
    assert "Guess: 8 MB. Fact: 12 MB." in repr(reveal("03.bytes", "12 MB"))
    guess("03.bytes", "12 MB")
    assert "your guess stays as it was: 8 MB" in capsys.readouterr().out
    assert "Guess: 8 MB. Fact: 12 MB." in repr(reveal("03.bytes", "12 MB"))


@pytest.mark.usefixtures("learner")
def test_a_guess_is_kept_for_the_next_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the exercises, which stay; the first guess and the last one."""
    exercise.BOARD.entry("02.shift_right").passed = True
    exercise.BOARD.save("02.shift_right")
    predict("03.bytes", "How many?", choices=CHOICES)
    guess("03.bytes", "2 MB")
    guess("03.bytes", "12 MB")
    reveal("03.bytes", "12 MB")
    exercise.BOARD.save("02.shift_right")
    monkeypatch.setattr(ask, "BOOK", Book())
    assert exercise.ProgressBoard().entry("02.shift_right").passed
    assert set(exercise.entries(progress_file.read(progress_file.FILE))) == {"02.shift_right"}
    predict("03.bytes", "How many?", choices=CHOICES)
    kept = ask.BOOK.guess("03.bytes")
    assert (kept.first, kept.last, kept.told, kept.right) == ("2 MB", "12 MB", True, True)


@pytest.mark.usefixtures("learner")
def test_it_can_be_read_without_a_guess(capsys: pytest.CaptureFixture[str]) -> None:
    """``anyway`` tells; from then on there is nothing to guess."""
    predict("03.bytes", "How many?", choices=CHOICES)
    assert "Guess: no guess. Fact: 12 MB." in repr(reveal("03.bytes", "12 MB", anyway=True))
    guess("03.bytes", "12 MB")
    assert "already shown" in capsys.readouterr().out
    assert ask.BOOK.guess("03.bytes").last is None


@pytest.mark.usefixtures("learner")
def test_what_is_not_asked_is_not_told(capsys: pytest.CaptureFixture[str]) -> None:
    """A cell that was not run is named, whether one answers or wants to know."""
    assert 'run the cell with predict("03.bytes", …)' in repr(reveal("03.bytes", "12 MB"))
    guess("03.bytes", "12 MB")
    assert 'run the cell with predict("03.bytes", …) first' in capsys.readouterr().out


@pytest.mark.usefixtures("learner")
def test_what_is_no_choice_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """The refusal names what could be chosen, and nothing is stored."""
    for wrong in ["7 MB", 0, 4, 1.5, None, ["8 MB"], True]:
        predict("03.bytes", "How many?", choices=CHOICES)
        guess("03.bytes", wrong)
        assert "Give one of 1 (2 MB), 2 (8 MB), 3 (12 MB)" in capsys.readouterr().out
        assert ask.BOOK.guess("03.bytes").last is None


def test_a_number_is_right_within_its_tolerance() -> None:
    """Ten per cent of the fact to both sides; else it is said by what factor it is off."""
    for said, right, off in [
        (100, True, ""),
        (np.int64(100), True, ""),
        ("91 messages", True, ""),
        (" 109.9 ", True, ""),
        (89, False, "1.1 times too small"),
        ("1,000", False, "10 times too large"),
        ("1,000,000 messages", False, "10,000 times too large"),
        (-100, False, ""),
        (0, False, ""),
    ]:
        question = Question("07.count", "How many?", "number", unit="messages")
        answer = question.accept(said)
        assert question.is_right(answer, 100) is right
        assert question.off(answer, 100) == off


def test_what_is_no_number_is_refused() -> None:
    """The refusal says what was given and what a number looks like."""
    for wrong in ["many", "", "nan", "1,5", "1,2000", float("inf"), None, True, [1]]:
        with pytest.raises(ValueError, match=r"is no number. Give a number of messages, such as 12"):
            Question("07.count", "How many?", "number", unit="messages").accept(wrong)


def test_an_order_has_each_option_once() -> None:
    """By text or by number; anything less, more or twice is refused."""
    question = Question("04.order", "In what order?", "order", ("a", "b", "c"))
    assert question.accept(["b", "a", "c"]) == question.accept([2, 1, 3]) == ["b", "a", "c"]
    assert question.said(["b", "a", "c"]) == "b → a → c"
    for wrong in (["a", "b"], ["a", "b", "b"], "abc", ["a", "b", "c", "a"], 3):
        with pytest.raises(ValueError, match="all 3 options, each once"):
            question.accept(wrong)


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "{",
        '{"predictions": 3}',
        '{"predictions": {"03.bytes": 3}}',
        '{"predictions": {"03.bytes": {"last": {}}}}',
    ],
)
@pytest.mark.usefixtures("learner")
def test_a_broken_file_does_no_harm(text: str) -> None:
    """Whatever lies in it, a guess is stored from then on."""
    progress_file.FILE.parent.mkdir()
    progress_file.FILE.write_text(text)
    predict("03.bytes", "How many?", choices=CHOICES)
    guess("03.bytes", "12 MB")
    assert json.loads(progress_file.FILE.read_text())["predictions"]["03.bytes"]["last"] == "12 MB"


def test_a_question_that_cannot_be_answered_is_refused() -> None:
    """Authors hear of it when the lesson is built: none or two kinds, one option, and a fact that is no option."""
    for options in ({}, {"choices": CHOICES, "number": "MB"}):
        with pytest.raises(ValueError, match="just one of choices"):
            predict("03.bytes", "How many?", **options)  # type: ignore[arg-type]
    for few in ([], ["a"], ["a", "a"]):
        with pytest.raises(ValueError, match="two or more different options"):
            predict("03.bytes", "How many?", choices=few)
    predict("03.bytes", "How many?", choices=CHOICES)
    with pytest.raises(ValueError, match="'13 MB' is none of the choices"):
        reveal("03.bytes", "13 MB")


@pytest.mark.usefixtures("learner")
def test_the_board_and_the_report_have_them(capsys: pytest.CaptureFixture[str]) -> None:
    """How many were made and right; of one lesson, each; what is not told yet is not given away. No points."""
    exercise.progress("03")
    assert "03.bytes                     – open" in capsys.readouterr().out
    predict("03.bytes", "How many?", choices=CHOICES)
    guess("03.bytes", "8 MB")
    guess("03.bytes", "12 MB")
    exercise.progress("03")
    assert "03.bytes                     … guessed, not told yet" in capsys.readouterr().out
    reveal("03.bytes", "12 MB")
    exercise.progress("03")
    assert "03.bytes                     ✓ right" in capsys.readouterr().out
    exercise.progress()
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == f"1 of {len(NAMES)} predictions made, 1 right (they give no points)"
    found = json.loads(exercise.report().read_text())
    assert found["predictions"]["03.bytes"] == {"answered": True, "right": True, "first": "8 MB", "last": "12 MB"}
    assert found["points"] == 0
    assert set(found["predictions"]) == set(NAMES)
