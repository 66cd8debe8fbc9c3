"""A deck's text as slides, and the slides as one page.

A deck is ``lessons/slides/NN_name.md``, written to be lectured from: what is shown, and what is said. Its code,
outputs, questions and texts are not copied into it but named, and come from the lesson and its executed notebooks::

    ## A ring sends the least bytes that messages can       a slide; its title is a sentence

    - Each rank sends 2(n − 1)/n of the array.              any Markdown

    {picture drawing.ring_chunks(4)}                        what the cell with this line has drawn
    {printed for n in (2, 4, 8, 16):}                       what the cell with this line has printed
    {code def ring(comm}                                    the cell with this line
    {ask 03.bytes}                                          a question with its choices
    {answer 03.bytes}                                       the same with the fact, and why
    {exercise 03.ring_allreduce}                            its title and what it asks for

    Notes: what to say, what to do, how long.

    {section The ring}                                      the lesson's text below that heading
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from html import escape, unescape
from itertools import pairwise
from pathlib import Path
from typing import Any

from workbench.course.tasks import task

MOST_LINES, MOST_WIDTH, MOST_WORDS = 12, 100, 60
"""Lines and characters of code or printed text on a slide, and words of its other text."""
_SLIDE = re.compile(r"^(?=#{1,2} )", re.MULTILINE)
_NOTES = re.compile(r"^Notes:", re.MULTILINE)
_NAMED = re.compile(r"^\{(\w+) (.+)\}$", re.MULTILINE)
_HEADING = re.compile(r"^(?=#{1,4} )", re.MULTILINE)
_FENCE = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_TAG, _DRAWN = re.compile(r"<[^>]*>"), re.compile(r"<svg.*?</svg>", re.DOTALL)
_INLINE = re.compile(r"`([^`]+)`")
_TEMPLATE = Path(__file__).with_name("deck.html")


@dataclass
class Slide:
    """What is seen, and what is said.

    Attributes:
        title: a sentence.
        body: HTML.
        notes: HTML.
        names: what it shows, as ("ask", "03.bytes").
    """

    title: str
    body: str = ""
    notes: str = ""
    names: list[tuple[str, str]] = field(default_factory=list)


@dataclass
class Lesson:
    """What a deck may name.

    Args:
        texts: the Markdown cells of the lesson, and its instructor's cells.
        code: the executed code cells of its notebooks, with outputs.
    """

    texts: list[str]
    code: list[Any]

    def section(self, heading: str) -> str:
        """The text below a heading, up to the next one; of all headings with these words.

        Raises:
            ValueError: there is no such heading.
        """
        parts = [part.partition("\n") for part in self.sections()]
        found = [text.strip() for title, _, text in parts if title.lstrip("# ").strip() == heading]
        if not found:
            raise ValueError(f"the lesson has no heading {heading!r}")
        return "\n\n".join(found)

    def sections(self) -> list[str]:
        """Its text, cut before each heading."""
        return [part for part in _pieces(_HEADING, "\n\n".join(self.texts)) if part.startswith("#")]

    def cell(self, line: str) -> Any:
        """The code cell with this line, or else with a line that begins so. What the exercises show again is one cell.

        Raises:
            ValueError: there is none, or there are two that differ.
        """
        cells = [(cell, [each.strip() for each in cell.source.splitlines()]) for cell in reversed(self.code)]
        found = {cell.source: cell for cell, lines in cells if line in lines} or {
            cell.source: cell for cell, lines in cells if any(each.startswith(line) for each in lines)
        }
        if len(found) != 1:
            raise ValueError(f"{len(found)} cells of the lesson have a line that begins with {line!r}; name one")
        return next(iter(found.values()))

    def data(self, what: str, name: str) -> dict[str, Any]:
        """What a page knows of a question (``predict``) or of its fact (``reveal``).

        Raises:
            ValueError: the notebook does not have it.
        """
        for cell in self.code:
            for text in re.findall(f'data-{what}="([^"]*)"', "".join(map(_html, cell.outputs))):
                found: dict[str, Any] = json.loads(unescape(text))
                if found["name"] == name:
                    return found
        raise ValueError(f"the notebook has no {what}({name!r})")


def deck(source: str, lesson: Lesson) -> list[Slide]:
    """The slides of a deck.

    Raises:
        ValueError: it names what the lesson does not have, or a slide shows too much; with the slide's title.
    """
    slides = []
    for part in filter(str.strip, _pieces(_SLIDE, source)):
        title, _, rest = part.partition("\n")
        shown, said = (*_NOTES.split(rest, maxsplit=1), "")[:2]
        slide = Slide(title.lstrip("# ").strip(), names=_NAMED.findall(shown))
        try:
            _refuse(shown)
            slide.body = _markdown(_filled(f"{title}\n{shown}", lesson))
            slide.notes = _markdown(_filled(said, lesson))
        except ValueError as error:
            raise ValueError(f"slide {slide.title!r}: {error}") from None
        slides.append(slide)
    return slides


def _pieces(before: re.Pattern[str], text: str) -> list[str]:
    """The text, cut before each heading; a comment in a block of code is none."""
    fenced = [found.span() for found in _FENCE.finditer(text)]
    at = [found.start() for found in before.finditer(text)]
    cuts = [0, *(each for each in at if not any(a < each < b for a, b in fenced)), len(text)]
    return [text[begin:end] for begin, end in pairwise(cuts)]


def _refuse(shown: str) -> None:
    for code in _FENCE.findall(shown):
        _short(code)
    words = len(re.sub(r"[|`*#]", " ", _NAMED.sub("", _DRAWN.sub("", _FENCE.sub("", shown)))).split())
    if words > MOST_WORDS:
        raise ValueError(f"{words} words are seen; more than {MOST_WORDS} are read, not listened to")


def _short(text: str) -> str:
    lines = text.strip().splitlines()
    wide = max(map(len, lines), default=0)
    if len(lines) > MOST_LINES or wide > MOST_WIDTH:
        raise ValueError(f"{len(lines)} lines of {wide} characters; {MOST_LINES} of {MOST_WIDTH} can be read")
    return text


def _filled(text: str, lesson: Lesson) -> str:
    """The text with what it names."""
    return _NAMED.sub(lambda found: f"\n{_kinds(found[1])(lesson, found[2])}\n", text)


def _kinds(name: str) -> Callable[[Lesson, str], str]:
    kinds: dict[str, Callable[[Lesson, str], str]] = {
        **{"picture": _picture, "printed": _printed, "code": _code, "section": Lesson.section},
        **{"ask": _ask, "answer": _answer, "exercise": _exercise},
    }
    if name not in kinds:
        raise ValueError(f"{{{name} …}} is none of {', '.join(kinds)}")
    return kinds[name]


def _picture(lesson: Lesson, line: str) -> str:
    drawn = [_drawn(output) for output in lesson.cell(line).outputs]
    if not any(drawn):
        raise ValueError(f"the cell with {line!r} has drawn nothing")
    return f'<div class="picture">{"".join(drawn)}</div>'


def _drawn(output: Any) -> str:
    data = output.get("data", {})
    if "image/png" in data:
        return f'<img alt="{escape(data.get("text/plain", "figure"))}" src="data:image/png;base64,{data["image/png"]}">'
    return str(data.get("image/svg+xml") or data.get("text/html", "")).replace("\n\n", "\n")


def _printed(lesson: Lesson, line: str) -> str:
    outputs = lesson.cell(line).outputs
    plain = [output.get("data", {}) for output in outputs]
    texts = [output.get("text", "") for output in outputs]
    texts += [data["text/plain"] for data in plain if data.keys() == {"text/plain"}]
    texts += ["\n".join(output.get("traceback", [])) for output in outputs]
    if not (text := "\n".join(filter(None, map(str.rstrip, texts)))):
        raise ValueError(f"the cell with {line!r} has printed nothing")
    return f"```text\n{_short(text)}\n```"


def _code(lesson: Lesson, line: str) -> str:
    return f"```python\n{_short(lesson.cell(line).source)}\n```"


def _ask(lesson: Lesson, name: str) -> str:
    question = lesson.data("predict", name)
    order = "<p>Put them in order.</p>" if question["kind"] == "order" else ""
    unit = f"<p>Your guess: … {escape(question['unit'])}</p>" if question["unit"] else ""
    return _choices(question, "") + order + unit


def _answer(lesson: Lesson, name: str) -> str:
    question, fact = lesson.data("predict", name), lesson.data("reveal", name)
    told = "" if fact["fact"] in question["options"] else f'<p class="fact">{_line(fact["fact"])}</p>'
    shown = question | {"options": []} if question["kind"] == "order" else question
    return _choices(shown, fact["fact"]) + told + f'<p class="why">{_line(fact["why"])}</p>'


def _choices(question: dict[str, Any], right: str) -> str:
    options = (f"<li{' class=right' if each == right else ''}>{_line(each)}</li>" for each in question["options"])
    return f'<div class="question"><p>{_line(question["question"])}</p><ol>{"".join(options)}</ol></div>'


def _line(text: str) -> str:
    return _INLINE.sub(r"<code>\1</code>", escape(text))


def _exercise(_: Lesson, name: str) -> str:
    """Its title; of a function its head, and what it is to do."""
    one = task(name)
    head = ast.parse(one.cell(solved=False)).body[0]
    if not isinstance(head, ast.FunctionDef):
        return f"**{one.title}** – `{name}`"
    names = "|".join(each.arg for each in head.args.args) or "-"
    said = re.sub(rf"(?m)^((?:{names})(?:, (?:{names}))*): ", r"- `\1`: ", ast.get_docstring(head) or "")
    head.body, head.decorator_list = [], []
    return f"**{one.title}** – `{name}`\n\n```python\n{ast.unparse(head)}\n```\n\n{said}"


def _html(output: Any) -> str:
    return str(output.get("data", {}).get("text/html", ""))


def _markdown(text: str) -> str:
    from nbconvert.filters.markdown_mistune import markdown2html_mistune  # what JupyterLab brings

    return str(markdown2html_mistune(text))


def complaints(slides: list[Slide], most: int = 20, least: int = 12) -> Iterator[str]:
    """What a deck lacks before one can lecture from it."""
    if not least <= len(slides) <= most:
        yield f"{len(slides)} slides; {least} to {most} are a lesson"
    for slide in slides[1:]:
        if len(slide.title.split()) < 4:
            yield f"{slide.title!r} is no sentence"
    for slide in slides:
        if len(_TAG.sub(" ", slide.notes).split()) < 10:
            yield f"{slide.title!r} has no notes"
        if not re.search("<svg|<img|<pre|<table|<ul|<ol|<p>", slide.body):
            yield f"{slide.title!r} shows nothing"
    named = [name for slide in slides for name in slide.names]
    for kind, name in named:
        if kind == "ask" and ("answer", name) not in named[named.index((kind, name)) :]:
            yield f"the question {name} has no answer after it"


def page(title: str, slides: list[Slide]) -> str:
    """The slides as one HTML file, which asks for nothing else."""
    from pygments.formatters import HtmlFormatter

    sections = "\n".join(
        f'<section><div class="slide"><div class="fit">{slide.body}</div></div>'
        f'<aside class="notes">{slide.notes}</aside></section>'
        for slide in slides
    )
    light, dark = (HtmlFormatter(style=style).get_style_defs(".highlight") for style in ("friendly", "github-dark"))
    styles = f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}"
    parts = {"TITLE": escape(title), "SLIDES": sections, "CODE": styles}
    return re.sub(r"@(TITLE|SLIDES|CODE)@", lambda found: parts[found[1]], _TEMPLATE.read_text(encoding="utf-8"))
