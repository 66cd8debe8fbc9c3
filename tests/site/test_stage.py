"""What the site is made of: links between notebooks, pictures, players; nothing of it is executed."""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import v4

from workbench.cli.main import parser
from workbench.config import Settings
from workbench.course.browser.pictures import Pictures
from workbench.course.build import KINDS, LICENCES, ROOT, read
from workbench.course.links import Lesson, course, navigation
from workbench.course.site import command_line, notebooks, stage, texts
from workbench.course.site.__main__ import main
from workbench.course.site.reference import api_pages

pytestmark = pytest.mark.course

COURSE = course(ROOT / "lessons")
LINK = re.compile(r"\]\(([^)]+)\)")
LESSONS = [Lesson("00_a", "A", False), Lesson("01_b", "B", True), Lesson("02_c", "C", True)]


def test_what_has_exercises_is_seen_in_the_text() -> None:
    """A lesson that is said to have exercises is one of which exercises are built, and no other."""
    for lesson in COURSE:
        assert lesson.exercises == (read(ROOT / "lessons" / f"{lesson.stem}.py", "exercises") is not None)


def test_links_of_notebooks_lead_to_notebooks() -> None:
    """Each link of each notebook's last cell is to one that is built; next and previous are each other's."""
    there = {kind: [each.stem for each in COURSE if kind == "notebooks" or each.exercises] for kind in KINDS}
    for kind, stems in there.items():
        for i, stem in enumerate(stems):
            links = LINK.findall(navigation(COURSE, stem, kind))
            for link in links:
                parts = ["", kind, *link.split("/")] if "/" not in link else link.split("/")
                assert Path(parts[-1]).stem in there[parts[-2]]
            near = [link.removesuffix(".ipynb") for link in links if "/" not in link]
            assert near == stems[max(0, i - 1) : i] + stems[i + 1 : i + 2]


def test_the_last_cell_is_the_links(tmp_path: Path) -> None:
    """Of every kind of notebook, marked so that the site makes its own; and they are once on the page."""
    for kind in KINDS:
        built = read(ROOT / "lessons" / "03_ring_allreduce.py", kind)
        assert built.cells[-1].source == f"{navigation(COURSE, '03_ring_allreduce', kind)}\n\n{LICENCES}"
        page = notebooks.page(built, COURSE, "03_ring_allreduce", kind, {f"{kind}/03_ring_allreduce"})
        assert sum("04_parallel_sgd.ipynb" in cell.source for cell in page.cells) == 1


def shown(source: str, data: dict[str, str], metadata: dict[str, Any] | None = None, kind: str = "notebooks") -> Any:
    """The page of a notebook with one output."""
    output = v4.new_output("display_data", data=data, metadata=metadata or {})
    cells = [v4.new_markdown_cell("# B\n\nText."), v4.new_code_cell(source, outputs=[output])]
    return notebooks.page(v4.new_notebook(cells=cells), LESSONS, "01_b", kind, ["notebooks/01_b", "exercises/01_b"])


MOVES = '<svg><style>.a{fill:red}</style><g data-begin="0" data-end="1"/></svg>'


def test_a_player_is_known_by_its_metadata() -> None:
    """A picture that ``play`` has shown gets the player with its seconds; one without times, or a plain one, none."""
    played = {"workbench": {"seconds": 3.0}}
    for source, metadata, expected in [("a", played, '"3"'), ("play(x)", {}, '"8"'), ("display(x)", {}, "")]:
        html = shown(source, {"image/svg+xml": MOVES}, metadata).cells[1].outputs[0].data["text/html"]
        assert (f"data-player={expected}" in html) is bool(expected)
    still = shown("play(x)", {"image/svg+xml": "<svg></svg>"}, played).cells[1].outputs[0].data
    assert "data-player" not in still["text/html"]
    assert "image/svg+xml" not in still


def test_the_player_says_how_long_it_plays() -> None:
    """In the metadata of what it shows, so that a page without a kernel need not guess."""
    pytest.importorskip("anywidget")
    from workbench.course import drawing
    from workbench.observe.player import play

    data, metadata = play(drawing.ring_chunks(3), seconds=5)._repr_mimebundle_()
    assert metadata["workbench"] == {"seconds": 5.0}
    assert data["image/svg+xml"].startswith("<svg")


def test_a_page_has_each_style_and_each_id_once() -> None:
    """Two equal pictures share the style, for it is bound to a class, and no id; what refers to an id finds its own."""
    pictures = Pictures()
    svg = '<?xml version="1.0"?><svg><style>.a{fill:red}</style><g id="b"/><use href="#b" clip-path="url(#b)"/></svg>'
    first, second = pictures.shown(svg), pictures.within(f"<p>{svg[21:]}</p>")
    assert first.count("<style>") == 1
    assert "<style>" not in second
    assert re.findall(r"(?:id=\"|#)([^\")]+)", first) == ["p1-b"] * 3
    assert re.findall(r"(?:id=\"|#)([^\")]+)", second) == ["p2-b"] * 3
    with pytest.raises(ValueError, match="no <svg>"):
        pictures.shown("<p></p>")


def test_what_is_no_page_is_named() -> None:
    """A link to a file that the site has not becomes the file's name; code and other links stay."""
    source = "See [the guide](../instructors/guide.md), [B](../exercises/01_b.ipynb), [x](https://a.b), `[1](2)`."
    cells = [v4.new_markdown_cell("# B"), v4.new_markdown_cell(source)]
    page = notebooks.page(v4.new_notebook(cells=cells), LESSONS, "01_b", "notebooks", ["exercises/01_b"])
    link, name = "[the guide](../instructors/guide.md)", "the guide (`instructors/guide.md`)"
    assert page.cells[1].source == source.replace(link, name)


