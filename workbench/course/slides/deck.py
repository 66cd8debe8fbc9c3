"""A lesson's cells as slides, and the slides as one page."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape, unescape
from pathlib import Path
from typing import Any

from workbench.course.tasks import task

_LINES_OF_CODE, _LINES_OF_OUTPUT = 14, 16
_WORDS = 90  # of a slide's text; beside a picture half as many
_HEADING = re.compile(r"^(?=#{2,4} )", re.MULTILINE)
_BLOCK = re.compile(r"\n\s*\n")
_SEEN = re.compile(r"\|| *[-*] | *\d+\. |>|!\[|```|<")
_SENTENCE = re.compile(r"[.:?!](?=\s|$)")
_EXERCISE = re.compile(r"# exercise: (\S+)\s*\Z")
_TAG = re.compile(r"<[^>]*>")
_TEMPLATE = Path(__file__).with_name("deck.html")


@dataclass
class Slide:
    """What is seen, and what is said.

    Attributes:
        title: the heading that it stands below.
        body: pieces of HTML.
        notes: pieces of HTML: the lesson's text, and what it says to the instructor.
    """

    title: str
    body: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def has_output(self) -> bool:
        """Does it show what a cell has printed or drawn?"""
        return any('class="output"' in piece for piece in self.body)

    @property
    def words(self) -> int:
        """Of its text, without outputs."""
        return sum(len(_TAG.sub(" ", piece).split()) for piece in self.body if 'class="output"' not in piece)


def deck(cells: list[Any], executed: list[Any]) -> list[Slide]:
    """The slides of a lesson.

    Args:
        cells: all cells of its source, with their tags.
        executed: the code cells of its notebook, which have outputs; those of the source without a tag or with the tag
            ``both``, in the same order.

    Returns:
        A slide for each heading, each exercise, and each code cell that shows something. What is for the exercises'
        notebook alone is left out, but for the exercises themselves and what is said to the instructor.
    """
    slides, done = [Slide("")], iter(executed)
    asked: dict[str, str] = {}  # the questions by name: a fact stands below its question
    for cell in cells:
        tags = set(cell.metadata.get("tags", []))
        if cell.cell_type == "markdown" and "instructor" in tags:
            slides[-1].notes.append(f'<div class="instructor">{_markdown(cell.source)}</div>')
        elif found := _EXERCISE.match(cell.source):
            slides += _exercise(found[1], slides)
        elif "exercise" in tags or "instructor" in tags:
            continue
        elif cell.cell_type == "markdown":
            for part in filter(str.strip, _HEADING.split(cell.source)):
                _text(part, slides)
        else:
            _code(next(done), slides, asked)
    return [slide for slide in slides if slide.body]


def _text(source: str, slides: list[Slide]) -> None:
    """A slide of its own; text without a heading goes on where it has room, below what it explains."""
    heading, _, said = source.partition("\n")
    if not heading.startswith("#"):
        heading, said = f"## {slides[-1].title}", source
        if slides[-1].words + len(said.split()) <= _WORDS // (1 + slides[-1].has_output):
            slides[-1].body.append(_markdown(said))
            slides[-1].notes.append(_markdown(said))
            return
    blocks = [block for block in _BLOCK.split(said.strip()) if block.strip()]
    room = _WORDS // max(1, len(blocks))
    seen = [block if _SEEN.match(block) else _lead(block, room) for block in blocks]
    if "<details>" in said or len(said.split()) <= _WORDS:  # a summary and its answer belong together
        seen = [said]
    text = _markdown("\n\n".join([heading, *seen]))
    slides.append(Slide(heading.lstrip("# "), [text], [_markdown(said)] if said else []))


def _lead(block: str, words: int) -> str:
    """A paragraph on a slide: its first sentence, which says what it is about, and more while there is room."""
    ends = [found.end() for found in _SENTENCE.finditer(block)]
    return block[: max((end for end in ends if len(block[:end].split()) <= words), default=ends[0] if ends else None)]


def _exercise(name: str, slides: list[Slide]) -> Iterator[Slide]:
    one = task(name)
    if all(slide.title != f"Exercise: {one.title}" for slide in slides):  # some are shown twice
        text = f"## Exercise: {one.title}\n\n`{name}` in the exercises' notebook.\n\n```python\n{one.cell(False)}\n```"
        yield Slide(f"Exercise: {one.title}", [_markdown(text)])


def _code(cell: Any, slides: list[Slide], asked: dict[str, str]) -> None:
    """Its output belongs to what was said before it; where that has an output already, to a slide of its own."""
    shown = "".join(map(_output, cell.outputs))
    if not shown:
        return
    asked.update((each["name"], each["question"]) for each in _data("predict", shown))
    if slides[-1].has_output:
        slides.append(Slide(slides[-1].title, [f"<h2>{escape(slides[-1].title)}</h2>"]))
    if not cell.metadata.get("jupyter", {}).get("source_hidden") and "predict(" not in cell.source:
        source = _markdown(f"```python\n{cell.source}\n```")
        is_figure = "<svg" in shown or "<img" in shown
        place = slides[-1].body if not is_figure and cell.source.count("\n") < _LINES_OF_CODE else slides[-1].notes
        place.append(source)
    slides[-1].body += [f"<p>{escape(asked[each['name']])}</p>" for each in _data("reveal", shown)]
    slides[-1].body.append(f'<div class="output">{shown}</div>')


def _data(what: str, shown: str) -> list[dict[str, str]]:
    """What a page's script reads of the questions, or of the facts, in an output."""
    return [json.loads(unescape(each)) for each in re.findall(f'data-{what}="([^"]*)"', shown)]


def _output(output: Any) -> str:
    data = output.get("data", {})
    for kind in ("text/html", "image/svg+xml"):
        if kind in data:
            return str(data[kind])
    if "image/png" in data:
        return f'<img alt="{escape(data.get("text/plain", "figure"))}" src="data:image/png;base64,{data["image/png"]}">'
    printed = output.get("text") or data.get("text/plain") or "\n".join(output.get("traceback", []))
    lines = printed.rstrip("\n").split("\n")
    cut = [*lines[:_LINES_OF_OUTPUT], f"… {len(lines) - _LINES_OF_OUTPUT} more lines"]
    return f"<pre>{escape(chr(10).join(lines if len(lines) <= _LINES_OF_OUTPUT + 1 else cut))}</pre>" if printed else ""


def _markdown(text: str) -> str:
    from nbconvert.filters.markdown_mistune import markdown2html_mistune  # what JupyterLab brings

    return str(markdown2html_mistune(text))


def page(title: str, slides: list[Slide]) -> str:
    """The slides as one HTML file, which asks for nothing else."""
    from pygments.formatters import HtmlFormatter

    sections = "\n".join(
        f'<section><div class="slide"><div class="fit">{"".join(slide.body)}</div></div>'
        f'<aside class="notes">{"".join(slide.notes)}</aside></section>'
        for slide in slides
    )
    light, dark = (HtmlFormatter(style=style).get_style_defs(".highlight") for style in ("friendly", "github-dark"))
    styles = f"{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}"
    parts = {"TITLE": escape(title), "SLIDES": sections, "CODE": styles}
    return re.sub(r"@(TITLE|SLIDES|CODE)@", lambda found: parts[found[1]], _TEMPLATE.read_text(encoding="utf-8"))
