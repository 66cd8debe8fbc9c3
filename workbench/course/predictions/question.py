"""A question that is to be answered before the next cell tells: one choice, a number, or an order."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from numbers import Real

from workbench.common.text import count

_THOUSANDS = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")  # 1,200 is one number; 1,5 is not taken for 15

Answer = str | float | list[str]
"""The text of a choice, a number without its unit, or texts in an order."""


@dataclass(frozen=True)
class Question:
    """What is asked.

    Args:
        name: lesson and short name, such as ``03.bytes``.
        text: the question, in words.
        kind: ``choices``, ``number`` or ``order``.
        options: of a choice or an order.
        unit: of a number; may be empty.
        tolerance: how far a number may be off, as a part of the fact.
    """

    name: str
    text: str
    kind: str
    options: tuple[str, ...] = ()
    unit: str = ""
    tolerance: float = 0.1

    @property
    def title(self) -> str:
        """A lesson's question asks for a prediction; others are those of :mod:`workbench.course.evidence`."""
        return "Predict" if self.name[:1].isdigit() else "Question"

    def accept(self, value: object) -> Answer:
        """An answer as it is kept.

        Args:
            value: the text of an option, or its number, counted from 1; a number, or its text; a list of options.

        Raises:
            ValueError: that is no answer to this question; the text says what would be one.

        Example:
            >>> Question("03.bytes", "How many?", "choices", ("8 MB", "12 MB")).accept(2)
            '12 MB'
            >>> Question("07.count", "How many?", "number", unit="messages").accept("1,200 messages")
            1200
        """
        if self.kind == "choices":
            return self._option(value)
        return self._number(value) if self.kind == "number" else self._order(value)

    def _option(self, value: object) -> str:
        if type(value) is int and 1 <= value <= len(self.options):
            return self.options[value - 1]
        if isinstance(value, str) and value in self.options:
            return value
        numbered = ", ".join(f"{i} ({option})" for i, option in enumerate(self.options, 1))
        raise ValueError(f"{self.name}: {value!r} is none of the choices. Give one of {numbered}.")

    def _number(self, value: object) -> float:
        number = math.nan
        if isinstance(value, str):
            with suppress(ValueError):
                number = float(_THOUSANDS.sub("", value.strip().removesuffix(self.unit).strip()))
        elif isinstance(value, Real) and not isinstance(value, bool):  # numpy's numbers, too
            number = float(value)
        if not math.isfinite(number):
            unit = f" of {self.unit}" if self.unit else ""
            raise ValueError(
                f"{self.name}: {value!r} is no number. Give a number{unit}, such as 12 or 1.5, with a point."
            )
        return int(number) if number == int(number) else number

    def _order(self, value: object) -> list[str]:
        if isinstance(value, Sequence) and not isinstance(value, str):
            found = [self._option(each) for each in value]
            if sorted(found) == sorted(self.options):
                return found
        few = count(len(self.options), "option")
        raise ValueError(f"{self.name}: give a list of all {few}, each once, in your order; not {value!r}.")

    def is_right(self, guess: Answer | None, fact: Answer) -> bool:
        """Is a guess the fact; of a number: as near as the tolerance says?"""
        if isinstance(guess, int | float) and isinstance(fact, int | float):
            return abs(guess - fact) <= self.tolerance * abs(fact)
        return guess == fact

    def said(self, answer: Answer | None) -> str:
        """An answer in words.

        Example:
            >>> Question("07.count", "How many?", "number", unit="messages").said(1200)
            '1,200 messages'
        """
        if answer is None:
            return "no guess"
        if isinstance(answer, int | float):
            one = answer == 1 and len(self.unit) > 2  # "ms" is no plural
            return f"{number(answer)} {self.unit.removesuffix('s') if one else self.unit}".rstrip()
        return answer if isinstance(answer, str) else " → ".join(answer)

    def off(self, guess: Answer | None, fact: Answer) -> str:
        """How far a wrong number is off; nothing where that cannot be said as a factor.

        Example:
            >>> Question("07.count", "How many?", "number").off(100, 12)
            '8.3 times too large'
        """
        if not isinstance(guess, int | float) or not isinstance(fact, int | float) or self.is_right(guess, fact):
            return ""
        if guess * fact <= 0:
            return ""
        factor = guess / fact
        return f"{number(factor, 2)} times too large" if factor > 1 else f"{number(1 / factor, 2)} times too small"


def number(value: float, digits: int = 4) -> str:
    """A number in few digits.

    Example:
        >>> number(1200), number(0.123456), number(15.04, 2), number(99.96, 2)
        ('1,200', '0.1235', '15', '100')
    """
    few = f"{value:.{digits}g}"
    if value == int(value) or abs(float(few)) >= 10**digits:
        return f"{value:,.0f}"
    return few
