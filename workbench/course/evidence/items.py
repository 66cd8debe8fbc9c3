"""The twelve items of the test before and after, in two forms; ``items.txt`` is their only source.

An item: its number, the lessons and what it measures; the question before (A) and after (B); four choices in both forms
(``=``: the same text), ``*`` the right one, ``-`` a wrong one with the known mistake that it comes from; ``>`` why.
A mistake is named as ``exercise: words`` in ``tasks/*.txt``, ``predict question: a wrong option``, or ``guide lesson:
words`` in the table of typical mistakes. Form B has other numbers and shows the choices in reverse order, so that the
letter of the right one changes, too. That the forms are equally difficult is an assumption, which is not tested.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path

FORMS = ("before", "after")
LETTERS = "abcd"


@dataclass(frozen=True)
class Item:
    """One item: its questions before and after, the choices in both forms, and where each wrong one comes from."""

    number: int
    lessons: str
    measures: str
    questions: tuple[str, str]
    choices: tuple[tuple[str, str], ...]
    right: int
    mistakes: tuple[str, ...]
    why: str

    def shown(self, form: str) -> list[str]:
        """The choices of ``before`` or ``after``, in the order in which a learner sees them."""
        return [each[FORMS.index(form)] for each in self.choices][:: 1 if form == FORMS[0] else -1]

    def letter(self, form: str, answer: object) -> str:
        """The letter of an answer, the same for one mistake in both forms; empty where it is no choice.

        Example:
            >>> [all_items()[0].letter("after", each) for each in ("33 each", "62 each")]
            ['a', '']
        """
        return next((x for x, each in zip(LETTERS, self.choices, strict=True) if each[FORMS.index(form)] == answer), "")


@cache
def all_items() -> tuple[Item, ...]:
    """All twelve, in the order of the tracks."""
    text = Path(__file__).with_name("items.txt").read_text(encoding="utf-8")
    return tuple(_item(block.splitlines()) for block in text.strip().split("\n\n"))


def _item(lines: list[str]) -> Item:
    (number, lessons, measures), before, after, *choices, why = (line[2:].split(" | ") for line in lines)
    pairs = tuple((a, a if b == "=" else b) for a, b, *_ in choices)
    right = [line[0] for line in lines[3:-1]].index("*")
    mistakes = tuple("".join(rest) for _, _, *rest in choices)
    return Item(int(number), lessons, measures, (before[0], after[0]), pairs, right, mistakes, why[0])
