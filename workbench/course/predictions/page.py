"""Questions and answers as HTML that says everything without a script, with the same as data for pages that have one.

::

    <div class="wb-predict" data-predict='{"name": …, "question": …, "kind": …, "options": …, "unit": …}'>…</div>
    <div class="wb-reveal" data-reveal='{"name": …, "fact": …, "why": …, "value": …}'>…</div>

A page makes a form of the first and opens the second after the guess. Two keys let it judge the guess of its reader:
``tolerance`` of the question and ``value``, the fact as it is kept: a text, a number or a list.
"""

from __future__ import annotations

import json
from html import escape
from typing import Any

from workbench.course.predictions.question import Answer, Question


class Shown:
    """HTML that a notebook shows, and the same in plain text."""

    def __init__(self, html: str, text: str) -> None:
        self.html, self.text = html, text

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text


def asked(question: Question, how: str = "") -> Shown:
    """The question.

    Args:
        question: what is asked.
        how: how it is answered where there is no form.
    """
    items = "".join(f"<li>{escape(option)}</li>" for option in question.options)
    unit = f"<p>A number of {escape(question.unit)}.</p>" if question.unit else ""
    list_ = f"<ol>{items}</ol>" if items else unit
    inside = f"<p><strong>{escape(question.title)}:</strong> {escape(question.text)}</p>{list_}" + (
        f"<p>{escape(how)}</p>" if how else ""
    )
    numbered = [f"  {i}. {option}" for i, option in enumerate(question.options, 1)]
    text = "\n".join([f"{question.title} {question.name}: {question.text}", *numbered, *([how] if how else [])])
    return Shown(_division("predict", as_data(question), inside), text)


def told(question: Question, guess: Answer | None, fact: Answer, why: str, opened: bool) -> Shown:
    """Guess and fact side by side, and why; for a reader who has not been asked, the fact alone.

    Args:
        question: what was asked.
        guess: the answer to it; None without one.
        fact: what is so.
        why: the reason, in a sentence.
        opened: somebody was asked; else the fact is behind a line that is to be clicked on.
    """
    found = verdict(question, guess, fact, why)
    line = found["line"] if opened else f"Fact: {found['fact']}."
    sentence = f"<p><strong>{escape(line)}</strong></p><p>{escape(why)}</p>"
    summary = f"{question.name}: {'your guess, and ' if opened else ''}the fact"
    inside = f"<details{' open' if opened else ''}><summary>{escape(summary)}</summary>{sentence}</details>"
    data = {key: found[key] for key in ("name", "fact", "why", "value")}
    return Shown(_division("reveal", data, inside), f"{question.name}. {line}\n{why}".rstrip())


def due(text: str) -> Shown:
    """That there is something to do before the fact is told."""
    return Shown(f'<div class="wb-due"><p>{escape(text)}</p></div>', text)


def verdict(question: Question, guess: Answer | None, fact: Answer, why: str) -> dict[str, Any]:
    """What there is to say about a guess, as texts and as data.

    A fact counts in six digits, here as on a page: the last ones differ between processors.
    """
    fact = float(f"{fact:.6g}") if isinstance(fact, float) else fact
    right = question.is_right(guess, fact)
    off = question.off(guess, fact)
    line = f"Guess: {question.said(guess)}{f' ({off})' if off else ''}. Fact: {question.said(fact)}."
    return {
        "name": question.name,
        "guess": question.said(guess),
        "fact": question.said(fact),
        "right": right,
        "why": why,
        "value": fact,
        "off": off,
        "line": line,
    }


def as_data(question: Question) -> dict[str, Any]:
    """The question as data, for a form."""
    data: dict[str, Any] = {"name": question.name, "question": question.text, "kind": question.kind}
    data |= {"options": list(question.options), "unit": question.unit}
    data |= {} if question.title == "Predict" else {"title": question.title}
    return data | ({"tolerance": question.tolerance} if question.kind == "number" else {})


def _division(what: str, data: dict[str, Any], inside: str) -> str:
    text = escape(json.dumps(data, ensure_ascii=False), quote=True)
    return f'<div class="wb-{what}" data-{what}="{text}">{inside}</div>'
