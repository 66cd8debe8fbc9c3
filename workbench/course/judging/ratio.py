"""Is a wrong number exactly twice, half, n times or an n-th of the right one? Then that names the mistake."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.course.provenance.case import Case

_EXACT = 1e-9


@dataclass(frozen=True)
class Factor:
    """A wrong number's ratio to the right one.

    Args:
        words: ``n times``; ``{k}`` stands for the ratio.
        of: its value in a case.
        cause: what is likely done wrong.
    """

    words: str
    of: Callable[[Case], float]
    cause: str


@dataclass(frozen=True)
class CaseOutcome:
    """What came out of a case, by rank.

    Args:
        case: which.
        yours, expected: the results.
        start: what both began from, where a step from there is compared, and not the number itself.
    """

    case: Case
    yours: Sequence[Any]
    expected: Sequence[Any]
    start: Any = 0.0


USUAL = (
    Factor("n times", lambda case: case.n, "a sum over the ranks was not divided by n, or each rank counts n times"),
    Factor("n² times", lambda case: case.n**2, "n times too much, twice"),
    Factor(
        "one n-th of",
        lambda case: 1 / case.n,
        "it was divided by n once too often; is a mean returned instead of a sum?",
    ),
    Factor("1/n² of", lambda case: 1 / case.n**2, "it was divided by n twice too often"),
    Factor("twice", lambda case: 2.0, "something is added or counted twice"),
    Factor("half of", lambda case: 0.5, "half of it is missing, or it was halved once too often"),
    Factor("minus", lambda case: -1.0, "the sign is wrong"),
)


def named(outcomes: Sequence[CaseOutcome], own: Sequence[Factor] = (), what: str = "number") -> str:
    """The factor between yours and the right numbers, the same one in all cases; empty if there is none.

    Args:
        outcomes: of cases whose results are wrong; with several n, so that twice can be told from n times.
        own: the exercise's own factors, looked at first.
        what: is compared.

    Example:
        >>> one = CaseOutcome(Case(3, "", []), [np.array([6.0, 3.0])] * 3, [np.array([2.0, 1.0])] * 3)
        >>> named([one])
        'n times the right number: a sum over the ranks was not divided by n, or each rank counts n times'
    """
    ratios = [(one.case, ratio(one)) for one in outcomes]
    known = [(case, value) for case, value in ratios if value is not None]
    if not known or len(known) < len(ratios):
        return ""
    if all(abs(value - 1.0) < _EXACT for _, value in known):
        return ""
    for factor in (*own, *USUAL):
        if all(abs(value - factor.of(case)) <= _EXACT * abs(value) for case, value in known):
            return f"{factor.words.format(k=f'{known[0][1]:.4g}')} the right {what}: {factor.cause}"
    return ""


def of_numbers(answers: Sequence[tuple[int, Any, float]], own: Sequence[Factor] = ()) -> str:
    """The same of functions that return one number, as the end of a sentence; empty if there is no such factor.

    Args:
        answers: (n, yours, expected), of several n.
        own: the exercise's own factors.

    Example:
        >>> of_numbers([(2, 6.0, 3.0), (4, 8.0, 2.0)])
        '. That is n times the right number: a sum over the ranks was not divided by n, or each rank counts n times'
    """
    told = named([CaseOutcome(Case(n, "", []), [mine], [wanted]) for n, mine, wanted in answers], own)
    return f". That is {told}" if told else ""


def ratio(one: CaseOutcome) -> float | None:
    """Yours divided by what is expected, if that is one number on all ranks; None if not."""
    found: float | None = None
    pairs = [pair for both in zip(one.yours, one.expected, strict=True) for pair in _pairs(*both)]
    for mine, wanted in pairs:
        if not all(isinstance(value, (int, float, np.number, np.ndarray)) for value in (mine, wanted)):
            return None
        try:
            yours, right = np.asarray(mine, float), np.asarray(wanted, float)
        except (OverflowError, TypeError, ValueError):  # a number that no float holds, or an array of something else
            return None
        if yours.shape != right.shape or not np.isfinite(yours).all():
            return None
        yours, right = yours - one.start, right - one.start
        scale = float(np.abs(right).max(initial=0.0))
        if scale < _EXACT:
            if np.abs(yours).max(initial=0.0) > _EXACT:
                return None
            continue
        at = int(np.abs(right).argmax())
        value = float(yours.reshape(-1)[at] / right.reshape(-1)[at])
        if not np.allclose(yours, value * right, rtol=_EXACT, atol=_EXACT * scale):
            return None
        if found is not None and abs(found - value) > _EXACT * abs(value):
            return None
        found = value
    return found


def _pairs(mine: Any, wanted: Any) -> list[tuple[Any, Any]]:
    """The items of two lists of one length; else the two."""
    if isinstance(wanted, (list, tuple)) and isinstance(mine, (list, tuple)) and len(mine) == len(wanted):
        return [pair for both in zip(mine, wanted, strict=True) for pair in _pairs(*both)]
    return [(mine, wanted)]
