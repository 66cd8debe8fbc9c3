"""All sources of the site in one folder, as Sphinx reads them."""

from __future__ import annotations

import re
import shutil
from collections.abc import Collection
from pathlib import Path

import nbformat

from workbench.course.build import ROOT
from workbench.course.links import course
from workbench.course.site.command_line import commands
from workbench.course.site.notebooks import page
from workbench.course.site.reference import api_pages, benchmark_files, benchmark_pages, error_pages
from workbench.course.site.summary import summary
from workbench.course.site.texts import ROOT_PAGES, linked

_OBSERVE = ROOT / "workbench" / "observe"
_PREDICTIONS = ROOT / "workbench" / "course" / "predictions"
_OF_WIDGETS = [_OBSERVE / "player.css", *(_PREDICTIONS / name for name in ("predictions.css", "form.js", "judge.js"))]
_EXPORT = re.compile(r"^export default \{ render \};\s*$", re.MULTILINE)
_FOR_INSTRUCTORS = """
```{toctree}
:caption: Solutions (instructors)
:glob:
:maxdepth: 1

solutions/*
```
"""


def stage(target: Path, instructors: bool = False, every: bool = True, lab: Collection[Path] = ()) -> None:
    """Write the folder.

    Args:
        target: the folder, which is not there yet.
        instructors: with the solutions; else none of them, nor their text, is in it.
        every: else three lessons, and no API of torch, TensorFlow, Keras and JAX.
        lab: the notebooks that the site has in a lab, too.
    """
    shutil.copytree(ROOT / "docs", target, ignore=shutil.ignore_patterns("__pycache__", "*.py[co]"))
    texts(target, every)
    notebooks(target, ("notebooks", "exercises", *(["solutions"] if instructors else [])), lab, every)
    if instructors:
        with (target / "index.md").open("a", encoding="utf-8") as file:
            file.write(_FOR_INSTRUCTORS)
    for name, text in {**api_pages(every), **benchmark_pages(), **error_pages()}.items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_text(text, encoding="utf-8")
    for path in benchmark_files():
        shutil.copy(path, target / "files")
    for path in _OF_WIDGETS:
        shutil.copy(path, target / "_static")
    (target / "_static" / "player.js").write_text(as_script((_OBSERVE / "player.js").read_text("utf-8"), "wbPlayer"))
    with (target / "reference" / "command-line.md").open("a", encoding="utf-8") as file:
        file.write(commands())
    (target / "llms.txt").write_text(summary(target), encoding="utf-8")


def texts(target: Path, every: bool = True) -> None:
    """Write the texts of the repository that are pages, and lead the links of all to pages."""
    sources = {f"docs/{path.relative_to(target).as_posix()}": path for path in sorted(target.rglob("*.md"))}
    pages = {name: name.removeprefix("docs/") for name in sources} | ROOT_PAGES
    there = (f"{path.parent.name}/{path.name}" for path in books("notebooks", "exercises", every=every))
    pages |= {name: name for name in there}
    sources |= {name: ROOT / name for name, page in ROOT_PAGES.items() if page.startswith("about/")}
    for name, path in sources.items():
        text = linked(path.read_text(encoding="utf-8"), name, pages[name], pages)
        (target / pages[name]).write_text(text, encoding="utf-8")


def books(*kinds: str, every: bool = True) -> list[Path]:
    """The built notebooks of kinds such as ``exercises``; else those of three lessons."""
    numbers = "[0-9]*.ipynb" if every else "0[034]*.ipynb"
    return [path for kind in kinds for path in sorted((ROOT / kind).glob(numbers))]


def notebooks(target: Path, kinds: tuple[str, ...], lab: Collection[Path] = (), every: bool = True) -> None:
    """Write the built notebooks as pages, and beside them as they are, to be downloaded."""
    found = books(*kinds, every=every)
    lessons = [each for each in course(ROOT / "lessons") if every or each.stem in {path.stem for path in found}]
    pages = {f"{path.parent.name}/{path.stem}" for path in found}
    if strangers := {path.stem for path in found} - {lesson.stem for lesson in lessons}:
        raise ValueError(
            f"Notebooks without a lesson: {', '.join(sorted(strangers))}. Remove them, or add lessons/*.py."
        )
    for path in found:
        kind, stem = path.parent.name, path.stem
        for folder in (target / kind, target / "files" / kind):
            folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target / "files" / kind)
        changed = page(nbformat.read(path, as_version=4), lessons, stem, kind, pages, path in lab)
        nbformat.write(changed, target / kind / path.name)


def as_script(module: str, name: str) -> str:
    """A widget's module as a script that defines ``window.<name>``: a page that is a file may not import modules.

    Raises:
        ValueError: the module does not end as the widgets of this project do.
    """
    body, exports = _EXPORT.subn("", module)
    if exports != 1 or re.search(r"^(?:import|export)\b", body, re.MULTILINE):
        raise ValueError(f"{name}: expected a module without imports and with one line `export default {{ render }};`")
    return f"window.{name} = (() => {{\n{body}\nreturn {{ render }};\n}})();\n"
