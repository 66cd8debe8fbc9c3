"""The results of grading, and how they are written: on the terminal, as CSV, as JUnit's XML. Values in, text out."""

from __future__ import annotations

import csv
import io
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from workbench.common import junit
from workbench.common.text import count, first_line

# What XML cannot hold, a terminal might obey, or nobody sees, such as a mark that turns the direction of reading: the
# texts are a learner's.
_BAD = re.compile(
    "[^\t\n\x20-\x7e\xa0-\u200a\u2010-\u2027\u202f-\u205f\u2070-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U000dffff]"
)
_LONGEST = 2000
_COLUMNS = ("file", "exercise", "state", "points", "of", "seconds", "remark", "flags", "confined", "learner")
_FORMULA = tuple("=+-@\t\r")
_WIDTH = 110


class ExerciseState(Enum):
    """The state of an exercise; the value is its symbol."""

    PASSED = "✓"
    FAILED = "✗"
    NOT_DONE = "–"
    NOT_JUDGED = "?"


_OUTCOMES = {
    ExerciseState.PASSED: "",
    ExerciseState.FAILED: "failure",
    ExerciseState.NOT_DONE: "skipped",
    ExerciseState.NOT_JUDGED: "error",
}


@dataclass
class ExerciseResult:
    """One exercise of one notebook.

    Args:
        name: ``03.ring_allreduce``.
        of: the most points.
        state: NOT_JUDGED until there is a result.
        text: the first red line, or why it was not judged.
        seconds: the duration of judging.
        flags: what a teacher should look at, whatever the state.
    """

    name: str
    of: int
    state: ExerciseState = ExerciseState.NOT_JUDGED
    text: str = ""
    seconds: float = 0.0
    flags: list[str] = field(default_factory=list)

    @property
    def points(self) -> int:
        return self.of if self.state is ExerciseState.PASSED else 0


@dataclass
class NotebookResult:
    """One notebook.

    Args:
        path: as it was given.
        exercises: by name, in the notebook's order.
        notes: by number of a code cell that did not end well, what happened.
        problem: why nothing of it could be graded; "" if it could.
        unbounded: what its code was not kept from; "" if it was confined in all.
        missing: the other exercises of these lessons, which the notebook does not have, with their points.
        learner: the folder that it was in, see :func:`~workbench.cli.grade.learners.learner_of`.
    """

    path: str
    exercises: dict[str, ExerciseResult] = field(default_factory=dict)
    notes: dict[int, str] = field(default_factory=dict)
    problem: str = ""
    unbounded: str = ""
    missing: dict[str, int] = field(default_factory=dict)
    learner: str = ""

    @property
    def complete(self) -> bool:
        return not self.problem and all(
            result.state is not ExerciseState.NOT_JUDGED for result in self.exercises.values()
        )


def clean(text: str) -> str:
    r"""Without control characters and without end.

    Example:
        >>> clean("a\x1b[31mb\ud800")
        'a?[31mb?'
    """
    return _BAD.sub("?", text[:_LONGEST])


def shown(path: str) -> str:
    r"""A file's name in one line; two different ones stay different.

    Example:
        >>> shown("kim.ipynb"), shown("kim\n\u202elee.ipynb")
        ('kim.ipynb', 'kim\\n\\u202elee.ipynb')
    """
    if not (_BAD.search(path) or "\n" in path or "\t" in path):
        return path
    return "".join(one if _plain(one) else one.encode("unicode_escape").decode() for one in path)


def _plain(one: str) -> bool:
    return one not in "\n\t\\" and not _BAD.match(one)


def field_of(text: str) -> str:
    """A text as a field of the CSV: what a spreadsheet would compute becomes a text with a ' before it.

    Example:
        >>> field_of("=1+1"), field_of("right: no")
        ("'=1+1", 'right: no')
    """
    return f"'{text}" if text.startswith(_FORMULA) else text


