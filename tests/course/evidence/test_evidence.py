"""Questions, consent, data of a class, and its analysis, on simulated classes whose answers are known."""

from __future__ import annotations

import json
import math
import re
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import jupytext
import numpy as np
import pytest
from evidence_simulated import HARD, SHARP, drawn, rows, true_gain, write
from project import ROOT

from workbench.course import exercise, progress_file
from workbench.course.build import execute
from workbench.course.evidence import after, analysis, before, export
from workbench.course.evidence.items import FORMS, LETTERS, all_items
from workbench.course.predictions import ask, guess, widget
from workbench.course.predictions.book import Book
from workbench.course.tasks import names, task
from workbench.errors import WorkbenchError

KEY = bytes(32)
SOURCE = ROOT / "instructors" / "analysis.py"


@pytest.fixture
def learner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Somebody sits in a folder of their own, without widgets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ask, "BOOK", Book())
    monkeypatch.setattr(exercise, "BOARD", exercise.ProgressBoard())
    monkeypatch.setattr(ask, "is_somebody_there", lambda: True)
    monkeypatch.setitem(sys.modules, "anywidget", None)
    widget._widget_class.cache_clear()
    return tmp_path


def folder(path: Path, form: str = "before", right: int = 12, consent: Any = "yes", **more: Any) -> Path:
    """A learner's folder, with the first answers of a form right and the others open."""
    answers = {f"{form}.{each.number}": each.choices[each.right][FORMS.index(form)] for each in all_items()[:right]}
    found = {name: {"first": one, "last": one} for name, one in {**answers, "consent": consent, **more}.items()}
    (path / ".workbench").mkdir(parents=True, exist_ok=True)
    (path / progress_file.FILE).write_text(json.dumps({"predictions": found}))
    return path


def known(where: str) -> list[str]:
    """The known mistakes that a source names."""
    kind, _, name = where.rpartition(" ")
    if kind == "guide":
        return re.findall(rf"^\| {name} \| (.+?) \|", (ROOT / "instructors" / "guide.md").read_text(), re.M)
    if kind == "predict":
        (lesson,) = (ROOT / "lessons").glob(f"{name[:2]}_*.py")
        (call,) = re.findall(rf'^predict\(\n    "{name}",.*?^\)', lesson.read_text(), re.M | re.S)
        return re.findall(r'"([^"]+)"', call)
    causes = [text for text, _ in getattr(task(name), "causes", ())]
    return [*causes, *(text for each in task(name).mistakes for text in (each.cause, each.hint))]


def test_wrong_choices_come_from_known_mistakes() -> None:
    """Each names one that an exercise, a prediction or the guide knows; all four differ, and the right one wanders."""
    assert [each.number for each in all_items()] == list(range(1, 13))
    for item in all_items():
        for i, mistake in enumerate(item.mistakes):
            assert bool(mistake) == (i != item.right), item
            where, _, words = mistake.partition(": ")
            assert not mistake or any(words in each for each in known(where)), mistake
        for form in FORMS:
            assert {item.letter(form, each) for each in item.shown(form)} == set(LETTERS)
    assert {each.right for each in all_items()} == {0, 1, 2, 3}
    assert all(a != b for a, b in (each.questions for each in all_items()))


def test_numbers_in_the_key_are_computed() -> None:
    """What the formulas of the lessons give, in both forms."""
    ring = [f"{2 * (n - 1) / n * size:.0f} MB in {2 * (n - 1)} steps" for n, size in ((4, 8), (8, 16))]
    tree = [f"about {2 * (n - 1) / (2 * math.log2(n)):.0f} times as long" for n in (32, 64)]
    young = [f"{math.sqrt(2 * hours / 60 * mtbf):.1f} hours" for hours, mtbf in ((6, 10), (9, 8))]
    overlap = [f"{100 * alone / (alone + allreduce - 20):.0f} %" for alone, allreduce in ((100, 30), (80, 40))]
    zero = [f"{size + size + 6 * size // n} GB" for size, n in ((4, 8), (6, 4))]
    accuracy = [f"{100 * right / n:.3g} %" for right, n in ((130, 150), (70, 100))]
    for number, right in {4: accuracy, 7: ring, 8: tree, 10: overlap, 11: young, 12: zero}.items():
        item = all_items()[number - 1]
        assert list(item.choices[item.right]) == right


