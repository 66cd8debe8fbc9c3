"""Slides from the lessons: complete, without a request, and in a real browser."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path
from typing import Any

import nbformat
import pytest

from workbench.course.build import lessons
from workbench.course.slides import Slide, deck
from workbench.course.slides.__main__ import main
from workbench.course.tasks import task

LESSONS = lessons([])
MAKE: Any = nbformat.v4
pytestmark = pytest.mark.course


@pytest.fixture(scope="module")
def slides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all of them."""
    out = tmp_path_factory.mktemp("slides")
    main(["--out", str(out)])
    return out


def words(html: str) -> str:
    """What is to be read, and nothing else."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_nothing_of_a_lesson_is_lost(slides: Path, lesson: Path) -> None:
    """Each heading, each exercise, each sentence for the instructor; and no file or address that it would ask for."""
    html = (slides / f"{lesson.stem}.html").read_text(encoding="utf-8")
    page, source = words(html), lesson.read_text(encoding="utf-8")
    cells = re.split(r"^# %%", source, flags=re.MULTILINE)
    for cell in cells:
        if "exercise" not in cell.partition("\n")[0] and "[markdown]" in cell:
            for heading in re.findall(r"^# #{1,4} (.+)$", cell, re.MULTILINE):
                assert re.sub(r"[`*]", "", heading) in page, heading
        if '"instructor"' in cell.partition("\n")[0] and "[markdown]" in cell:
            (said,) = re.findall(r"\*\*Instructor\.\*\*\s+(?:# )?([\w ]+)", cell)
            assert f"Instructor. {said.strip()}" in page
    for name in re.findall(r"^# exercise: (\S+)$", source, re.MULTILINE):
        assert f"Exercise: {task(name).title}" in page
    assert (
        re.findall(r'(?:src|srcset)="(?!data:)[^"]*|<link [^>]*|@import[^;]*|url\((?!["\']?(?:data:|#))[^)]*', html)
        == []
    )


def test_no_page_is_without_a_title_or_nearly_empty(slides: Path) -> None:
    """Each slide says where it belongs; one without a picture, a table or code has a text to speak about."""
    for lesson in LESSONS:
        html = (slides / f"{lesson.stem}.html").read_text(encoding="utf-8")
        shown = re.findall(r'<section><div class="slide"><div class="fit">(.*?)</div></div>\s*<aside', html, re.DOTALL)
        assert all(re.search("<h[1-4]", slide) for slide in shown)
        thin = [words(slide) for slide in shown if not re.search('class="output"|<pre|<table|<ul|<ol', slide)]
        assert sum(len(text.split()) < 20 for text in thin) <= 1, thin


def cell(kind: str, source: str, *outputs: Any, tags: tuple[str, ...] = ()) -> Any:
    """A cell of a lesson."""
    made = MAKE.new_code_cell(source) if kind == "code" else MAKE.new_markdown_cell(source)
    made.metadata["tags"] = list(tags)
    if kind == "code":
        made.outputs = list(outputs)
    return made


def test_what_is_seen_and_what_is_said() -> None:
    """Long text is seen in part, and said whole; a figure has no code, a fact stands below its question."""
    figure = MAKE.new_output("execute_result", {"image/svg+xml": "<svg/>"})
    printed = MAKE.new_output("stream", text="\n".join(map(str, range(40))))
    asked = MAKE.new_output(
        "execute_result",
        {"text/html": '<div data-predict="{&quot;name&quot;: &quot;a&quot;, &quot;question&quot;: &quot;Why?&quot;}">'},
    )
    told = MAKE.new_output("execute_result", {"text/html": '<div data-reveal="{&quot;name&quot;: &quot;a&quot;}">'})
    cells = [
        cell("markdown", f"# Ranks\n\nA rank is a process. It has a number. {'And more ' * 50}.\n\n- one\n- two"),
        cell("code", "import numpy"),
        cell("code", "draw()", figure),
        cell("code", "predict()", asked),
        cell("markdown", "Say this.", tags=("instructor",)),
        cell("code", "from blanks import *", tags=("exercise",)),
        cell("code", "print(numbers)", printed, tags=("both",)),
        cell("code", "reveal()", told),
        cell("markdown", "## Next"),
    ]
    found = deck(cells, [each for each in cells if each.cell_type == "code" and "exercise" not in each.metadata.tags])
    assert [slide.title for slide in found] == ["Ranks", "Ranks", "Ranks", "Ranks", "Next"]
    first, question, numbers, fact, _ = (Slide(s.title, [words("".join(s.body))], s.notes) for s in found)
    assert first.body == ["Ranks ¶ A rank is a process. It has a number. one two"]
    assert "And more" in first.notes[0]
    assert "draw" in first.notes[1]
    assert "<svg/>" in found[0].body[-1]
    assert "Say this." in question.notes[-1]
    assert numbers.body[0].endswith("14 15 … 24 more lines")
    assert numbers.body[0].startswith("Ranks print ( numbers )")
    assert fact.body == ["Ranks reveal () Why?"]
    assert "blanks" not in str(found)


@pytest.mark.integration
@pytest.mark.slow
def test_they_are_shown_in_a_browser(slides: Path, browser: Any) -> None:
    """Keys turn pages, everything fits, the second window goes along and has the notes, print has them too."""
    wrong: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 720})
    page = context.new_page()
    context.on(
        "request", lambda request: wrong.append(request.url) if not request.url.startswith(("file:", "data:")) else 0
    )
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto((slides / "16_512_gpus_on_paper.html").as_uri())
    count = page.locator("section").count()
    large = (
        "() => { const s = document.querySelector('section.now .slide'); return s.scrollHeight > s.clientHeight + 1; }"
    )
    for number in range(1, count + 1):
        assert page.locator("#place").inner_text() == f"{number} / {count}"
        if page.evaluate(large):
            wrong.append(f"slide {number} does not fit")
        page.keyboard.press("ArrowRight")
    page.keyboard.press("Home")
    assert not page.locator("section.now .notes").is_visible()
    page.keyboard.press("n")
    assert page.locator("section.now .notes").is_visible()
    with page.expect_popup() as opened:
        page.keyboard.press("s")
    speaker = opened.value
    speaker.wait_for_selector("section.now .notes", state="visible")
    speaker.keyboard.press("ArrowRight")
    page.wait_for_function("location.hash === '#2'")
    page.keyboard.press("End")
    speaker.wait_for_function(f"location.hash === '#{count}'")
    page.emulate_media(media="print")
    assert page.locator(".notes:not(:empty)").first.is_visible()
    assert page.locator("section").last.is_visible()
    assert wrong == []
    context.close()
