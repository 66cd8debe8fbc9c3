"""Slides to lecture from: each lesson has its deck, nothing in it is stale, and all of them fit in a real browser."""

from __future__ import annotations

import json
import re
from html import escape, unescape
from pathlib import Path
from typing import Any

import nbformat
import pytest

from workbench.course.build import ROOT, lessons
from workbench.course.slides import Lesson, complaints, deck
from workbench.course.slides.__main__ import main, read

LESSONS = lessons([])
MAKE: Any = nbformat.v4
pytestmark = pytest.mark.course


@pytest.fixture(scope="module")
def slides(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with all of them; a deck that cannot be lectured from is an error here."""
    out = tmp_path_factory.mktemp("slides")
    main(["--out", str(out)])
    return out


def words(html: str) -> str:
    """What is to be read, and nothing else."""
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", html)).split())


@pytest.mark.parametrize("lesson", LESSONS, ids=lambda path: path.stem)
def test_a_deck_brings_the_whole_lesson(slides: Path, lesson: Path) -> None:
    """The text below each heading is in the notes; and no file or address that the page would ask for."""
    html = (slides / f"{lesson.stem}.html").read_text(encoding="utf-8")
    source = (ROOT / "lessons" / "slides" / f"{lesson.stem}.md").read_text(encoding="utf-8")
    headings = [part.partition("\n")[0].lstrip("# ") for part in read(lesson).sections()][1:]
    brought = re.findall(r"^\{section (.+)\}$", source, re.MULTILINE)
    assert sorted(brought) == sorted(set(headings))
    assert (
        re.findall(r'(?:src|srcset)="(?!data:)[^"]*|<link [^>]*|@import[^;]*|url\((?!["\']?(?:data:|#))[^)]*', html)
        == []
    )


def cell(source: str, *outputs: Any) -> Any:
    """An executed cell."""
    made = MAKE.new_code_cell(source)
    made.outputs = list(outputs)
    return made


def shown(what: str, **data: Any) -> Any:
    """What ``predict`` or ``reveal`` leaves in a notebook."""
    text = f'<div data-{what}="{escape(json.dumps(data))}"></div>'
    return MAKE.new_output("execute_result", {"text/html": text})


QUESTION = {"name": "a", "question": "Why `x`?", "kind": "choices", "options": ["so", "<not>"], "unit": ""}
LESSON = Lesson(
    ["# Ranks\n\nFirst.\n\n## What one is", "A process.", "Say it twice.\n\n## End\n\nOver."],
    [
        cell("draw(1)", MAKE.new_output("execute_result", {"image/svg+xml": "<svg>1</svg>"})),
        cell("x = 1\nprint(x)", MAKE.new_output("stream", text="1\n")),
        cell("print(range(40))", MAKE.new_output("stream", text="\n".join(map(str, range(40))))),
        cell("predict()", shown("predict", **QUESTION)),
        cell("reveal()", shown("reveal", name="a", fact="<not>", why="Because.")),
        cell("play(1)"),
        cell("play(2)"),
        cell("play("),
    ],
)


def test_what_a_slide_names_comes_from_the_lesson() -> None:
    """Picture, printed text, code, question, answer, exercise; the section's text, over several cells, in the notes."""
    source = (
        "# Ranks\n\nNotes: Begin.\n\n## A rank is a process\n\n{picture draw(}\n\n{printed x =}\n\n{code x =}\n\n"
        "{ask a}\n\n{answer a}\n\n{exercise 03.ring_allreduce}\n\nNotes: Say so.\n\n{section What one is}\n"
    )
    first, second = deck(source, LESSON)
    assert (first.title, words(first.notes)) == ("Ranks", "Begin.")
    assert "<svg>1</svg>" in second.body
    assert words(second.body).startswith(
        "A rank is a process ¶ 1 1 x = 1 print ( x ) Why x ? so <not> Why x ? so <not>"
    )
    assert re.findall("<li class=right>(.*?)</li>", second.body) == ["&lt;not&gt;"]
    assert "Because." in second.body
    assert "def ring_allreduce ( comm , x ):" in words(second.body)
    assert words(second.notes) == "Say so. A process. Say it twice."


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        ("{picture paint(}", "0 cells of the lesson have a line that begins with 'paint('"),
        ("{picture play(}", "has drawn nothing"),
        ("{picture pla}", "3 cells"),
        ("{picture x =}", "has drawn nothing"),
        ("{printed draw(}", "has printed nothing"),
        ("{printed print(range}", "40 lines of 2 characters; 12 of 100 can be read"),
        ("{ask b}", "the notebook has no predict('b')"),
        ("{film x}", "is none of picture, printed"),
        ("```python\n" + "x = 1\n" * 13 + "```", "13 lines"),
        ("word " * 61, "61 words are seen"),
        ("Notes:\n\n{section Nowhere}", "no heading 'Nowhere'"),
    ],
)
def test_what_a_lesson_does_not_have_or_nobody_can_read_is_an_error(shown: str, why: str) -> None:
    """With the slide's title."""
    with pytest.raises(ValueError, match=re.escape(why)) as raised:
        deck(f"## A title that is a sentence\n\n{shown}\n", LESSON)
    assert "A title that is a sentence" in str(raised.value)


def test_what_one_cannot_lecture_from_is_said() -> None:
    """Too few slides, no sentence, nothing said, nothing shown, a question that stays open."""
    slides = deck(
        "# Ranks\n\nText.\n\nNotes: " + "word " * 10 + "\n\n## Short one\n\n## Is this a question?\n\n{ask a}\n", LESSON
    )
    assert list(complaints(slides)) == [
        "3 slides; 12 to 20 are a lesson",
        "'Short one' is no sentence",
        "'Short one' has no notes",
        "'Short one' shows nothing",
        "'Is this a question?' has no notes",
        "the question a has no answer after it",
    ]


_FITS = """() => {
  const slide = document.querySelector("section.now .slide"), inside = slide.firstElementChild;
  const parts = [...inside.querySelectorAll("pre, table, svg, img")];
  const wide = parts.some((each) => each.getBoundingClientRect().right > 1280);
  return slide.scrollHeight <= slide.clientHeight + 1 && !wide && parseFloat(getComputedStyle(inside).fontSize) >= 22;
}"""


@pytest.mark.integration
@pytest.mark.slow
def test_they_are_shown_in_a_browser(slides: Path, browser: Any) -> None:
    """Keys turn pages, every slide of every deck fits in letters that a hall can read; print has the notes, too."""
    wrong: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 720})
    page = context.new_page()
    context.on(
        "request", lambda request: wrong.append(request.url) if not request.url.startswith(("file:", "data:")) else 0
    )
    page.on("pageerror", lambda error: wrong.append(str(error)))
    for lesson in LESSONS:
        page.goto((slides / f"{lesson.stem}.html").as_uri())
        count = page.locator("section").count()
        for number in range(1, count + 1):
            assert page.locator("#place").inner_text() == f"{number} / {count}"
            if not page.evaluate(_FITS):
                wrong.append(f"{lesson.stem}: slide {number} does not fit")
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