def test_a_call_that_asks_or_tells_is_folded() -> None:
    """The code of ``reveal`` holds the fact, so it is not in sight."""
    for what in ("predict", "reveal"):
        assert shown("x", {"text/html": f'<div class="wb-{what}"></div>'}).cells[1].metadata["tags"] == ["hide-input"]
    assert "tags" not in shown("x", {"text/html": "<table></table>"}).cells[1].metadata


def test_solutions_are_staged_for_instructors_alone(tmp_path: Path) -> None:
    """Theirs has the pages, the downloads, a list of them, and links from exercises; the students' has none of that."""
    for instructors in (False, True):
        stage.stage(folder := tmp_path / str(instructors), instructors)
        assert ("solutions/*" in (folder / "index.md").read_text()) is instructors
        assert (len(list(folder.rglob("solutions/*.ipynb"))) > 20) is instructors
        page = nbformat.read(folder / "exercises" / "03_ring_allreduce.ipynb", as_version=4)
        assert ("](../solutions/03_ring_allreduce.ipynb)" in page.cells[0].source) is instructors


def test_a_module_that_cannot_be_a_script_is_refused() -> None:
    """One that imports, or exports something else, is an error when the site is built, not in the reader's browser."""
    good = "const a = 1;\nfunction render() {}\nexport default { render };\n"
    assert "window.x = (() => {\nconst a = 1;" in stage.as_script(good, "x")
    for bad in ("import b from 'b';\n" + good, "export default { start };\n", good + "export const c = 1;\n"):
        with pytest.raises(ValueError, match="x: expected a module without imports"):
            stage.as_script(bad, "x")


def test_a_lesson_without_a_heading_is_named(tmp_path: Path) -> None:
    """Links need a title."""
    (tmp_path / "00_x.py").write_text("# %%\n1\n")
    with pytest.raises(ValueError, match=r"00_x\.py has no heading"):
        course(tmp_path)


def test_no_folder_of_others_is_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where there is something that is no site, nothing is built, and nothing is removed."""
    pytest.importorskip("sphinx")
    (tmp_path / "mine.txt").write_text("mine")
    assert main(["--out", str(tmp_path)]) == 1
    assert "holds something else than pages of an earlier build" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_links_of_texts_lead_to_pages() -> None:
    """What is a page is linked from where the text stands on the site; any other file is named; code stays."""
    pages = {"docs/how-to/a.md": "how-to/a.md", "notebooks/00_x.ipynb": "notebooks/00_x.ipynb"}
    source = (
        "[a](docs/how-to/a.md#b) [`x`](notebooks/00_x.ipynb) [c](workbench/c.py) `[d](e)` ![f](g.svg) [h](https://i.j)"
    )
    linked = "[a](../how-to/a.md#b) [`x`](../notebooks/00_x.ipynb) c (`workbench/c.py`) `[d](e)` ![f](g.svg) [h](https://i.j)"
    assert texts.linked(source, "CHANGELOG.md", "about/changelog.md", pages) == linked
    fenced = "```python\nx[0](1)\n```\n"
    assert texts.linked(fenced, "docs/how-to/a.md", "how-to/a.md", pages) == fenced


def test_the_command_line_s_page_has_every_option() -> None:
    """Each option of each command that ``--help`` shows."""
    page = command_line.commands()
    waiting = [parser()]
    while waiting:
        command = waiting.pop()
        for action in command._actions:
            if isinstance(action, argparse._SubParsersAction):
                waiting += action.choices.values()
            elif action.help != argparse.SUPPRESS and command.prog != "workbench" and action.dest != "help":
                assert all(f"{name}" in page for name in action.option_strings), command.prog
    assert "`workbench run`" in page
    assert "SUPPRESS" not in page


def test_the_summary_names_every_page(tmp_path: Path) -> None:
    """``llms.txt`` has the title and a whole sentence of each page that is written by hand or built from a lesson."""
    stage.stage(folder := tmp_path / "site")
    text = (folder / "llms.txt").read_text(encoding="utf-8")
    lines = dict(re.findall(r"^- \[[^\]]+\]\(([^)]+)\): (.+)$", text, re.MULTILINE))
    written = [*folder.rglob("*.md"), *folder.glob("*/[0-9]*.ipynb")]
    names = {str(path.relative_to(folder).with_suffix(".html")) for path in written} - {"index.html", "api/index.html"}
    assert {*lines} == names
    assert all(says.endswith((".", "?")) for name, says in lines.items() if not name.startswith("benchmarks/")), lines
    assert "](" not in "".join(lines.values())


def test_each_setting_is_on_its_page() -> None:
    """And no other."""
    page = (ROOT / "docs" / "reference" / "settings.md").read_text(encoding="utf-8")
    named = set(re.findall(r"^\| `WORKBENCH_([A-Z_]+)`", page.partition("## Not in this list")[0], re.MULTILINE))
    assert named == {name.upper() for name in Settings.__dataclass_fields__}


def test_the_api_lists_spark_and_ray_wherever_it_is_built() -> None:
    """With a page where they are installed, and always with the way to their how-to."""
    index = api_pages()["api/index.md"]
    for name in ("spark", "ray"):
        assert f"(../how-to/{name}.md)" in index
        assert f"workbench.{name}" in index