def table(notebook: NotebookResult) -> Iterator[str]:
    r"""The lines for the terminal.

    Example:
        >>> good = ExerciseResult("03.a", 2, ExerciseState.PASSED, "", 0.25)
        >>> bad = ExerciseResult("03.b", 1, ExerciseState.FAILED, "right: no")
        >>> print("\n".join(table(NotebookResult("kim.ipynb", {"03.a": good, "03.b": bad}, {4: "NameError: x"}))))
        kim.ipynb: 2 of 3 points
          ✓ 03.a  2/2   0.2 s
          ✗ 03.b  0/1   0.0 s  right: no
            code cell 4: NameError: x
    """
    if notebook.problem:
        yield f"{shown(notebook.path)}: not graded: {notebook.problem}"
        return
    results = notebook.exercises.values()
    points, of = sum(result.points for result in results), sum(result.of for result in results)
    yield f"{shown(notebook.path)}: {points} of {of} points"
    if notebook.unbounded:
        yield f"    not confined: {notebook.unbounded}"
    width = max(len(result.name) for result in results)
    for result in results:
        line = f"  {result.state.value} {result.name:{width}}  {result.points}/{result.of} {result.seconds:5.1f} s"
        yield f"{line}  {first_line(result.text, _WIDTH)}".rstrip()
        yield from (f"      look: {first_line(flag, _WIDTH)}" for flag in result.flags)
    if notebook.missing:
        gone = ", ".join(f"{name} ({count(points, 'point')})" for name, points in notebook.missing.items())
        yield f"    not in it: {gone}"
    for cell, text in sorted(notebook.notes.items()):
        yield f"    code cell {cell}: {first_line(text, _WIDTH)}".rstrip(": ")


def summary(notebooks: Sequence[NotebookResult]) -> str:
    """The last line.

    Example:
        >>> kim = NotebookResult("kim.ipynb", {"03.a": ExerciseResult("03.a", 2, ExerciseState.PASSED)})
        >>> summary([kim, NotebookResult("b.ipynb", problem="empty")])
        '2 notebooks: 1 exercise judged, 1 passed; 1 notebook not graded'
    """
    states = [result.state for notebook in notebooks for result in notebook.exercises.values()]
    unjudged = states.count(ExerciseState.NOT_JUDGED)
    text = f"{count(len(notebooks), 'notebook')}: {count(len(states) - unjudged, 'exercise')} judged"
    text += f", {states.count(ExerciseState.PASSED)} passed"
    if unjudged:
        text += f"; {count(unjudged, 'exercise')} not judged in time"
    bad = sum(bool(notebook.problem) for notebook in notebooks)
    return text + (f"; {count(bad, 'notebook')} not graded" if bad else "")


def as_csv(notebooks: Iterable[NotebookResult]) -> str:
    """One line per exercise; one for a notebook that could not be graded."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(_COLUMNS)
    for notebook in notebooks:
        path, confined = field_of(shown(notebook.path)), f"no: {notebook.unbounded}" if notebook.unbounded else "yes"
        learner = field_of(shown(notebook.learner))
        if notebook.problem:
            problem, run = field_of(" ".join(notebook.problem.split())), confined if notebook.exercises else "not run"
            lines.writerow([path, "", "not graded", 0, 0, "0.0", *(problem, "", run, learner)])
        for result in notebook.exercises.values():
            state, remark = result.state.name.lower().replace("_", " "), " ".join(result.text.split())
            seconds = f"{result.seconds:.1f}"
            about = map(field_of, (remark, "; ".join(result.flags)))
            lines.writerow([path, result.name, state, result.points, result.of, seconds, *about, confined, learner])
        for exercise, of in notebook.missing.items():
            lines.writerow([path, exercise, "not in it", 0, of, "0.0", "", "", confined, learner])
    return out.getvalue()


def as_junit(notebooks: Iterable[NotebookResult]) -> str:
    """One testsuite per notebook, one testcase per exercise."""
    return junit.document(junit.suites(junit.suite(shown(notebook.path), _cases(notebook)) for notebook in notebooks))


def _cases(notebook: NotebookResult) -> Iterator[junit.JunitCase]:
    name = shown(notebook.path)
    if notebook.problem:
        yield junit.JunitCase(name, "notebook", "error", notebook.problem, seconds=0.0)
    for result in notebook.exercises.values():
        message = "" if result.state is ExerciseState.PASSED else first_line(result.text, _WIDTH)
        text = "" if result.state is ExerciseState.PASSED else result.text
        yield junit.JunitCase(name, result.name, _OUTCOMES[result.state], message, text, result.seconds)


def print_lines(lines: Iterable[str]) -> None:
    """Print, whatever characters the terminal has."""
    encoding = sys.stdout.encoding or "utf-8"
    for line in lines:
        print(line.encode(encoding, "replace").decode(encoding), flush=True)
