"""Which known mistake explains all of a learner's answers? For answers that are part of a result, such as a column."""

from __future__ import annotations

from collections.abc import Iterable


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