def test_answers_are_kept_and_nothing_is_told(learner: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Asked again, the questions know the answer; the key is not in what is shown; consent can be taken back."""
    before(6)
    shown = capsys.readouterr().out
    assert [name in shown for name in ("before.6", "before.7", "Question consent")] == [True, False, True]
    assert not any(each.why in shown for each in all_items())
    guess("before.1", 3)
    guess("consent", "yes")
    rows, _ = export.collect([learner], KEY)
    assert [row[2:5] for row in rows[:2]] == [("before.1", "c", "1"), ("before.2", "", "")]
    ask.BOOK = Book()  # another kernel
    before()
    after()
    assert ask.BOOK.guess("before.1").last == "63, 63, 62 and 62"
    guess("consent", "no")
    assert export.collect([learner], KEY)[0] == []


def test_time_is_counted_without_pauses(learner: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first run of the cell to the check that passed first; a night counts as ten minutes."""
    now = [1000.0]
    monkeypatch.setattr(exercise.time, "time", lambda: now[0])  # type: ignore[attr-defined]
    name = "09.local_batches"
    exercise.exercise(name)(lambda *_: None)
    for passed, seconds in ((False, 60), (False, 50_000), (True, 30), (True, 500)):
        now[0] += seconds
        exercise.exercise(name)(task(name).reference if passed else lambda *_: None)
        exercise.check(name)
    entry = exercise.entries(progress_file.read(learner / progress_file.FILE))[name]
    assert (entry.spent, entry.began, entry.at) == (60 + exercise.IDLE_S + 30, 1060.0, 51_090.0)
    old = exercise.entries({name: {"attempts": 2, "passed": True, "at": 9.0, "began": 1.0}})[name]
    assert (old.passed, old.spent) == (True, 0.0)


def test_what_cannot_be_used_is_said(tmp_path: Path) -> None:
    """Damaged, twice, left, half filled, none of the choices, without consent: each is counted, none vanishes."""
    first, second = tmp_path / "first", tmp_path / "second"
    folder(first / "kim"), folder(second / "kim", "after", right=9)
    folder(first / "twice"), folder(second / "twice", **{"before.1": "62 each"})
    folder(first / "left", right=5, **{"before.6": "=HYPERLINK(1)"})
    folder(first / "no", consent="no"), folder(first / "silent", consent=None)
    folder(first / "back"), folder(second / "back", consent="no")
    (folder(first / "damaged") / progress_file.FILE).write_text('{"predictions": {"cons')
    (first / "empty").mkdir()
    data, said = export.collect([first, second], KEY)
    text = "\n".join(said)
    assert "8 learners: 3 in the data; left out: 1 not readable, 1 without a progress file, 3 have not agreed" in text
    assert "kim: in 2 folders; taken for one learner" in text
    kim, twice, left = (export.pseudonym(KEY, name) for name in ("kim", "twice", "left"))  # who has agreed has no name
    assert f"{kim}: after: 9 of 12 answered" in text
    assert f"{twice}: 1 answer in another file differ; the first counts" in text
    assert f"{left}: 1 answer to the test no choice of it; taken as open\n{left}: before: 5 of 12 answered" in text
    assert "damaged: .workbench/progress.json is damaged; left out" in text
    assert not any("HYPERLINK" in text or text in ("kim", "left") for row in data for text in row)
    assert {row[0] for row in data} == {export.pseudonym(KEY, name) for name in ("kim", "twice", "left")}
    write(tmp_path / "data.csv", data)
    one, other, counts = analysis.paired(analysis.read(tmp_path / "data.csv"))
    assert (one.sum(), other.sum()) == (12, 9)
    assert list(counts.values()) == [3, 1, 1, 0, 1, 1]


def test_a_file_without_consent_is_not_used_for_that_of_a_namesake(tmp_path: Path) -> None:
    """Two classes have a learner01 each: one has agreed, the other was never asked."""
    folder(tmp_path / "monday" / "learner01", right=3)
    folder(tmp_path / "tuesday" / "learner01", "after", right=12, consent=None)
    data, _ = export.collect([tmp_path / "monday", tmp_path / "tuesday"], KEY)
    assert sum(row[1] == "before" and row[4] == "1" for row in data) == 3
    assert not [row for row in data if row[1] == "after" and row[3]]


def test_the_command_writes_data_for_the_instructor_alone(tmp_path: Path) -> None:
    """The key is made once, for its owner; a key that others can read is refused."""
    folder(tmp_path / "class" / "kim"), folder(tmp_path / "class" / "lee", right=3)
    key, out = tmp_path / "key", tmp_path / "data.csv"
    words = [sys.executable, "-m", "workbench.course.evidence", tmp_path / "class", "--key", key, "--out", out]
    done = [subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout for _ in range(2)]
    assert (done[0] == done[1], f"{out}: 48 rows" in done[0]) == (True, True)
    assert [stat.S_IMODE(each.stat().st_mode) for each in (key, out)] == [0o600, 0o600]
    assert sum(row["right"] == "1" for row in analysis.read(out)) == 15
    key.chmod(0o644)
    refused = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (refused.returncode, "chmod 600" in refused.stderr) == (1, True)
    (tmp_path / "no_key").touch(0o600)
    with pytest.raises(WorkbenchError, match="is no key"):
        export.made_key(tmp_path / "no_key")
    with pytest.raises(WorkbenchError, match="There is no folder"):
        export.collect([tmp_path / "nobody"], KEY)


@pytest.mark.parametrize(("n", "shift"), [(10, 0.5), (30, 0.0), (30, 0.5), (30, 1.2)])
def test_the_interval_holds_the_gain_as_often_as_it_says(n: int, shift: float) -> None:
    """Of 200 simulated classes, in 90 to 99 of 100."""
    classes = (np.mean(drawn(n, shift, seed), axis=2) for seed in range(200))
    found = np.array([analysis.interval(analysis.class_gain, *each) for each in classes])
    assert 180 <= np.sum((found[:, 0] <= true_gain(shift)) & (true_gain(shift) <= found[:, 1])) <= 198


def test_gains_where_there_is_nothing_to_gain() -> None:
    """All right before: no learner's own gain, and no class gain if that holds for all; too few: no interval."""
    one, other = np.array([1.0, 0.5, 0.5]), np.array([0.5, 1.0, 0.5])
    assert analysis.mean_gain(one, other) == 0.5
    assert analysis.class_gain(one, other) == 0.0
    assert np.isnan([gain(np.ones(12), np.ones(12)) for gain in (analysis.mean_gain, analysis.class_gain)]).all()
    with pytest.raises(WorkbenchError, match="9 learners have both tests: fewer than 10"):
        analysis.interval(analysis.class_gain, one.repeat(3), other.repeat(3))


def test_items_are_recovered_in_order_and_a_wrong_key_is_found() -> None:
    """Ranks of difficulty and discrimination go with the model's; an item with a wrong key discriminates below 0.

    An answer that is open is left out of an item's discrimination, and where all answer alike there is none.
    """
    for n, hard, sharp in ((2000, 0.98, 0.75), (120, 0.95, 0.5)):
        table, _ = drawn(n, 0.0, 0)
        found = np.array([table.mean(axis=0), -HARD, analysis.discrimination(table), SHARP])
        ranks = np.corrcoef(found.argsort(axis=1).argsort(axis=1))
        assert (ranks[0, 1] >= hard, ranks[2, 3] >= sharp) == (True, True), ranks
    assert analysis.discrimination(table).min() > 0
    table[:, 4] = 1 - table[:, 4]
    assert np.flatnonzero(analysis.discrimination(table) < 0).tolist() == [4]
    variances = np.cov(table.T, bias=True)  # of the definition of Cronbach's alpha
    assert analysis.kr20(table) == pytest.approx(12 / 11 * (1 - np.trace(variances) / variances.sum()))
    table[3:, 0], table[:, 1] = np.nan, 1
    expected = np.corrcoef(table[:, 2], np.nanmean(np.delete(table, 2, axis=1), axis=1))[0, 1]
    assert analysis.discrimination(table)[1:3] == pytest.approx([np.nan, expected], nan_ok=True)


@pytest.mark.course
@pytest.mark.parametrize(("n", "shift", "seed"), [(12, 0.5, 0), (30, 0.0, 0), (120, 1.2, 0)])
def test_the_notebook_shows_what_the_functions_say(n: int, shift: float, seed: int, tmp_path: Path) -> None:
    """On three simulated classes: the gain that was drawn is within the interval that the notebook prints."""
    one, other = drawn(n + 1, shift, seed)  # the last one leaves
    write(tmp_path / "class.csv", rows(one, other, seed))
    notebook = jupytext.read(SOURCE, fmt="py:percent")
    notebook.cells[1].source = notebook.cells[1].source.replace("simulated_class.csv", "class.csv")
    outputs = [each for cell in execute(notebook, tmp_path).cells for each in cell.get("outputs", [])]
    text = "".join(each.get("text", "") for each in outputs)
    a, b = one[:n].mean(axis=1), other[:n].mean(axis=1)
    low, high = analysis.interval(analysis.class_gain, a, b)
    assert low <= true_gain(shift) <= high
    assert f"gain of the class: {analysis.class_gain(a, b):.3f}, 95 % interval {low:.3f} to {high:.3f}" in text
    assert f"SIMULATED CLASS: drawn from a model, no learner has answered anything.\n{n + 1:4}  learners" in text
    assert f"{n:4}  both tests\n   1  only before" in text
    assert ("say little" in text) == (n < analysis.ENOUGH)
    assert sum("image/png" in each.get("data", {}) for each in outputs) == 3


def test_the_notebook_is_built_from_its_source() -> None:
    """And shows the simulated class that the model gives."""
    found, source = jupytext.read(SOURCE.with_suffix(".ipynb")), jupytext.read(SOURCE, fmt="py:percent")
    assert [cell.source for cell in found.cells] == [cell.source for cell in source.cells]
    assert all(cell.execution_count for cell in found.cells if cell.cell_type == "code")
    written = SOURCE.with_name("simulated_class.csv").read_text(encoding="utf-8").splitlines()[1:]
    assert [tuple(line.split(",")) for line in written] == rows(*drawn(31, 1.0, 1), 1)
    assert {row[2] for row in rows(*drawn(2, 1.0, 1), 1) if row[1] == "exercise"} <= set(names())
