"""What ``check`` says of every answer that is known: blank, wrong ones, right ones unlike the official, and that one.

python tests/helpers/verdicts.py            # a table, and how many there are; a minute
python tests/helpers/verdicts.py 03 04      # of some lessons
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from right_answers import right_answers
from wrong_answers import wrong_answers

from workbench.course.judging import judge
from workbench.course.tasks import names, task

SECONDS = 2.0  # that a check may take


@dataclass(frozen=True)
class Verdict:
    """Of one answer.

    Args:
        name: of the exercise.
        kind: ``blank``, ``wrong``, ``right`` or ``official``.
        answer: the function's name.
        said: the first line of what is red; of a right answer the stages that are green.
        seconds: that the check took.
        as_it_should: a right answer passes, a wrong one has something red, a blank is told that it is not done.
    """

    name: str
    kind: str
    answer: str
    said: str
    seconds: float
    as_it_should: bool


def answers(lessons: list[str]) -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """(exercise, kind, answer) of all lessons, or some."""
    wrong = [(name, "wrong", answer) for name, answer, _ in wrong_answers()]
    right = [(name, "right", answer) for name, answer in right_answers()]
    for name in names():
        if not lessons or name[:2] in lessons:
            yield name, "blank", blank(name)
            yield from (one for one in (*wrong, *right) if one[0] == name)
            yield name, "official", task(name).reference


def blank(name: str) -> Callable[..., Any]:
    """The function as the learner gets it: a blank, or a card's broken program."""
    import numpy as np

    space: dict[str, Any] = {"np": np, "exercise": lambda name: lambda function: function}
    exec(compile(task(name).cell(solved=False), f"<{name}>", "exec"), space)
    return space[task(name).short]  # type: ignore[no-any-return]


def verdict(name: str, kind: str, answer: Callable[..., Any]) -> Verdict:
    """Judge one answer."""
    begun = time.monotonic()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, of wrong answers
        stages = list(judge.judge(task(name), answer))
    seconds = time.monotonic() - begun
    red = [f"{stage.name}: {stage.text}" for stage in stages if stage.passed is False]
    undone = [stage.text for stage in stages if stage.name == "not done yet"]
    said = (red or undone or ["; ".join(stage.name for stage in stages if stage.passed)])[0].splitlines()[0]
    right = {"wrong": bool(red), "blank": bool(red or undone)}.get(kind, not red and not undone)
    return Verdict(name, kind, answer.__name__, said, seconds, right)


def main(lessons: list[str]) -> int:
    """Print the table; 1 if an answer is not judged as it should be."""
    found = []
    for one in answers(lessons):
        found.append(verdict(*one))
        mark = " " if found[-1].as_it_should else "!"
        last = found[-1]
        print(f"{mark} {last.name:22} {last.kind:8} {last.answer:45.45} {last.seconds:5.2f} s  {last.said}", flush=True)
    for kind in ("blank", "wrong", "right", "official"):
        mine = [one for one in found if one.kind == kind]
        each = [sum(one.name == name for one in mine) for name in {one.name for one in found}]
        print(f"{kind}: {len(mine)} answers, at least {min(each, default=0)} for each exercise")
    slow = [one for one in found if one.seconds > SECONDS]
    wrong = [one for one in found if not one.as_it_should]
    slowest = max(found, key=lambda one: one.seconds)
    print(f"slowest: {slowest.name}, {slowest.answer}, {slowest.seconds:.2f} s; {len(slow)} over {SECONDS:g} s")
    print(f"{len(wrong)} judged as they should not be")
    return bool(wrong)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
