"""A new engine in a notebook's job is alone while it runs the cells that the others ran before it started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Newcomer:
    """What a newcomer finds.

    Args:
        job: are the others in a job, which it can join?
        meet: called where a function under ``elastic.run`` begins, in which the others are right now; from there on
            it is alone no more. None: they have left it.
    """

    job: bool = True
    meet: Callable[[], None] | None = None


ALONE: ContextVar[Newcomer | None] = ContextVar("ALONE", default=None)
"""None: this process is no newcomer."""


class NewcomerError(RuntimeError):
    """A newcomer cannot do this alone."""


def needs_the_others(what: str) -> None:
    """Raise if this process is alone.

    Raises:
        NewcomerError: it is.

    Example:
        >>> needs_the_others("shutdown()")
        >>> before = ALONE.set(Newcomer())
        >>> needs_the_others("shutdown()")
        Traceback (most recent call last):
        workbench.common.alone.NewcomerError: shutdown() needs the other engines
        >>> ALONE.reset(before)
    """
    if ALONE.get():
        raise NewcomerError(f"{what} needs the other engines")


def needs_a_job() -> None:
    """Raise where a newcomer would wait in ``init()`` for others that are in no job.

    Raises:
        NewcomerError: they are in none.
    """
    if (newcomer := ALONE.get()) and not newcomer.job:
        raise NewcomerError("the other engines are in no job now")


def meet_the_others(what: str) -> None:
    """A function under ``elastic.run`` begins.

    Raises:
        NewcomerError: the others have left it.
    """
    newcomer = ALONE.get()
    if newcomer and newcomer.meet:
        ALONE.set(None)
        newcomer.meet()
    needs_the_others(what)


def no_collective(entries: Sequence[Any]) -> None:
    """An engine's gate meanwhile."""
    needs_the_others(entries[0].request.name if entries else "a collective")
