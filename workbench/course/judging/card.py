"""Exercises that begin with a program that has a mistake in it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.course.judging.task import CommTask, PlainTask, Task
from workbench.observe.figure import Figure


@dataclass(frozen=True)
class Card(Task):
    """An exercise that begins with a program, not with a blank.

    Args:
        broken: the program with its mistake. The reference differs from it as little as possible, and has the
            docstring for both.
        causes: four sentences, each with the answer to who chooses it: why it is right, or where else to look.
        right: the letter of the right one.
        draw: makes the picture of ``show()``, if a simulated run is not the one to look at.
    """

    broken: Callable[..., Any] = field(kw_only=True)
    causes: tuple[tuple[str, str], tuple[str, str], tuple[str, str], tuple[str, str]] = field(kw_only=True)
    right: str = field(kw_only=True)
    draw: Callable[[Callable[..., Any]], Figure] | None = field(default=None, kw_only=True)

    asks_cause = True

    def blank(self) -> str:
        """The broken program, with the reference's first lines: its signature and its docstring."""
        whole = self.solution()
        function = ast.parse(whole).body[0]
        assert isinstance(function, ast.FunctionDef)
        head = whole.splitlines()[: function.body[0].end_lineno]
        body = replace(self, reference=self.broken).solution().splitlines()[1:]
        return "\n".join([*head, *body]) + "\n"


@dataclass(frozen=True)
class CommCard(Card, CommTask):
    """A card whose program runs on simulated ranks, and on real ones."""


@dataclass(frozen=True)
class PlainCard(Card, PlainTask):
    """A card whose program is judged by properties."""
