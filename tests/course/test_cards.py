"""The cards of "Find the bug": the broken programs as learners meet them, the four causes, and when a card is done."""

from __future__ import annotations

import json
import linecache
import re
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from wrong_answers import load

from workbench.course import exercise, progress_file
from workbench.course.cards import cause
from workbench.course.judging.card import Card, PlainCard
from workbench.course.judging.rank_threads import on_ranks
from workbench.course.judging.task import is_blank
from workbench.course.tasks import names, task
from workbench.errors import MismatchError, WorkbenchError

CARDS = [name for name in names() if isinstance(task(name), Card)]
OF_LESSON_11 = [name for name in CARDS if name.startswith("11.")]
SECONDS = 10.0

LESSON = load("w11")
PICTURES = LESSON.PICTURES
SAID = {name: said for number in (11, 24, 25, 26, 27) for name, said in load(f"w{number}").SAID.items()}


@pytest.fixture(autouse=True)
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a learner's own is touched."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(exercise, "BOARD", exercise.ProgressBoard())


def card(name: str) -> Card:
    """The card of that name."""
    found = task(name)
    assert isinstance(found, Card)
    return found


def run_cell(name: str, solved: bool = False) -> None:
    """What a learner does who runs the cell, in a place that errors call the cell."""
    import numpy as np

    source, place = card(name).cell(solved), f"/tmp/ipykernel_0/{name}.py"
    linecache.cache[place] = (len(source), None, source.splitlines(keepends=True), place)
    exec(compile(source, place, "exec"), {"np": np, "exercise": exercise.exercise})


@pytest.mark.parametrize("name", CARDS)
def test_a_broken_program_is_diagnosed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Its check says what is wrong, in the words from which the cause can be found, within seconds."""
    run_cell(name)
    assert not is_blank(exercise.BOARD.functions[name])
    begun = time.monotonic()
    exercise.check(name)
    told = capsys.readouterr().out
    assert time.monotonic() - begun < SECONDS
    assert "✗" in told
    for words in SAID[name]:
        assert words in told, told
    entry = exercise.BOARD.entry(name)
    assert (entry.attempts, entry.passed) == (1, False)


@pytest.mark.parametrize("name", CARDS)
def test_the_cause_is_one_of_four(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a choice the four are shown; a wrong one gets a nudge, and never the answer; the right one says why."""
    found = card(name)
    sentences, answers = zip(*found.causes, strict=True)
    right = "abcd".index(found.right)
    cause(name)
    assert capsys.readouterr().out.splitlines() == [f"  {k}  {text}" for k, text in zip("abcd", sentences, strict=True)]
    for letter in sorted({*"abcd"} - {found.right}):
        cause(name, letter)
        told = capsys.readouterr().out
        assert "✗" in told
        assert answers["abcd".index(letter)] in told
        assert sentences[right] not in told
        assert answers[right] not in told
        assert not exercise.BOARD.entry(name).cause
    cause(name, found.right.upper())
    told = capsys.readouterr().out
    assert f"✓ {found.right}" in told
    assert answers[right] in told
    assert "Now repair the program" in told
    assert exercise.BOARD.entry(name).cause
    assert max(map(len, sentences)) <= 110
    assert len(set(sentences)) == len(set(answers)) == 4


def test_both_make_a_card_done(capsys: pytest.CaptureFixture[str]) -> None:
    """Neither the repair nor the cause alone does; board and report say what is left."""
    cause("11.epoch", card("11.epoch").right)
    run_cell("11.validate", solved=True)
    exercise.check("11.validate")
    for name in ("11.epoch", "11.validate"):
        assert not exercise.BOARD.entry(name).done(name)
    capsys.readouterr()
    exercise.progress("11")
    told = capsys.readouterr().out
    assert "11.epoch                     ✗ tried" in told
    assert "11.validate                  ✗ cause?" in told
    assert f"0 of {len(OF_LESSON_11)} done" in told
    cause("11.validate", card("11.validate").right)
    assert "Now repair" not in capsys.readouterr().out
    exercise.progress("11")
    assert "11.validate                  ✓ done" in capsys.readouterr().out
    found = json.loads(exercise.report().read_text())
    assert found["passed"] == 1
    assert found["exercises"]["11.epoch"]["cause"] is True
    cases = ElementTree.parse(exercise.report("r.xml")).getroot()
    done = [case.attrib["name"] for case in cases if case.attrib["classname"] == "lesson.11" and not len(case)]
    assert done == ["validate"]


