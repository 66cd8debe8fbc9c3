"""Which known mistake explains all of a learner's answers? For functions that one process calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from workbench.course.simulator.communicator import copied


def named(explained: Iterable[list[str]]) -> str:
    """The mistake that explains every answer of a learner's, as the end of a sentence; empty if none does.

    Args:
        explained: for each case the mistakes that would give the same answer.

    Example:
        >>> named([["too long", "too late"], ["too late"]]), named([["too long"], ["too late"]])
        ('. Look again: too late', '')
    """
    first, *others = explained
    return next((f". Look again: {why}" for why in first if all(why in each for each in others)), "")


def look_again(
    function: Callable[..., Any],
    cases: Iterable[Sequence[Any]],
    mistakes: Callable[..., Iterable[tuple[Any, str]]],
) -> str:
    """The same of a function's answers to some cases.

    Args:
        function: the learner's, which has given a wrong answer.
        cases: arguments. An answer that would be right in one tells nothing; so there should be several.
        mistakes: of the same arguments, what else one may return, and why.

    Example:
        >>> look_again(lambda n: n * n, [(2,), (3,)], lambda n: [(n + 2, "added"), (n * n, "squared")])
        '. Look again: squared'
    """
    try:
        answers = [(case, function(*map(copied, case))) for case in cases]
        return named([why for other, why in mistakes(*case) if alike(yours, other)] for case, yours in answers)
    except Exception:  # noqa: BLE001 - the learner's: the numbers are told anyway
        return ""


def alike(yours: Any, other: Any) -> bool:
    """Two numbers, or lists of them, up to rounding."""
    one, two = np.asarray(yours, float), np.asarray(other, float)
    return one.shape == two.shape and bool(np.allclose(one, two, rtol=1e-9, atol=1e-15))


__all__ = ["look_again", "named"]
