"""A newcomer to a notebook's job is alone, as long as it runs the cells that the others have run before it came."""

from __future__ import annotations

from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, NoReturn

ALONE = ContextVar("ALONE", default=False)
"""Is this process one?"""


class LeftOutError(RuntimeError):
    """A newcomer cannot do this alone."""


def needs_the_others(what: str) -> None:
    """Raise if this process is alone.

    Raises:
        LeftOutError: it is.

    Example:
        >>> needs_the_others("train()")
        >>> before = ALONE.set(True)
        >>> needs_the_others("train()")
        Traceback (most recent call last):
        workbench.common.alone.LeftOutError: train() needs the other engines
        >>> ALONE.reset(before)
    """
    if ALONE.get():
        raise LeftOutError(f"{what} needs the other engines")


def no_collective(entries: Sequence[Any], at_once: bool = False) -> NoReturn:
    """Stands in the place of an engine's ``submit`` meanwhile."""
    needs_the_others(entries[0].request.name if entries else "a collective")
    raise AssertionError("who is not alone any more submits by itself")


__all__ = ["ALONE", "LeftOutError", "needs_the_others", "no_collective"]
