"""What ``check`` says of every answer that is known: blank, wrong ones, right ones unlike the official, and that one.

python tests/helpers/verdicts.py            # each answer, then a table of the exercises; a minute
python tests/helpers/verdicts.py 03 04      # of some lessons
python tests/helpers/verdicts.py mine.py    # of a file with WRONG = {"03.ring_allreduce": [function, …]}, and RIGHT
"""

from __future__ import annotations

import re
import runpy
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

SECONDS = 2.0  # of the process's CPU time that a check may take
_KINDS = ("blank", "wrong", "right", "official")
_UNKNOWN = "I cannot tell why"
_PYTHONS = re.compile(
    r"(^|: )(KeyError|IndexError|ZeroDivisionError|AttributeError|NameError|UnboundLocalError|SystemExit|AssertionError"
    r"|TypeError: (unsupported|'NoneType|.* argument)|ValueError: (cannot|operands|too many|max\(\)|setting))"
)
_VALUES = re.compile(r"\[.*\]|\{.*\}|\(.*\)|'[^']*'|\"[^\"]*\"|[-+]?\d[\d.,e+-]*")
_COMPARED = re.compile(r"\byour\b|\bexpected\b|\bin your result\b|\bsays\b")
_OF_A_SUM = re.compile(r"your result = .*\b(missing|twice|times|chunk)\b")  # which ranks are in it
_SENTENCE = 4  # so many words that are not those of a comparison
_OF_A_COMPARISON = re.compile(
    r"\b(your|yours|result|results|sizes|bound|threshold|expected|is|are|in|has|have|of|and|or|with|the|a|an|n|on|it|ends"
    r"|at|rank|ranks|index|item|items|place|samples?|length|lengths|shape|case|cases|step|steps|stage|such|as|that|one"
    r"|bytes?|batch|global|sequence|order|hosts|nodes|ready|sum|values|forward|backward|seconds|took|s|ms)\b"
)


def bare(line: str) -> str:
    """Does the first line of a red verdict say in no sentence of the lesson what is wrong? Then why; else nothing.

    It holds for every exercise and every form: what stands behind the stage's name counts, without its values and
    without the words by which values are compared.

    Example:
        >>> bare("right: n = 2: rank 0, index 0: your result is 0.5, expected 1.0")
        'numbers alone'
        >>> bare("right: n = 2: rank 0, dw1, index 0: your result is 0.5, expected 1.0")
        'numbers alone'
        >>> bare("right: n = 2: the sum was not divided by n; rank 0, index 0: your result is 0.5, expected 1.0")
        ''
        >>> bare("runs: n = 2, rank 0: IndexError: list index out of range")
        "an exception of Python's own"
        >>> bare("runs: n = 2, rank 0: a worker's number is no place in a list; IndexError: list index out of range")
        ''
        >>> bare("right: I cannot tell why; the first difference is: rank 0: your result is 1, expected 2")
        'it says that it cannot tell why'
    """
    if _UNKNOWN in line:
        return "it says that it cannot tell why"
    if "nobody can go on" in line:
        return "a deadlock without who waits for whom"
    text = line.partition(": ")[2]
    named = any(mark in text for mark in ("; ", ". ", "this one is wrong", "ends the whole process"))
    if _PYTHONS.search(text) and not named:
        return "an exception of Python's own"
    words = _OF_A_COMPARISON.sub(" ", _VALUES.sub(" ", text))
    if "of type" in text or _OF_A_SUM.search(text):
        return ""
    if _COMPARED.search(text) and len(re.findall(r"[^\W\d_]{2,}", words)) < _SENTENCE:
        return "numbers alone"
    return ""


@dataclass(frozen=True)
class Verdict:
    """Of one answer.

    Args:
        name: of the exercise.
        kind: ``blank``, ``wrong``, ``right`` or ``official``.
        answer: the function's name.
        said: the first line of what is red; of a right answer the stages that are green.
        seconds: of CPU that the check took.
        hint: what chooses the first hint is known.
        as_it_should: a right answer passes, a wrong one has something red, a blank is told that it is not done.
    """

    name: str
    kind: str
    answer: str
    said: str
    seconds: float
    hint: bool
    as_it_should: bool


