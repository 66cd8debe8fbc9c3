"""What an exercise is: a reference solution, cases with an obvious answer, bounds, hints. ``judge.py`` judges."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from workbench.course.judging.cause import ERROR, UNKNOWN
from workbench.course.judging.compare import unlike
from workbench.course.judging.mistake import GENERAL, Mistake
from workbench.course.judging.recognise import Outcome, of_call
from workbench.course.provenance.case import Case
from workbench.course.provenance.coding import Coded
from workbench.course.provenance.weights import Weighed
from workbench.course.simulator import Run
from workbench.course.simulator.communicator import copied
from workbench.observe.figure import Figure

_VERBS = {"send", "isend", "sendrecv", "Send", "Isend", "Sendrecv"}  # one message each
_BEGIN, _END = "### BEGIN SOLUTION", "### END SOLUTION"
_DEF = re.compile(r"^ *def .*$", re.MULTILINE)
Property = Callable[[Callable[..., Any]], str]
"""Takes a learner's function, and returns what is wrong with it; else \"\"."""
BLANK = "raise NotImplementedError  # your code here"
"""What stands where the learner's code is to go."""


@dataclass(frozen=True)
class Bound:
    """A figure of merit of one run, beside the best that is possible.

    Args:
        what: ``messages per rank``.
        yours, best: less is better.
        limit: more than this does not pass.
        cause: what is done wrong, then, as a sentence.
        sentence: what is said then, instead of the number and its limit.
    """

    what: str
    yours: float
    best: float
    limit: float
    cause: str = ""
    sentence: str = ""

    @classmethod
    def calls(cls, least: int, most: int, wanted: int) -> Bound:
        """Of comm.compute, which each rank calls once for each layer."""
        count = least if least < wanted else most
        often = {0: "never called", 1: "called once"}.get(count, f"called {count} times")
        said = f"comm.compute was {often}; call it once for each of the {wanted} layers"
        return cls("calls of comm.compute missing or in excess", abs(count - wanted), 0, 0, sentence=said)

    @classmethod
    def busiest(cls, run: Run, best: float, limit: float, cause: str) -> Bound:
        """Of the bytes that the busiest rank sends."""
        return cls("bytes from the busiest rank", max(size for _, size in run.sent()), best, limit, cause)

    @classmethod
    def per_rank(cls, run: Run, messages: int, nbytes: float, cause: str) -> list[Bound]:
        """Of what the ranks of a ring send each: so many messages, and so many bytes."""
        counts, sizes = zip(*run.sent(), strict=True)
        return [
            cls("messages per rank", max(counts), messages, messages),
            cls("bytes per rank", max(sizes), nbytes, nbytes * 1.02, cause),
        ]

    @classmethod
    def none(cls, what: str, yours: float, cause: str = "") -> Bound:
        """Of what there must be none of."""
        return cls(what, yours, 0, 0, cause)

    @classmethod
    def by_hand(cls, run: Run, cause: str) -> Bound:
        """A collective is built from messages, and not taken ready-made."""
        return cls.none(
            "messages of ready-made collectives", sum(one.verb not in _VERBS for one in run.messages), cause
        )


@dataclass(frozen=True)
class Task:
    """An exercise.

    Args:
        name: lesson and name: ``03.ring_allreduce``.
        title: in some words.
        reference: the solution, with the learner's part between ``### BEGIN SOLUTION`` and ``### END SOLUTION``.
        hints: three, each telling more; from the text file beside the exercise's own.
        points: for grading.
        mistakes: the usual ones, from there, too; the first that fits counts, and after them those of any exercise.
        asks_for: what a function must not take ready-made, such as ``comm.allreduce``: grading flags it.
        live: it is given models or optimizers, which cannot travel: its ranks are processes, see
            ``course/grading/live``.
    """

    name: str
    title: str
    reference: Callable[..., Any]
    hints: tuple[str, str, str] = ("", "", "")
    points: int = field(default=1, kw_only=True)
    mistakes: Sequence[Mistake] = field(default=(), kw_only=True)
    asks_for: tuple[str, ...] = field(default=(), kw_only=True)
    live: bool = field(default=False, kw_only=True)

    asks_cause = False  # a card's does, see ``course/cards.py``

    @property
    def of_ranks(self) -> bool:
        """Do several ranks call the function together?"""
        return next(iter(inspect.signature(self.reference).parameters), "") in ("comm", "hvd")

    @property
    def versions(self) -> list[Mistake]:
        """Mistakes that are known by their results: wrong versions of the solution."""
        return [one for one in self.mistakes if one.edits]

    @property
    def known(self) -> list[Mistake]:
        """Those by which a wrong result is recognised."""
        return self.versions

    def helps(self, verdict: str) -> str:
        """The hint that fits what check() has said; empty if none does."""
        causes = {verdict.index(one.cause): one for one in reversed(self.versions) if one.cause in verdict}
        if causes:  # the first line's counts: the others are in the text behind it
            return causes[min(causes)].hint
        for unknown in (UNKNOWN, ERROR):  # what the stage is called is no cause
            verdict = verdict.partition(unknown)[2] or verdict
        known = (*self.mistakes, *GENERAL)
        fits = (one.hint for one in known if any(words in verdict for words in one.words))
        return next(fits, "")

    def in_words(self, error: str) -> str:
        """An exception's text, behind what it means in this exercise, if that is known."""
        causes = (
            one.cause
            for one in (*self.mistakes, *(GENERAL if self.of_ranks else ()))
            if one.cause and any(words in error for words in one.words)
        )
        return f"{cause}; {error}" if (cause := next(causes, "")) else error

    def solution(self) -> str:
        """The reference's source, as a learner would have written it."""
        lines = self._source().splitlines()
        return "\n".join(line for line in lines if line.strip() not in (_BEGIN, _END)) + "\n"

    def blank(self) -> str:
        """The source with a blank in place of the learner's part."""
        kept: list[str] = []
        skipping = False
        for line in self._source().splitlines():
            if line.strip().startswith(_BEGIN):
                kept.append(line[: line.index("#")] + BLANK)
                skipping = True
            if not skipping:
                kept.append(line)
            if line.strip().startswith(_END):
                skipping = False
        return "\n".join(kept) + "\n"

    def _source(self) -> str:
        source = textwrap.dedent(inspect.getsource(self.reference))
        named = re.sub(r"^def \w+", f"def {self.short}", source)
        return _DEF.sub(lambda found: re.sub(r": Any| -> Any", "", found[0]), named)  # a learner's has no annotations

    @property
    def short(self) -> str:
        """The name of the learner's function."""
        return self.name.partition(".")[2]

    def cell(self, solved: bool) -> str:
        return f'@exercise("{self.name}")\n' + (self.solution() if solved else self.blank())


