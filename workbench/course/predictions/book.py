"""What was predicted: the questions of this kernel, and the guesses, which are kept in the progress file."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from workbench.course import progress_file
from workbench.course.predictions.names import NAMES
from workbench.course.predictions.question import Answer, Question


@dataclass
class Guess:
    """What somebody guessed.

    Args:
        first: the first guess.
        last: the guess that stood when the answer was told.
        told: was it told? From then on the guess stays.
        right: was the last one right?
    """

    first: Answer | None = None
    last: Answer | None = None
    told: bool = False
    right: bool = False


@dataclass
class Book:
    """Questions and guesses by name. Without a learner (``path`` is None) nothing is read or written."""

    questions: dict[str, Question] = field(default_factory=dict)
    guesses: dict[str, Guess] = field(default_factory=dict)
    path: Path | None = None
    watchers: dict[str, tuple[str, Callable[[], None]]] = field(default_factory=dict)

    def watch(self, who: str, name: str, act: Callable[[], None]) -> None:
        """Call ``act`` when the guess changes, or is told. A cell that runs again takes its own earlier place."""
        self.watchers[who] = (name, act)

    def keep(self) -> None:
        """From now on keep guesses in the file, beside those that are there."""
        if self.path is None:
            self.path = progress_file.FILE.resolve()
            self.guesses = {**read(self.path), **self.guesses}

    def guess(self, name: str) -> Guess:
        """What was guessed about a question."""
        return self.guesses.setdefault(name, Guess())

    def lock(self, name: str, value: object) -> Guess:
        """Store an answer; it may be changed until the fact is told.

        Raises:
            ValueError: there is no such question, it has been told already, or this is no answer to it.
        """
        if name not in self.questions:
            raise ValueError(f'{name} was not asked yet: run the cell with predict("{name}", …) first.')
        answer, kept = self.questions[name].accept(value), self.guess(name)
        if kept.told:
            said = self.questions[name].said(kept.last)
            raise ValueError(f"{name}: the answer was already shown, so your guess stays as it was: {said}.")
        kept.first = answer if kept.first is None else kept.first
        kept.last = answer
        self.save(name)
        return kept

    def tell(self, name: str, fact: Answer) -> Guess:
        """Note that the fact is told now: the guess cannot be changed any more."""
        kept = self.guess(name)
        if not kept.told:
            kept.told, kept.right = True, self.questions[name].is_right(kept.last, fact)
            self.save(name)
        return kept

    def save(self, name: str) -> None:
        """Write one guess into the file, and let its form and its answer know."""
        for watched, act in list(self.watchers.values()):
            if watched == name:
                act()
        if self.path is None:
            return

        def change(contents: dict[str, Any]) -> None:
            section = contents.get(progress_file.PREDICTIONS)
            section = section if isinstance(section, dict) else {}
            contents[progress_file.PREDICTIONS] = {**section, name: asdict(self.guesses[name])}

        progress_file.update(self.path, change)


def read(path: Path) -> dict[str, Guess]:
    """The guesses in a file; what is none is left out."""
    return guesses(progress_file.read(path))


def guesses(contents: dict[str, Any]) -> dict[str, Guess]:
    """The guesses in the contents of a progress file."""
    section = contents.get(progress_file.PREDICTIONS)
    found = section.items() if isinstance(section, dict) else ()
    return {name: _guess(value) for name, value in found if isinstance(value, dict)}


def _guess(value: dict[str, Any]) -> Guess:
    first, last = (value.get(key) if _is_answer(value.get(key)) else None for key in ("first", "last"))
    return Guess(first, last, value.get("told") is True, value.get("right") is True)


def _is_answer(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(each, str) for each in value)
    return isinstance(value, str | int | float) and not isinstance(value, bool)


def lines(guesses: dict[str, Guess], lesson: str = "") -> list[str]:
    """What ``progress()`` says of predictions; of one lesson's: each. They give no points.

    Example:
        >>> lines({}, "no such lesson")
        []
    """
    names = [name for name in NAMES if name.startswith(lesson)]
    found = {name: guesses.get(name, Guess()) for name in names}
    answered = sum(each.last is not None for each in found.values())
    right = sum(each.right for each in found.values())
    each = [f"{name:28} {_state(guess)}" for name, guess in found.items()] if lesson else []
    told = f"{answered} of {len(names)} predictions made, {right} right (they give no points)"
    return [*each, told] if names else []


def _state(guess: Guess) -> str:
    if guess.last is None:
        return "– told without a guess" if guess.told else "– open"
    if not guess.told:
        return "… guessed, not told yet"
    return "✓ right" if guess.right else "✗ not right"


def as_json(guesses: dict[str, Guess]) -> dict[str, Any]:
    """The same for ``report()``: of each prediction whether it was made and right, and the first guess."""
    found = {name: guesses.get(name, Guess()) for name in NAMES}
    return {
        name: {"answered": one.last is not None, "right": one.right, "first": one.first, "last": one.last}
        for name, one in found.items()
    }