def answers(lessons: list[str]) -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """(exercise, kind, answer) of all lessons, or some."""
    if lessons and lessons[0].endswith(".py"):
        yield from in_file(lessons[0])
        return
    wrong = [(name, "wrong", answer) for name, answer, _ in wrong_answers()]
    right = [(name, "right", answer) for name, answer in right_answers()]
    for name in names():
        if not lessons or name[:2] in lessons:
            yield name, "blank", blank(name)
            yield from (one for one in (*wrong, *right) if one[0] == name)
            yield name, "official", task(name).reference


def in_file(path: str) -> Iterator[tuple[str, str, Callable[..., Any]]]:
    """The answers in a file of somebody else's."""
    found = runpy.run_path(path)
    for kind in ("wrong", "right"):
        for name, functions in found.get(kind.upper(), {}).items():
            yield from ((name, kind, one[0] if isinstance(one, tuple) else one) for one in functions)


def blank(name: str) -> Callable[..., Any]:
    """The function as the learner gets it: a blank, or a card's broken program."""
    import numpy as np

    space: dict[str, Any] = {"np": np, "exercise": lambda name: lambda function: function}
    exec(compile(task(name).cell(solved=False), f"<{name}>", "exec"), space)
    return space[task(name).short]  # type: ignore[no-any-return]


def verdict(name: str, kind: str, answer: Callable[..., Any]) -> Verdict:
    """Judge one answer."""
    begun = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy's, of wrong answers
        stages = list(judge.judge(task(name), answer))
    seconds = time.process_time() - begun
    red = [f"{stage.name}: {stage.text}" for stage in stages if stage.passed is False]
    undone = [stage.text for stage in stages if stage.name == "not done yet"]
    said = (red or undone or ["; ".join(stage.name for stage in stages if stage.passed)])[0].splitlines()[0]
    right = {"wrong": bool(red), "blank": bool(red or undone)}.get(kind, not red and not undone)
    return Verdict(name, kind, answer.__name__, said, seconds, bool(red and task(name).helps(red[0])), right)


def imports() -> float:
    """Load what lessons have loaded before a check; the seconds of CPU that it takes."""
    begun = time.process_time()
    import workbench.torch  # noqa: F401
    from workbench import data
    from workbench.course.training import conversion, trial

    conversion.accuracy(trial.make_model(0), data.digits())
    return time.process_time() - begun


def table(found: list[Verdict]) -> Iterator[str]:
    """A row for each exercise: how many answers of each kind are judged as they should be, and the slowest check."""
    yield "exercise | " + " | ".join(_KINDS) + " | bare first lines | without a hint | worst CPU s"
    for name in dict.fromkeys(one.name for one in found):
        mine = [one for one in found if one.name == name]
        counts = [
            f"{sum(one.as_it_should for one in mine if one.kind == kind)} of {sum(one.kind == kind for one in mine)}"
            for kind in _KINDS
        ]
        wrong = [one for one in mine if one.kind == "wrong"]
        cells = [sum(bool(bare(one.said)) for one in wrong), sum(not one.hint for one in wrong)]
        yield " | ".join([name, *counts, *map(str, cells), f"{max(one.seconds for one in mine):.2f}"])


def main(lessons: list[str]) -> int:
    """Print the table; 1 if an answer is not judged as it should be."""
    print(f"imports: {imports():.2f} s of CPU")
    found = []
    for one in answers(lessons):
        last = verdict(*one)
        found.append(last)
        mark = " " if last.as_it_should else "!"
        print(f"{mark} {last.name:22} {last.kind:8} {last.answer:45.45} {last.seconds:5.2f} s  {last.said}", flush=True)
    print(*table(found), sep="\n")
    wrong = [one for one in found if one.kind == "wrong"]
    print(f"{len(wrong)} wrong answers: {sum(bool(bare(one.said)) for one in wrong)} with a bare first line")
    slow = [one for one in found if one.seconds > SECONDS]
    slowest = max(found, key=lambda one: one.seconds)
    print(f"slowest: {slowest.name}, {slowest.answer}, {slowest.seconds:.2f} s; {len(slow)} over {SECONDS:g} s of CPU")
    print(f"{sum(not one.as_it_should for one in found)} judged as they should not be")
    return not all(one.as_it_should for one in found)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
