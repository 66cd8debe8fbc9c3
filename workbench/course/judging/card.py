"""Exercises that begin with a program that has a mistake in it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from workbench.course.judging.mistake import Mistake, edited
from workbench.course.judging.task import CommTask, PlainTask, Task
from workbench.observe.figure import Figure

STILL_THERE = "the program as it came gives this, too: its mistake is still there. Which of the four causes fits?"


@dataclass(frozen=True)
class Card(Task):
    """An exercise that begins with a program, not with a blank.

    Args:
        edits: how the program with its mistake differs from the solution: (old text, new text).
        causes: four sentences, each with the answer to who chooses it: why it is right, or where else to look.
        right: the letter of the right one.
        draw: makes the picture of ``show()``, if a simulated run is not the one to look at.
    """

    edits: tuple[tuple[str, str], ...] = field(default=(), kw_only=True)
    causes: tuple[tuple[str, str], ...] = field(default=(), kw_only=True)
    right: str = field(default="", kw_only=True)
    draw: Callable[[Callable[..., Any]], Figure] | None = field(default=None, kw_only=True)

    asks_cause = True

    @cached_property
    def broken(self) -> Callable[..., Any]:
        """The program with its mistake."""
        return Mistake("", edits=self.edits).version_of(self.solution(), self.reference.__globals__)

    @property
    def known(self) -> list[Mistake]:
        """With the card's own."""
        return [*self.versions, Mistake("", cause=STILL_THERE, edits=self.edits)]

    def blank(self) -> str:
        """Its source."""
        return edited(self.solution(), self.edits)


@dataclass(frozen=True)
class CommCard(Card, CommTask):
    """A card whose program runs on simulated ranks, and on real ones."""


@dataclass(frozen=True)
class PlainCard(Card, PlainTask):
    """A card whose program is judged by properties."""
