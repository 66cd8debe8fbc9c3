"""The form of a question and the answer to it as widgets; anywidget is imported where it is needed."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from workbench.course.predictions import page
from workbench.course.predictions.book import Book
from workbench.course.predictions.question import Answer, Question

_HERE = Path(__file__).parent


def form(question: Question, book: Book) -> Any:
    """A form whose answer is stored in the book.

    Raises:
        ImportError: there is no anywidget.
    """
    shown = _widget_class()(part="form", data=page.as_data(question), static=page.asked(question))

    def refresh() -> None:
        kept = book.guess(question.name)
        shown.stored, shown.told, shown.message = kept.last, kept.told, _state(question, book)

    def received(change: Any) -> None:
        try:
            book.lock(question.name, change["new"].get("value"))
        except ValueError as error:
            shown.message = str(error)
        shown.handled = change["new"].get("at")  # also where nothing else has changed

    shown.observe(received, "answer")
    book.watch(f"form {question.name}", question.name, refresh)
    refresh()
    return shown


def answer(question: Question, book: Book, fact: Answer, why: str) -> Any:
    """Guess and fact; without a guess it says that one is due, and opens when it comes.

    Raises:
        ImportError: there is no anywidget.
    """
    due = f"First make a guess: answer {question.name} above. The answer opens here then."
    static = page.due(due)
    shown = _widget_class()(part="answer", due=due, static=static)

    def refresh() -> None:
        kept = book.guess(question.name)
        if kept.last is None and not kept.told:
            return
        if not kept.told:
            book.tell(question.name, fact)  # comes back here by itself
            return
        shown.static = page.told(question, kept.last, fact, why, opened=True)
        shown.told = page.verdict(question, kept.last, fact, why)

    book.watch(f"answer {question.name}", question.name, refresh)
    refresh()
    return shown


def _state(question: Question, book: Book) -> str:
    kept = book.guess(question.name)
    if kept.told:
        return f"Your guess was: {question.said(kept.last)}."
    if kept.last is None:
        return ""
    return f"Stored: {question.said(kept.last)}. You can change it until the answer is shown."


@cache
def _widget_class() -> Any:
    import anywidget
    import traitlets

    class PredictionForm(anywidget.AnyWidget):
        """A form or an answer, by ``part``."""

        _esm = "\n".join((_HERE / name).read_text(encoding="utf-8") for name in ("form.js", "predictions.js"))
        _css = (_HERE / "predictions.css").read_text(encoding="utf-8")
        part = traitlets.Unicode().tag(sync=True)
        data = traitlets.Dict().tag(sync=True)
        stored = traitlets.Any(None, allow_none=True).tag(sync=True)
        message = traitlets.Unicode().tag(sync=True)
        answer = traitlets.Dict().tag(sync=True)
        handled = traitlets.Any(None, allow_none=True).tag(sync=True)
        due = traitlets.Unicode().tag(sync=True)
        told = traitlets.Any(False).tag(sync=True)
        static = traitlets.Any()

        def __repr__(self) -> str:
            return repr(self.static)

        def _repr_mimebundle_(self, **options: Any) -> Any:
            """The widget, and the same as HTML for whoever cannot show widgets."""
            shown = super()._repr_mimebundle_(**options)
            data, metadata = shown if shown is not None else ({}, {})
            return {**data, "text/html": self.static.html, "text/plain": self.static.text}, metadata

    return PredictionForm