@dataclass(frozen=True)
class CommTask(Task):
    """A function ``f(comm, …)`` that ranks run together.

    Args:
        cases: from the smallest to the largest.
        expected: of a case, by rank; the obvious slow way.
        bounds: of the run of a case.
        scored: the case whose bounds are shown.
        shown: the case that ``show()`` draws.
        real: does it make sense on real ranks?
        coded: how it is run with inputs that tell where a number comes from.
        weighed: how the samples of a mean are weighed.
        names: of the result, or of its items if it is several: ``the weights``. A wrong number is told with its name.
        start: of a case, what its results are a step away from; a wrong step is compared, then.
    """

    cases: Callable[[], Sequence[Case]] = field(kw_only=True)
    expected: Callable[[Case], Sequence[Any]] = field(kw_only=True)
    bounds: Callable[[Case, Run], Sequence[Bound]] | None = field(default=None, kw_only=True)
    scored: Case | None = field(default=None, kw_only=True)
    shown: Case | None = field(default=None, kw_only=True)
    real: bool = field(default=True, kw_only=True)
    coded: Coded | None = field(default=None, kw_only=True)
    weighed: Weighed | None = field(default=None, kw_only=True)
    names: Sequence[str] = field(default=(), kw_only=True)
    start: Callable[[Case], Any] | None = field(default=None, kw_only=True)


@dataclass(frozen=True)
class PlainTask(Task):
    """A function that one process calls.

    Args:
        properties: each takes the learner's function and returns "" or what is wrong, with the smallest case first.
            Its docstring is what is shown when it holds.
        probes: arguments with which wrong versions are told from each other; the function is wrong for some of them.
        outcome: what comes of a function and a probe.
        deadline_s: of each property.
        draw: makes the picture of ``show()``.
    """

    properties: Sequence[Property] = field(kw_only=True)
    probes: Callable[[], Iterable[Any]] = field(default=tuple, kw_only=True)
    outcome: Outcome = field(default=of_call, kw_only=True)
    deadline_s: float = field(default=30.0, kw_only=True)
    draw: Callable[[Callable[..., Any]], Figure] | None = field(default=None, kw_only=True)


def stated(*properties: tuple[str, Property]) -> list[Property]:
    """Properties, each with the sentence that is shown where it holds."""
    for sentence, holds in properties:
        holds.__doc__ = sentence
    return [holds for _, holds in properties]


def as_solution(reference: Callable[..., Any], *cases: tuple[str, Iterable[tuple[Any, ...]]]) -> list[Property]:
    """Properties: with these arguments the results are the solution's. Each with its sentence, as in :func:`stated`."""
    names = inspect.signature(reference).parameters

    def wrong(function: Callable[..., Any], given: Iterable[tuple[Any, ...]]) -> str:
        for one in given:
            if told := unlike(function(*map(copied, one)), reference(*one)):
                about = ", ".join(f"{name} {value}" for name, value in zip(names, one, strict=False))
                return f"{about}{told}"
        return ""

    return stated(*((sentence, partial(wrong, given=given)) for sentence, given in cases))


def inserted(name: str) -> str:
    """The first line of the cell that ``solution()`` inserts."""
    return f'# This cell is from solution("{name}").'


def is_blank(function: Callable[..., Any]) -> bool:
    """Has nobody written anything yet? ``raise NotImplementedError`` or ``...`` stands somewhere.

    Example:
        >>> def todo(x):
        ...     raise NotImplementedError
        >>> is_blank(todo), is_blank(len)
        (True, False)
    """
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):
        return "NotImplementedError" in code.co_names
    if any(isinstance(node, ast.Raise) and "NotImplementedError" in ast.dump(node) for node in ast.walk(tree)):
        return True
    places = (node for node in ast.walk(tree) if isinstance(node, ast.Expr))
    return any(isinstance(one.value, ast.Constant) and one.value.value is Ellipsis for one in places)


__all__ = ["BLANK", "Bound", "Case", "CommTask", "PlainTask", "Task", "as_solution", "inserted", "is_blank", "stated"]
