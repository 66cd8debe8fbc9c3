"""``predict`` asks, ``guess`` answers where there is no form, ``reveal`` tells.

Where nobody can answer (a notebook is built, tested, or run as a script), the fact is told alone, and nothing is kept.
A frontend says with each cell whether somebody can be asked: ``allow_stdin`` in the message.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from workbench.common.notebook import allows_stdin, running_shell
from workbench.course.predictions import page, widget
from workbench.course.predictions.book import Book
from workbench.course.predictions.question import Answer, Question

BOOK = Book()


def predict(
    name: str,
    question: str,
    *,
    choices: Sequence[str] | None = None,
    number: str | None = None,
    order: Sequence[str] | None = None,
    tolerance: float = 0.1,
) -> Any:
    """Ask for a guess, which is stored before ``reveal`` tells.

    Give one of ``choices``, ``number`` and ``order``.

    Args:
        name: lesson and short name; ``reveal`` has the same.
        question: in words.
        choices: one of them is right.
        number: ask for a number; its unit, which may be empty.
        order: to be put in order.
        tolerance: of a number: how far it may be off, as a part of the fact.

    Returns:
        What a notebook shows: a form; where there are no widgets, the question, and how to answer.

    Raises:
        ValueError: not just one of the three, or options that are not all different.

    Example:
        >>> predict("99.bytes", "How many bytes does each of 4 ranks send?", choices=["2 MB", "8 MB"])
        Predict 99.bytes: How many bytes does each of 4 ranks send?
          1. 2 MB
          2. 8 MB
    """
    asked = BOOK.questions[name] = _question(name, question, choices, number, order, tolerance)
    if not is_somebody_there():
        return page.asked(asked)
    BOOK.keep()
    with suppress(ImportError):
        return widget.form(asked, BOOK)
    return page.asked(asked, _how(asked))


def guess(name: str, answer: object) -> None:
    """Answer a question where there is no form; until it is told a second answer replaces the first.

    Args:
        name: of the question.
        answer: an option or its number; a number; options in their order.
    """
    try:
        kept = BOOK.lock(name, answer)
    except ValueError as error:
        print(error)
    else:
        print(f"Your guess is stored: {BOOK.questions[name].said(kept.last)}.")


def reveal(name: str, fact: object, why: str = "", *, anyway: bool = False) -> Any:
    """Tell the fact beside the guess. Without a guess it says that one is due, and does not tell.

    Args:
        name: of the question.
        fact: what is so; computed by the lesson where it can be.
        why: the reason, in a sentence.
        anyway: tell without a guess; then none can be made any more.

    Returns:
        What a notebook shows.

    Raises:
        ValueError: the fact is none of the options; only where nobody is there, so that it never stops a learner.

    Example:
        >>> _ = predict("99.hops", "How many steps does the ring take on 4 ranks?", number="steps")
        >>> reveal("99.hops", 6, "2(n - 1): each chunk goes around almost twice.")
        99.hops. Fact: 6 steps.
        2(n - 1): each chunk goes around almost twice.
    """
    if name not in BOOK.questions:
        return page.due(f'First make a guess: run the cell with predict("{name}", …), answer, and run this cell again.')
    question = BOOK.questions[name]
    if not is_somebody_there():
        return page.told(question, None, question.accept(fact), why, opened=False)
    BOOK.keep()
    kept, known = BOOK.guess(name), _known(question, fact)
    if kept.last is not None or anyway:
        BOOK.tell(name, known)
    with suppress(ImportError):
        return widget.answer(question, BOOK, known, why)
    if not kept.told:
        return page.due(f"First make a guess: answer {name} above, and run this cell again.")
    return page.told(question, kept.last, known, why, opened=True)


def is_somebody_there() -> bool:
    """Can somebody answer: does a person sit before this notebook, or this terminal?"""
    shell = running_shell()
    if shell is None:
        return hasattr(sys, "ps1")
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return True  # IPython on a terminal
    return allows_stdin(kernel)


def _known(question: Question, fact: object) -> Answer:
    """The fact as an answer; what a learner's own changes have made of it may be none of the options."""
    try:
        return question.accept(fact)
    except ValueError:
        return str(fact)


def _question(
    name: str,
    text: str,
    choices: Sequence[str] | None,
    number: str | None,
    order: Sequence[str] | None,
    tolerance: float,
) -> Question:
    given = {"choices": choices, "number": number, "order": order}
    (kind, *others) = [key for key, value in given.items() if value is not None] or [""]
    if not kind or others:
        raise ValueError(f"predict({name!r}): give just one of choices=…, number=… and order=….")
    options = tuple(choices or order or ())
    if kind != "number" and (len(options) < 2 or len(set(options)) < len(options)):
        raise ValueError(f"predict({name!r}): {kind} needs two or more different options, not {list(options)}.")
    return Question(name, text, kind, options, number or "", tolerance)


def _how(question: Question) -> str:
    example: object = {"choices": 1, "number": 12}.get(question.kind, list(range(1, len(question.options) + 1)))
    return (
        "There is no form here (pip install anywidget). Answer in a cell of your own, for example: "
        f'from workbench.course.predictions import guess; guess("{question.name}", {example})'
    )
