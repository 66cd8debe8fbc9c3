"""A built notebook as Sphinx reads it: with links, pictures and players for a page, and without what needs a kernel."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

import nbformat

from workbench.course.browser.pictures import Pictures
from workbench.course.links import Lesson, navigation
from workbench.course.site.lab import address
from workbench.course.site.texts import linked

SECONDS = 8.0  # of a player whose notebook was built before it was written down
_FENCED = re.compile(r"(```.*?```|`[^`\n]*`)", re.DOTALL)
_HEADING = re.compile(r"^#+(?= )", re.MULTILINE)
_PLAYED = re.compile(r"^(?:player\.)?play\(", re.MULTILINE)
_HIDDEN = re.compile(r'class="wb-(?:predict|reveal)"')
_TITLE = re.compile(r"^# (.+)$", re.MULTILINE)
_EXERCISES = re.compile(r"(?<=\S): exercises$", re.MULTILINE)


def page(notebook: Any, lessons: list[Lesson], stem: str, kind: str, pages: Collection[str], lab: bool = False) -> Any:
    """The notebook, changed for the site.

    Args:
        notebook: as built.
        lessons: of the whole course.
        stem: the lesson's.
        kind: ``notebooks``, ``exercises`` or ``solutions``.
        pages: which there are, as ``exercises/03_ring_allreduce``.
        lab: the site has this notebook in a lab, too.
    """
    pictures = Pictures()
    path = f"{kind}/{stem}.ipynb"
    others = {f"{each}.ipynb": f"{each}.ipynb" for each in pages}
    cells = [cell for cell in notebook.cells if not cell.metadata.get("workbench", {}).get("links")]
    levels = Levels()
    for cell in cells:
        cell.metadata.pop("nbgrader", None)
        if cell.cell_type == "markdown":
            cell.source = levels.closed(linked(cell.source, path, path, others))
        for output in cell.get("outputs", []):
            _show(output, cell.source, pictures)
        # A call that says what the form says: its code is there for who wants it.
        if _HIDDEN.search("".join(output.get("data", {}).get("text/html", "") for output in cell.get("outputs", []))):
            cell.metadata["tags"] = sorted({*cell.metadata.get("tags", []), "hide-input"})
    cells[0].source = _TITLE.sub(rf"# {stem[:2]} \1", cells[0].source, count=1)
    if kind == "solutions":
        cells[0].source = _EXERCISES.sub(": solutions", cells[0].source, count=1)
    cells[0].source = _with_head(cells[0].source, _head(stem, kind, pages, lab))
    links = navigation(lessons, stem, kind)
    cells.append(nbformat.v4.new_markdown_cell(_navigation(links), id=f"{stem[:2]}-links"))
    notebook.cells = cells
    notebook.metadata["language_info"] = {"name": "python", "pygments_lexer": "ipython3"}
    return notebook


class Levels:
    r"""The headings of a page, none more than one level below the one before: exercises lack some of a lesson's.

    Example:
        >>> Levels().closed("# A\n### B\n### C\n# D")
        '# A\n## B\n## C\n# D'
    """

    def __init__(self) -> None:
        self._open: list[int] = []

    def closed(self, text: str) -> str:
        """The text with its headings so."""
        parts = _FENCED.split(text)  # a comment in code is none
        return "".join(part if part.startswith("`") else _HEADING.sub(self._heading, part) for part in parts)

    def _heading(self, found: re.Match[str]) -> str:
        return "#" * self._level(len(found[0]))

    def _level(self, level: int) -> int:
        self._open = [each for each in self._open if each < level] + [level]
        return len(self._open)


def _navigation(links: str) -> str:
    return f"```{{container}} wb-links\n{links}\n```"


def _with_head(source: str, head: str) -> str:
    """The head below the title."""
    title, _, rest = source.partition("\n")
    return f"{title}\n\n{head}\n\n{rest.lstrip()}"


def _head(stem: str, kind: str, pages: Collection[str], lab: bool) -> str:
    """How to run it, and where its other notebooks are."""
    others = {"notebooks": "The lesson", "exercises": "Its exercises", "solutions": "Their solutions"}
    found = [f"[{word}](../{other}/{stem}.ipynb)" for other, word in others.items() if f"{other}/{stem}" in pages]
    links = " · ".join(each for each in found if f"../{kind}/" not in each)
    how = f"`make lab` in a checkout opens JupyterLab; there open `{kind}/{stem}.ipynb`. "
    how += f"{{download}}`This notebook <../files/{kind}/{stem}.ipynb>` alone needs the package `workbench`."
    if lab:
        how += f'\n\n<a class="wb-lab" href="../{address(stem, kind)}">Open as a notebook in the browser</a>'
    return f"```{{container}} wb-run\n**Run it.** {how}" + (f"\n\n{links}" if links else "") + "\n```"


def _show(output: Any, source: str, pictures: Pictures) -> None:
    """An output's picture, within the page rather than in a file of its own: there it cannot see the page's theme."""
    data = output.get("data", {})
    data.pop("application/vnd.jupyter.widget-view+json", None)
    if "text/html" in data:
        data["text/html"] = pictures.within(_joined(data["text/html"]))
    elif "image/svg+xml" in data:
        svg = _joined(data["image/svg+xml"])
        seconds = output.get("metadata", {}).get("workbench", {}).get("seconds")
        if seconds is None and _PLAYED.search(source):
            seconds = SECONDS
        played = seconds is not None and " data-begin=" in svg
        data["text/html"] = pictures.played(svg, seconds) if played else pictures.shown(svg)
    if "text/html" in data:
        data.pop("image/svg+xml", None)


def _joined(text: str | list[str]) -> str:
    return text if isinstance(text, str) else "".join(text)
