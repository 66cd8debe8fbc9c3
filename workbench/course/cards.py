"""Cards of "Find the bug": a program with one mistake. To be repaired, and its cause to be named.

check("11.epoch")           says what the program does wrong, or that it is repaired
cause("11.epoch")           four causes, of which one is right
cause("11.epoch", "b")      says whether b is, and why
"""

from __future__ import annotations

from workbench.course import exercise, tasks
from workbench.course.judging.card import Card

_LETTERS = "abcd"


def cause(name: str, choice: str = "") -> None:
    """Name the cause of a card's mistake: one of four, by its letter; without one, read the four.

    A card is done when its program is repaired and its cause is named, in any order. How many guesses it took stands on
    the board.

    Example:
        >>> cause("11.epoch", "e")
        Choose one of a, b, c and d; cause("11.epoch") shows them.
    """
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
