"""Write what is made for the test before and after; ``make lessons`` does it. ``--check``: only compare the texts.

``instructors/test.md``: both forms, the key, and where wrong choices come from. In ``docs/how-to/learn.md``: form A.
``instructors/analysis.ipynb``: executed, from ``analysis.py`` beside it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import fill

from workbench.course.evidence.items import FORMS, LETTERS, Item, all_items

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = ROOT / "instructors" / "analysis.ipynb"
KEY, LEARN = ROOT / "instructors" / "test.md", ROOT / "docs" / "how-to" / "learn.md"
HEAD = """\
# The test before and after: key

Made from `workbench/course/evidence/items.txt` by `make lessons`: change that file. How the test is given and analysed:
[Do they learn?](../docs/how-to/teach.md) Do not show the key before the class is over.

Form A is asked before, B after. A letter stands for the same mistake in both, as in the exported data. Form B shows
the choices in reverse order. That both forms are equally difficult is an assumption: nobody has tested it.
"""


def questions() -> str:
    """Form A, for a test on paper."""
    return "\n".join(question(each) for each in all_items())


def question(item: Item) -> str:
    """One of it."""
    shown = zip(LETTERS, item.shown(FORMS[0]), strict=True)
    choices = ", ".join(f"({letter}){chr(0)}{text}" for letter, text in shown)
    text = re.sub(r"([*_\[\]])", r"\\\1", f"{item.questions[0]} {choices}.")
    return fill(f"{item.number}. {text}", 130, subsequent_indent="   ").replace(chr(0), " ")


def key() -> str:
    """``instructors/test.md``."""
    return "\n".join([HEAD, *(line for each in all_items() for line in key_of(each))])


def key_of(item: Item) -> Iterator[str]:
    """One item of it."""
    yield f"## {item.number}. {item.measures[0].upper()}{item.measures[1:]}\n\nLessons {item.lessons}.\n"
    yield from (f"- {form}: `{text}`" for form, text in zip("AB", item.questions, strict=True))
    yield "\n| | A | B | |\n|---|---|---|---|"
    for letter, (a, b), mistake in zip(LETTERS, item.choices, item.mistakes, strict=True):
        yield f"| {letter} | {a} | {b} | {mistake or f'**right.** {item.why}'} |"
    yield ""


def texts() -> dict[Path, str]:
    """What the files should be."""
    learn = LEARN.read_text(encoding="utf-8")
    beginning = learn[: learn.index("\n1. ", learn.index("## Before and after")) + 1]
    return {KEY: key(), LEARN: f"{beginning}{questions()}\n"}


def build_notebook() -> None:
    """On the simulated class."""
    import jupytext

    from workbench.course.build import execute, write

    notebook = jupytext.read(NOTEBOOK.with_suffix(".py"), fmt="py:percent")
    notebook.metadata = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    for i, cell in enumerate(notebook.cells):
        cell.id = f"analysis-{i:02d}"
        cell.metadata.pop("lines_to_next_cell", None)
    write(execute(notebook, NOTEBOOK.parent), NOTEBOOK)


if __name__ == "__main__":
    for path, text in texts().items():
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif path.read_text(encoding="utf-8") != text:
            sys.exit(f"{path.relative_to(ROOT)} is not what items.txt says: .venv/bin/python .ci/items.py")
    if "--check" not in sys.argv:
        build_notebook()
