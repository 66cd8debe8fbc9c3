"""``make slides``, or ``python -m workbench.course.slides [number or name ...]``: a file for each lesson."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat

from workbench.course.build import ROOT, lessons
from workbench.course.links import course
from workbench.course.slides.deck import Lesson, complaints, deck, page

_PRACTICAL = "22"  # two hours with a class, in which learners type and the slides wait for them


def read(lesson: Path) -> Lesson:
    """A lesson's texts, and what its notebooks have shown."""
    import jupytext

    texts = [cell.source for cell in jupytext.read(lesson, fmt="py:percent").cells if cell.cell_type == "markdown"]
    return Lesson(texts, [*_executed(lesson.stem)])


def _executed(stem: str) -> Iterator[Any]:
    for folder in ("notebooks", "solutions"):
        if (path := ROOT / folder / f"{stem}.ipynb").exists():
            yield from (cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code")


def main(arguments: list[str] | None = None) -> None:
    """Make them.

    Raises:
        SystemExit: a deck cannot be lectured from; all that is wrong with them.
    """
    parser = argparse.ArgumentParser(description="Slides with notes, from lessons/slides/ and the notebooks.")
    parser.add_argument("names", nargs="*", help="numbers or names of lessons; default: all")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "slides", help="folder; default: build/slides")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    titles = {each.stem: each.label for each in course(ROOT / "lessons")}
    wrong = []
    for lesson in lessons(options.names):
        source = ROOT / "lessons" / "slides" / f"{lesson.stem}.md"
        try:
            slides = deck(source.read_text(encoding="utf-8"), read(lesson))
        except (OSError, ValueError) as error:
            wrong.append(f"{source.name}: {error}")
            continue
        most = 30 if lesson.stem.startswith(_PRACTICAL) else 20
        wrong += [f"{source.name}: {each}" for each in complaints(slides, most)]
        target = options.out / f"{lesson.stem}.html"
        target.write_text(page(titles[lesson.stem], slides), encoding="utf-8")
        print(f"{target}: {len(slides)} slides")
    if wrong:
        raise SystemExit("\n".join(wrong))


if __name__ == "__main__":
    main()