def test_the_cause_is_remembered(tmp_path: Path) -> None:
    """The next kernel knows it."""
    cause("11.ring", card("11.ring").right)
    exercise.BOARD = exercise.ProgressBoard()  # the fixture restores it
    assert exercise.BOARD.entry("11.ring").cause
    assert (tmp_path / progress_file.FILE).exists()


def test_guesses_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """Until the right one, which counts too; what is no letter does not. The board and the report have the number."""
    for choice in ("a", "e", "b", "c", "d", "a"):
        cause("11.epoch", choice)
    assert card("11.epoch").right == "c"
    assert exercise.ProgressBoard().entry("11.epoch").causes == 3
    capsys.readouterr()
    exercise.progress("11")
    assert "the epoch never ends (cause: 3 guesses)" in capsys.readouterr().out
    assert json.loads(exercise.report().read_text())["exercises"]["11.epoch"]["causes"] == 3


@pytest.mark.parametrize("name", CARDS)
def test_a_check_does_not_tell_the_cause(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The workbench's own guess, a line of its errors, is left out: it is what the learner is asked for."""
    run_cell(name)
    exercise.check(name)
    assert "Likely" not in capsys.readouterr().out


def test_the_picture_of_the_seconds_reaches_its_end() -> None:
    """Its axis is as long as the slowest rank computes, though the last message comes before."""
    run_cell("11.seconds")
    figure = exercise.show("11.seconds")
    assert figure is not None
    axis = re.search(r'data-axis="\S+ \S+ (\S+)"', figure.svg)
    assert axis is not None
    assert "30.1 ms" in figure.alt
    assert 30_000 < float(axis[1]) < 31_000


def test_what_is_no_card_or_no_letter_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback for an exercise without causes, or another letter."""
    cause("03.ring_allreduce", "a")
    assert "03.ring_allreduce is not one of the cards" in capsys.readouterr().out
    for choice in ("e", "ab", "abcd"):
        cause("11.ring", choice)
        assert "Choose one of a, b, c and d" in capsys.readouterr().out


@pytest.mark.parametrize("name", CARDS)
def test_show_draws_the_broken_run(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What can be seen is drawn: who waits for whom, what each rank does when, which samples nobody has."""
    run_cell(name)
    figure = exercise.show(name)
    if name in PICTURES:
        assert figure is not None
        assert PICTURES[name] in figure.alt
        return
    assert figure is None
    told = capsys.readouterr().out
    assert "has no picture" in told or SAID[name][0] in told


@pytest.mark.parametrize("name", [name for name in CARDS if isinstance(task(name), PlainCard)])
def test_own_pictures_of_the_solution(name: str) -> None:
    """A card's own picture is drawn of the repaired program as well."""
    run_cell(name, solved=True)
    figure = exercise.show(name)
    assert (figure is None) == (card(name).draw is None)


# --- ranks that are threads -----------------------------------------------------------------------------


def test_results_by_rank_and_inputs_of_ones_own() -> None:
    """What a rank changes of its inputs, nobody else sees."""
    shared = [0]

    def function(hvd: Any, mine: list[int]) -> list[int]:
        mine.append(hvd.rank())
        hvd.barrier()
        return mine

    assert on_ranks(function, [(shared,)] * 3) == [[0, 0], [0, 1], [0, 2]]
    assert shared == [0]


def test_ones_own_mistake_comes_first() -> None:
    """Of what all ranks raise, the cause is raised here, with the rank whose it was."""

    def function(hvd: Any) -> Any:
        if hvd.rank() == 1:
            raise KeyError("lr")
        return hvd.allreduce(1.0, name="x")

    with pytest.raises(KeyError) as raised:
        on_ranks(function, [()] * 3)
    assert raised.value.rank == 1  # type: ignore[attr-defined]


def test_an_endless_loop_is_ended() -> None:
    """The rank that does not end is named, not those that wait for it; then all threads are gone."""

    def function(hvd: Any) -> Any:
        while hvd.rank() == 1:
            time.sleep(0.001)
        return hvd.allreduce(1.0, name="x")

    with pytest.raises(WorkbenchError, match=r"Rank 1 did not end within \d+ s"):
        on_ranks(function, [()] * 2, deadline_s=1.0)


def test_an_error_that_was_caught_is_no_repair() -> None:
    """A function that goes on after a failed collective is told so."""

    def function(hvd: Any) -> None:
        with pytest.raises(MismatchError):
            hvd.broadcast(1.0, root_rank=hvd.rank(), name="x")

    with pytest.raises(WorkbenchError, match="A collective failed on rank 0"):
        on_ranks(function, [()] * 2)
