"""The checks are checked: solutions pass, blanks are told politely, wrong solutions get the right words."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from judged import exercises
from running import eventually
from thorough import once_more
from verdicts import bare
from wrong_answers import wrong_answers

from workbench.course import exercise, progress_file
from workbench.course.judging import judge
from workbench.course.judging.task import CommTask, PlainTask
from workbench.course.tasks import NoSuchExerciseError, names, task

SECONDS = 10.0


WRONG = wrong_answers()


@pytest.fixture(autouse=True)
def board(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a learner's own is touched."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(exercise, "BOARD", exercise.ProgressBoard())


def judged(name: str, function: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> str:
    """What check() prints."""
    exercise.exercise(name)(function)
    capsys.readouterr()
    exercise.check(name)
    return capsys.readouterr().out


TRAINS = "13.capstone"


@pytest.mark.timeout(240)
@pytest.mark.parametrize("name", exercises(TRAINS))
def test_known_answers(name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each answer that is known gets its verdict; see ``judged_as_known``."""
    judged_as_known(name, capsys, monkeypatch)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("share", [12, once_more(1)])
def test_known_trainings(share: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same of trainings, of which every answer takes seconds: of the wrong ones some, or all."""
    judged_as_known(TRAINS, capsys, monkeypatch, share)


def judged_as_known(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, share: int = 1
) -> None:
    """Each answer that is known gets its verdict.

    1. Every line of the reference solution's is green, or was left out for want of real ranks.
    2. The learner's cell as it comes says that it is not done, or what is wrong with it, without a traceback.
    3. A wrong solution, of which there are at least three, gets the words that tell what is wrong with it, in the first
       line, and a hint about that.
    4. No hint waits for words that no verdict has, or that always come behind the cause of a known wrong version.
    """
    import numpy as np

    entry = exercise.BOARD.entry(name)
    told = judged(name, task(name).reference, capsys)
    assert "✗" not in told, told
    assert "not done" not in told
    assert told.count("✓") >= 1
    assert entry.passed

    entry.passed = False
    space: dict[str, Any] = {"np": np, "exercise": exercise.exercise}
    exec(compile(task(name).cell(solved=False), f"<{name}>", "exec"), space)
    exercise.check(name)
    told = capsys.readouterr().out
    assert "not done yet" in told or "✗" in told, told
    assert "Traceback" not in told
    assert not entry.passed

    wrong = [(function, words) for other, function, words in WRONG if other == name]
    assert len(wrong) >= 3
    unseen = {one for one in task(name).mistakes if one.words}
    for function, words in wrong[::share]:
        progress_file.FILE.unlink(missing_ok=True)
        monkeypatch.setattr(exercise, "BOARD", exercise.ProgressBoard())  # nobody has seen a hint
        told, entry = judged(name, function, capsys), exercise.BOARD.entry(name)
        said = f"{function.__name__}: {told}"
        assert words in told, said
        assert re.search("^ +✗", told, re.MULTILINE), said
        assert not entry.passed, said
        assert not bare(entry.verdict.splitlines()[0]), said
        exercise.hint(name)
        assert "About what check() found: " in capsys.readouterr().out, said
        red = "\n".join(line for line in told.splitlines() if not line.lstrip().startswith("✓"))
        unseen -= {one for one in unseen if any(map(red.__contains__, one.words))}
    assert share > 1 or task(name).versions or {one.hint for one in unseen} == set()


@pytest.mark.parametrize("call", ["check", "show", "hint", "solution", "exercise"])
def test_a_mistyped_name_is_one_line(call: str) -> None:
    """Whichever call it is given to: what it may have meant, and in a notebook no traceback."""
    with pytest.raises(
        NoSuchExerciseError, match=r"no exercise '3\.ring_alreduce'\. Did you mean '03\.ring_allreduce'"
    ):
        getattr(exercise, call)("3.ring_alreduce")
    with pytest.raises(NoSuchExerciseError, match=r"There are: 02\.tree_broadcast, 02\.shift_right") as raised:
        getattr(exercise, call)("?")
    assert raised.value._render_traceback_() == [str(raised.value)]


def test_two_notebooks_keep_each_other_s_progress(tmp_path: Path) -> None:
    """Two kernels, each with a board of its own over one file: what one has passed stays when the other writes."""
    first, second = exercise.ProgressBoard(), exercise.ProgressBoard()
    first.entry("02.shift_right"), second.entry("03.ring_allreduce")
    first.entry("02.shift_right").passed = True
    first.save("02.shift_right")
    second.entry("03.ring_allreduce").attempts = 3
    second.save("03.ring_allreduce")
    third = exercise.ProgressBoard()
    assert third.entry("02.shift_right").passed
    assert third.entry("03.ring_allreduce").attempts == 3


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{", '{"02.shift_right": 3}', '{"02.shift_right": {"attempts": "3"}}']
)
def test_a_broken_progress_file_does_no_harm(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever lies in the file, exercises are judged, and progress is kept from then on."""
    progress_file.FILE.parent.mkdir()
    progress_file.FILE.write_text(text)
    assert "✗" not in judged("02.shift_right", task("02.shift_right").reference, capsys)
    kept = exercise.ProgressBoard().entry("02.shift_right")
    assert (kept.attempts, kept.passed) == (1, True)


@pytest.mark.parametrize("name", ["05.shard", "03.ring_allreduce"])
def test_an_endless_loop_is_ended(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A function that never returns is told, in bounded time, and its thread does not go on."""

    def loops(*args: Any) -> Any:
        while True:
            pass

    monkeypatch.setattr(judge, "DEADLINE_S", 0.3)
    one = task(name)
    one = replace(one, deadline_s=0.3) if isinstance(one, PlainTask) else one
    before = threading.active_count()
    stages = list(judge.judge(one, loops))
    assert stages[-1].passed is False
    assert "did not end within " in stages[-1].text
    assert eventually(lambda: threading.active_count() == before, SECONDS)


def test_every_exercise_stands_in_its_lesson() -> None:
    """Once as a cell to fill in, and with a check; and no lesson asks for one that is not there."""
    from workbench.course import build

    for lesson in build.lessons([]):
        text, number = lesson.read_text(encoding="utf-8"), lesson.stem[:2]
        mine = [name for name in names() if name.startswith(f"{number}.")]
        assert sorted(re.findall(r"^# exercise: (\S+)$", text, re.MULTILINE)) == sorted(mine)
        assert set(mine) <= set(re.findall(r"^check\(\"(\S+)\"\)", text, re.MULTILINE))


def test_show_never_judges(capsys: pytest.CaptureFixture[str]) -> None:
    """A solution is drawn, with a text that says what is to be seen; nothing is counted."""
    for name in [name for name in names() if isinstance(task(name), CommTask)]:
        exercise.exercise(name)(task(name).reference)
        figure = exercise.show(name)
        assert (figure is None) == (task(name).shown is None), name
        if figure is not None:
            assert f"{task(name).shown.n}" in figure.alt
            assert figure.svg.startswith("<svg")
        assert "✓" not in capsys.readouterr().out
        assert exercise.BOARD.entry(name).attempts == 0
