"""What grading has found, and how it is written down: on the terminal, as CSV, as JUnit's XML. Values in, text out."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from xml.sax.saxutils import escape, quoteattr

# What XML cannot hold or a terminal might obey: the texts are a learner's.
_BAD = re.compile("[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_LONGEST = 2000
_COLUMNS = ("file", "exercise", "state", "points", "of", "seconds", "remark")
_WIDTH = 110


class State(Enum):
    """How an exercise stands; the value is its mark."""

    PASSED = "✓"
    FAILED = "✗"
    NOT_DONE = "–"
    NOT_JUDGED = "?"


@dataclass
class Mark:
    """One exercise of one notebook.

    Args:
        exercise: ``03.ring_allreduce``.
        of: the points that it can give.
        state: no mark yet is NOT_JUDGED.
        text: the first red line, or why there is no mark.
        seconds: that judging took.
    """

    exercise: str
    of: int
    state: State = State.NOT_JUDGED
    text: str = ""
    seconds: float = 0.0

    @property
    def points(self) -> int:
        """All of them or none."""
        return self.of if self.state is State.PASSED else 0


@dataclass
class Sheet:
    """One notebook.

    Args:
        path: as it was given.
        marks: by exercise, in the notebook's order.
        notes: about cells that did not end well: (number of the code cell, what happened).
        problem: why nothing of it could be graded; "" if it could.
    """

    path: str
    marks: dict[str, Mark] = field(default_factory=dict)
    notes: dict[int, str] = field(default_factory=dict)
    problem: str = ""

    @property
    def complete(self) -> bool:
        """Has each exercise been judged?"""
        return not self.problem and all(mark.state is not State.NOT_JUDGED for mark in self.marks.values())


def clean(text: str) -> str:
    r"""Without control characters and without end.

    Example:
        >>> clean("a\x1b[31mb\ud800")
        'a?[31mb?'
    """
    return _BAD.sub("?", text[:_LONGEST])


def first_line(text: str, most: int = _WIDTH) -> str:
    r"""The first line, shortened.

    Example:
        >>> first_line("right: n = 2, length 1: rank 1\n  in ...", 12)
        'right: n = …'
    """
    line = text.partition("\n")[0]
    return line if len(line) <= most else line[: most - 1] + "…"


def table(sheet: Sheet) -> Iterator[str]:
    r"""The lines for the terminal.

    Example:
        >>> good, bad = Mark("03.a", 2, State.PASSED, "", 0.25), Mark("03.b", 1, State.FAILED, "right: no")
        >>> print("\n".join(table(Sheet("kim.ipynb", {"03.a": good, "03.b": bad}, {4: "NameError: x"}))))
        kim.ipynb: 2 of 3 points
          ✓ 03.a  2/2   0.2 s
          ✗ 03.b  0/1   0.0 s  right: no
            code cell 4: NameError: x
    """
    if sheet.problem:
        yield f"{sheet.path}: not graded: {sheet.problem}"
        return
    marks = sheet.marks.values()
    yield f"{sheet.path}: {sum(mark.points for mark in marks)} of {sum(mark.of for mark in marks)} points"
    width = max(len(mark.exercise) for mark in marks)
    for mark in marks:
        line = f"  {mark.state.value} {mark.exercise:{width}}  {mark.points}/{mark.of} {mark.seconds:5.1f} s"
        yield f"{line}  {first_line(mark.text)}".rstrip()
    for cell, text in sorted(sheet.notes.items()):
        yield f"    code cell {cell}: {first_line(text)}".rstrip(": ")


def summary(sheets: Sequence[Sheet]) -> str:
    """The last line.

    Example:
        >>> summary([Sheet("kim.ipynb", {"03.a": Mark("03.a", 2, State.PASSED)}), Sheet("b.ipynb", problem="empty")])
        '2 notebooks: 1 exercise judged, 1 passed; 1 notebook not graded'
    """
    states = [mark.state for sheet in sheets for mark in sheet.marks.values()]
    unjudged = states.count(State.NOT_JUDGED)
    text = f"{_count(len(sheets), 'notebook')}: {_count(len(states) - unjudged, 'exercise')} judged"
    text += f", {states.count(State.PASSED)} passed"
    if unjudged:
        text += f"; {_count(unjudged, 'exercise')} not judged in time"
    bad = sum(bool(sheet.problem) for sheet in sheets)
    return text + (f"; {_count(bad, 'notebook')} not graded" if bad else "")


def as_csv(sheets: Iterable[Sheet]) -> str:
    """One line per exercise; one for a notebook that could not be graded."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(_COLUMNS)
    for sheet in sheets:
        if sheet.problem:
            lines.writerow([clean(sheet.path), "", "not graded", 0, 0, "0.0", " ".join(sheet.problem.split())])
        for mark in sheet.marks.values():
            state, remark = mark.state.name.lower().replace("_", " "), " ".join(mark.text.split())
            seconds = f"{mark.seconds:.1f}"
            lines.writerow([clean(sheet.path), mark.exercise, state, mark.points, mark.of, seconds, remark])
    return out.getvalue()


def as_junit(sheets: Iterable[Sheet]) -> str:
    """One testsuite per notebook, one testcase per exercise."""
    lines = ['<?xml version="1.0" encoding="utf-8"?>', "<testsuites>"]
    for sheet in sheets:
        lines += _suite(sheet)
    return "\n".join([*lines, "</testsuites>"]) + "\n"


def _suite(sheet: Sheet) -> Iterator[str]:
    name, marks = quoteattr(clean(sheet.path)), sheet.marks.values()
    if sheet.problem:
        yield f'  <testsuite name={name} tests="1" failures="0" errors="1" skipped="0" time="0.0">'
        yield f'    <testcase classname={name} name="notebook"><error message={quoteattr(sheet.problem)}/></testcase>'
        yield "  </testsuite>"
        return
    count = {state: sum(mark.state is state for mark in marks) for state in State}
    numbers = f'tests="{len(marks)}" failures="{count[State.FAILED]}" errors="{count[State.NOT_JUDGED]}"'
    seconds = sum(mark.seconds for mark in marks)
    yield f'  <testsuite name={name} {numbers} skipped="{count[State.NOT_DONE]}" time="{seconds:.1f}">'
    for mark in marks:
        case = f'classname={name} name={quoteattr(mark.exercise)} time="{mark.seconds:.1f}"'
        yield f"    <testcase {case}>{_inner(mark)}</testcase>"
    yield "  </testsuite>"


def _inner(mark: Mark) -> str:
    if mark.state is State.PASSED:
        return ""
    kind = {State.FAILED: "failure", State.NOT_DONE: "skipped", State.NOT_JUDGED: "error"}[mark.state]
    return f"<{kind} message={quoteattr(first_line(mark.text))}>{escape(mark.text)}</{kind}>"


def _count(n: int, noun: str) -> str:
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
