"""``make slides``, or ``python -m workbench.course.slides [number or name ...]``: a file for each lesson."""

from __future__ import annotations

import argparse
from pathlib import Path

import nbformat

from workbench.course.build import ROOT, lessons
from workbench.course.links import course
from workbench.course.slides.deck import deck, page


def main(arguments: list[str] | None = None) -> None:
    """Make them."""
    import jupytext

    parser = argparse.ArgumentParser(description="Slides with notes from lessons/ and the outputs in notebooks/.")
    parser.add_argument("names", nargs="*", help="numbers or names of lessons; default: all")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "slides", help="folder; default: build/slides")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    titles = {each.stem: each.label for each in course(ROOT / "lessons")}
    for lesson in lessons(options.names):
        notebook = nbformat.read(ROOT / "notebooks" / f"{lesson.stem}.ipynb", as_version=4)
        executed = [cell for cell in notebook.cells if cell.cell_type == "code"]
        slides = deck(jupytext.read(lesson, fmt="py:percent").cells, executed)
        target = options.out / f"{lesson.stem}.html"
        target.write_text(page(titles[lesson.stem], slides), encoding="utf-8")
        print(f"{target}: {len(slides)} slides")


if __name__ == "__main__":
    main()
