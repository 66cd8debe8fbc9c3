"""``llms.txt``: what the site is, and each page with its first sentence, for programs that read it."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat

_DIRECTIVE = re.compile(r"```\{.*?```|:::.*?:::", re.DOTALL)
_SENTENCE = re.compile(r"(?:Question: *)?(.+?[.?])(?=\s|$)", re.DOTALL)
_MARKUP = re.compile(r"\[([^\]]+)\]\([^)]*\)|\{[a-z]+\}`([^`<]+?)(?: <[^>]*>)?`|\*\*|\*(?=\w)|(?<=\w)\*")
_KINDS = {
    "how-to": "How-to",
    "notebooks": "Tutorials",
    "exercises": "Exercises",
    "reference": "Reference",
    "explanation": "Explanation",
    "benchmarks": "Benchmarks",
    "about": "About",
}


def summary(folder: Path) -> str:
    """The text of ``llms.txt``, from the staged pages.

    Args:
        folder: as :func:`~workbench.course.site.stage.stage` writes it.
    """
    title, said = _head((folder / "index.md").read_text(encoding="utf-8"))
    parts = [f"# {title}\n\n> {said}\n"]
    for kind, heading in _KINDS.items():
        pages = sorted([*(folder / kind).rglob("*.md"), *(folder / kind).glob("[0-9]*.ipynb")])
        lines = [_line(path, folder) for path in pages]
        parts.append(f"## {heading}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def _line(path: Path, folder: Path) -> str:
    title, said = _head(_text(path))
    if path.parent.name == "exercises":
        said = f"What you do yourself in lesson {path.stem[:2]}; judged at once."
    return f"- [{title}]({path.relative_to(folder).with_suffix('.html').as_posix()}): {said}"


def _text(path: Path) -> str:
    if path.suffix == ".md":
        return path.read_text(encoding="utf-8")
    cells = nbformat.read(path, as_version=4).cells
    return "\n\n".join(cell.source for cell in cells if cell.cell_type == "markdown")


def _head(text: str) -> tuple[str, str]:
    """A page's title and first sentence."""
    body = _DIRECTIVE.sub("", text)
    title = re.search(r"^# (.+)$", body, re.MULTILINE)
    if title is None:
        raise ValueError(f"A page has no title; it begins with {text[:60]!r}")
    paragraphs = [each.strip() for each in body[title.end() :].split("\n\n")]
    prose = [each for each in paragraphs if each and each[0] not in "#|`!-<+"]
    first = _SENTENCE.match(_plain(prose[0])) if prose else None
    return _plain(title[1]), first[1] if first else _plain(prose[0] if prose else title[1])


def _plain(text: str) -> str:
    return re.sub(r"\s+", " ", _MARKUP.sub(lambda found: found[1] or found[2] or "", text)).strip()
