"""Cards of "Find the bug": a program with one mistake. To be repaired, and its cause to be named.

check("11.epoch")           says what the program does wrong, or that it is repaired
cause("11.epoch")           four causes, of which one is right
cause("11.epoch", "b")      says whether b is, and why
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from workbench.course.judging.task import CommTask, PlainTask, Task
from workbench.observe.figure import Figure

_LETTERS = "abcd"


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


def cause(name: str, choice: str = "") -> None:
    """Name the cause of a card's mistake: one of four, by its letter; without one, read the four.

    A card is done when its program is repaired and its cause is named, in any order. How many guesses it took stands on
    the board.

    Example:
        >>> cause("11.epoch", "e")
        Choose one of a, b, c and d; cause("11.epoch") shows them.
    """
    from workbench.course import exercise, tasks  # they know all tasks, and this module is below them

    card = tasks.task(name)
    if not isinstance(card, Card):
        print(f"{name} is not one of the cards: it has no mistake planted in it.")
        return
    if not choice:
        for letter, (sentence, _) in zip(_LETTERS, card.causes, strict=True):
            print(f"  {letter}  {sentence}")
        return
    letter = choice.strip().lower()
    if letter not in tuple(_LETTERS):
        print(f'Choose one of a, b, c and d; cause("{name}") shows them.')
        return
    sentence, answer = card.causes[_LETTERS.index(letter)]
    entry = exercise.BOARD.entry(name)
    entry.causes += not entry.cause
    if letter != card.right:
        exercise.BOARD.save(name)
        print(f"  ✗ {letter}  {sentence}\n      Not this one. {answer}")
        return
    entry.cause = True
    exercise.BOARD.save(name)
    print(f"  ✓ {letter}  {sentence}\n      {answer}")
    if not entry.passed:
        print(f'      Now repair the program: check("{name}").')


__all__ = ["Card", "CommCard", "PlainCard", "cause"]
