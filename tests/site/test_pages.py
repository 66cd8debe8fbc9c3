"""The students' site, as a reader has it: real pages in a real browser, from a server that knows nothing else."""

from __future__ import annotations

import html
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest
from thorough import once_more

from workbench.course.build import ROOT
from workbench.course.predictions import page as shown
from workbench.course.predictions.question import Question

pytestmark = [pytest.mark.course, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(400)]

LESSON, EXERCISES = "notebooks/03_ring_allreduce", "exercises/03_ring_allreduce"
# A run that is not thorough looks at these pages alone, axe-core at the first one.
SORTS = [LESSON, EXERCISES, "api/workbench.errors", "search"]
Open = Callable[..., Any]
SOME_OR_ALL = pytest.mark.parametrize("which", ["sorts", once_more("all")])


def pages(site: Path, which: str = "all") -> list[str]:
    """All pages that are ours, and not JupyterLab's, or one of each sort."""
    found = (path.relative_to(site).with_suffix("") for path in site.rglob("*.html"))
    return SORTS if which == "sorts" else sorted(str(path) for path in found if path.parts[0] not in ("_static", "lab"))


class Links(HTMLParser):
    """What a page leads to, what it loads, and the places in it that others may lead to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.leads: list[str] = []
        self.loads: list[str] = []
        self.places: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {key: value or "" for key, value in attrs}
        self.places |= {found[key] for key in ("id", "name") if key in found}
        if tag == "a" and "href" in found:
            self.leads.append(found["href"])
        elif tag == "link" and found.get("rel") in ("stylesheet", "icon", "preload"):
            self.loads.append(found["href"])
        elif "src" in found:
            self.loads.append(found["src"])


def test_no_link_leads_nowhere(site: Path) -> None:
    """Each link within the site is to a file that is there, and to a place in it; nothing is loaded from elsewhere."""
    read = {path: Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    assert len(read) > 40
    wrong = []
    for path, links in read.items():
        wrong += [f"{path.name} loads {each}" for each in links.loads if "://" in each or each.startswith("//")]
        for each in links.leads + links.loads:
            address, anchor = urldefrag(each.partition("?")[0])
            if ":" in address:
                continue
            target = (path.parent / unquote(address)).resolve() if address else path
            places = read[target].places if target in read else {anchor}
            if not target.is_file() or unquote(anchor) not in places:
                wrong.append(f"{path.relative_to(site)} → {each}")
    assert wrong == []


# Boxes of the texts that a picture shows, by picture. Letters of one line may touch, so a box is made a little smaller;
# texts of no extent, and those that are hidden, are left out.
OVERLAPS = """
() => [...document.querySelectorAll("svg")].flatMap(svg => {
    const room = svg.getBoundingClientRect()
    const boxes = [...svg.querySelectorAll("text")]
        .filter(each => each.textContent.trim() && getComputedStyle(each).visibility == "visible")
        .map(each => [each.textContent.trim(), each.getBoundingClientRect()])
        .filter(([, box]) => box.width > 0 && box.height > 0)
    const of = (a, b) => [Math.min(a.right, b.right) - Math.max(a.left, b.left),
        Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top)]
    const far = box => Math.min(box.height, box.width) * 0.3
    const title = (svg.ariaLabel ?? "").slice(0, 40)
    const cut = boxes.filter(([, box]) => box.left < room.left - 2 || box.right > room.right + 2)
    const twice = boxes.flatMap(([text, box], i) => boxes.slice(i + 1)
        .filter(([, other]) => of(box, other).every(each => each > Math.min(far(box), far(other))))
        .map(([other]) => `${title}: '${text}' over '${other}'`))
    return [...cut.map(([text]) => `${title}: '${text}' is cut off`), ...twice]
})
"""
WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@SOME_OR_ALL
def test_each_page_is_whole(site: Path, visit: Open, which: str) -> None:
    """No page has an error, a request that fails, or text over text in a picture; on a telephone, too, it fits."""
    window, wrong = visit(), {}
    for name in pages(site, which):
        for width in (1280, 390):
            window.page.set_viewport_size({"width": width, "height": 900})
            page = window.open(name) if width == 1280 else window.page
            found = page.evaluate(OVERLAPS)
            if (wide := page.evaluate(WIDE)) > 0:
                found.append(f"{wide} px wider than the window")
            if found:
                wrong[name, width] = found
    assert wrong == {}


OF_COLOURS = ["color-contrast", "link-in-text-block"]  # what another theme may change


@SOME_OR_ALL
def test_nothing_keeps_anybody_out(site: Path, visit: Open, which: str) -> None:
    """axe-core finds nothing serious and nothing critical, in the light and in the dark theme."""
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None or found.origin is None:
        pytest.skip("not installed: axe-playwright-python, which brings axe-core (make setup)")
    axe = (Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8")
    window, wrong = visit(), {}
    for name in SORTS[:1] if which == "sorts" else pages(site):
        for theme, only in (("light", {}), ("dark", {"runOnly": OF_COLOURS})):
            window.page.emulate_media(color_scheme=theme)
            if theme == "light":
                window.open(name).evaluate(axe)
            else:
                window.page.wait_for_timeout(300)  # colours change slowly
            options = {"resultTypes": ["violations"], **only}
            violations = window.page.evaluate("options => axe.run(document, options)", options)["violations"]
            bad = [each for each in violations if each["impact"] in ("serious", "critical")]
            if bad:
                wrong[theme, name] = [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in bad]
    assert wrong == {}


def test_from_lesson_to_lesson(visit: Open) -> None:
    """Next leads to the next lesson, Previous back; a lesson leads to its exercises, and they to it."""
    page = visit().open(LESSON)
    links = page.locator(".wb-links")
    links.get_by_role("link", name="04 ").click()
    assert "04_parallel_sgd" in page.url
    page.locator(".wb-links").get_by_role("link", name="03 ").first.click()
    assert LESSON in page.url
    page.locator(".wb-run").get_by_role("link", name="exercises").click()
    assert EXERCISES in page.url
    page.locator(".wb-links").get_by_role("link", name="03 ").first.click()
    assert LESSON in page.url


COLOURS = """
() => ['.wb-picture .wbt-text', '.wb-picture .wbt-ground', '.wbp .wbt-text']
    .map(each => getComputedStyle(document.querySelector(each)).fill)
    .concat(getComputedStyle(document.body).backgroundColor)
"""


def brightness(colour: str) -> float:
    """0 to 1."""
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 765


def test_pictures_follow_the_theme(visit: Open) -> None:
    """Text is bright on dark in the dark theme, dark on bright in the light one; also against the system's choice."""
    for system in ("light", "dark"):
        page = visit(system).open(LESSON)
        for theme in ("auto", "light", "dark"):
            page.evaluate("theme => document.body.dataset.theme = theme", theme)
            page.wait_for_timeout(300)  # the page's own colours change slowly
            text, ground, player, body = map(brightness, page.evaluate(COLOURS))
            dark = (system if theme == "auto" else theme) == "dark"
            assert [each > 0.5 for each in (text, ground, player, body)] == [dark, not dark, dark, not dark]


def test_a_player_plays(visit: Open) -> None:
    """Without a kernel the player of a lesson goes on step by step, by pointer and by key."""
    page = visit().open(LESSON)
    player = page.locator(".wbp").first
    assert player.locator(".wbp-clock").inner_text() == "step 0 of 6"
    player.get_by_role("button", name="Step on").click()
    assert player.locator(".wbp-clock").inner_text() == "step 1 of 6"
    assert "chunk" in player.locator(".wbp-line").inner_text()
    page.keyboard.press("Enter")
    assert player.locator(".wbp-clock").inner_text() == "step 2 of 6"
    assert page.locator(".wbp").count() == page.locator("[data-player]").count() == 2


@pytest.mark.parametrize("kind", [once_more("http"), "file"])
def test_search_finds(site: Path, visit: Open, address: str, kind: str) -> None:
    """A term of lesson 03 leads to it, from a server and from files."""
    window = visit(address=address if kind == "http" else site.as_uri())
    page = window.open("index")
    page.get_by_label("Search", exact=True).first.fill("reduce-scatter")
    page.keyboard.press("Enter")
    found = page.locator("#search-results li a", has_text="03 Ring allreduce").first
    found.wait_for()
    found.click()
    assert LESSON in page.url


QUESTIONS = [
    Question("99.bytes", "How many bytes?", "choices", ("2 MB", "12 MB")),
    Question("99.messages", "How many messages?", "number", unit="messages"),
    Question("99.order", "In which order?", "order", ("first", "second", "third")),
]
FACTS: list[Any] = ["12 MB", 1200, ["second", "first", "third"]]


@pytest.fixture
def trial(site: Path, visit: Open, address: str) -> Any:
    """A page of three predictions as a notebook shows them, with the site's style and scripts."""
    told = zip(QUESTIONS, FACTS, strict=True)
    texts = [shown.asked(each).html for each in QUESTIONS]
    texts += [shown.told(one, None, fact, "Because 1 < 2.", opened=False).html for one, fact in told]
    body = f"<main><h1>Trial</h1>{''.join(texts)}</main>"
    frame = (site / "reference" / "glossary.html").read_text(encoding="utf-8")
    frame = re.sub(r"<article.*</article>", lambda _: f"<article>{body}</article>", frame, flags=re.DOTALL)
    window = visit()
    window.page.route("**/trial.html", lambda route: route.fulfill(body=frame, content_type="text/html; charset=utf-8"))
    return window.open("trial")


def test_a_choice_is_told_after_the_guess(trial: Any) -> None:
    """The fact is not in sight before; afterwards it stands beside the guess, also when the page is opened again."""
    form, reveal = trial.locator("[data-predict]").first, trial.locator("[data-reveal]").first
    assert "Because" not in trial.locator("main").inner_text()
    form.get_by_role("button", name="Store my guess").click()
    assert "Choose one first." in form.inner_text()
    form.get_by_label("2 MB", exact=True).focus()
    trial.keyboard.press("ArrowDown")
    trial.keyboard.press("ArrowUp")
    trial.keyboard.press("Enter")
    for _ in range(2):
        told = reveal.inner_text()
        assert all(each in told for each in ("Your guess: 2 MB", "✗ Not as you said.", "Fact: 12 MB", "Because 1 < 2."))
        trial.reload()
    form.get_by_role("button", name="Forget my guess").click()
    assert "Because" not in reveal.inner_text()
    form.get_by_label("12 MB").check()
    form.get_by_role("button", name="Store my guess").click()
    assert "✓ As you said." in reveal.inner_text()


def test_an_order_is_made_by_keys(trial: Any) -> None:
    """Up and down move an option, the focus goes with it; and who wants no guess can look."""
    form, reveal = trial.locator("[data-predict]").nth(2), trial.locator("[data-reveal]").nth(2)
    form.get_by_role("button", name="Move down: first").focus()
    trial.keyboard.press("Enter")
    assert trial.evaluate("document.activeElement.ariaLabel") == "Move down: first"
    form.get_by_role("button", name="Store my guess").click()
    assert all(each in reveal.inner_text() for each in ("Your guess: second → first → third", "✓ As you said."))
    other = trial.locator("[data-reveal]").nth(1)
    other.get_by_role("button", name="Show anyway").click()
    assert "Your guess: no guess" in other.inner_text()
    assert "Fact: 1,200 messages" in other.inner_text()
    assert "As you said" not in other.inner_text()


@SOME_OR_ALL
def test_lessons_ask_before_they_tell(site: Path, visit: Open, which: str) -> None:
    """On each page of a lesson that predicts, all questions are forms, and no fact is open."""
    window = visit()
    for name in pages(site, which):
        if "data-predict=" not in (site / f"{name}.html").read_text(encoding="utf-8"):
            continue
        page = window.open(name)
        asked = page.locator("[data-predict]").count()
        assert page.locator("[data-predict] form").count() == asked > 1
        assert page.locator("[data-reveal]").count() == asked
        assert page.locator("[data-reveal]").get_by_role("button", name="Show anyway").count() == asked


def texts(kind: str, sort: str) -> str:
    """All cells of a sort, and what they print."""
    books = [json.loads(path.read_text(encoding="utf-8")) for path in (ROOT / kind).glob("[0-9]*.ipynb")]
    cells = [cell for book in books for cell in book["cells"] if cell["cell_type"] == sort]
    printed = [output.get("text", "") for cell in cells for output in cell.get("outputs", [])]
    return "\n".join("".join(text) for text in [*(cell["source"] for cell in cells), *printed])


PIECE = 15


def test_students_find_no_solution(site: Path) -> None:
    """No line that only the solutions have is in any file: no page, source, download, nor the search."""
    kinds = (".html", ".ipynb", ".json", ".txt")
    files = [path for path in site.rglob("*") if path.suffix in kinds and {"static", "_static"}.isdisjoint(path.parts)]
    files += [site / "searchindex.js"]
    shared = "".join(texts(kind, sort) for kind in ("exercises", "notebooks") for sort in ("code", "markdown"))
    lines = [line.strip() for sort in ("code", "markdown") for line in texts("solutions", sort).splitlines()]
    secret = {line for line in lines if len(line) > 30 and line not in shared and "](" not in line}
    assert len(secret) > 50
    # Whatever is longer than twice a piece has a whole one of those that a text is cut into.
    pieces: dict[str, set[str]] = {}
    for line in secret:
        for at in range(len(line) - PIECE + 1):
            pieces.setdefault(line[at : at + PIECE], set()).add(line)
    for path in files:
        text = path.read_text(encoding="utf-8")
        bare = html.unescape(re.sub(r"<[^>]+>", "", text)) if path.suffix == ".html" else ""  # words have colours
        for each in (text, bare):
            near = set().union(*(pieces.get(each[at : at + PIECE], ()) for at in range(0, len(each), PIECE)))
            assert {line for line in near if line in each} == set(), path
        assert re.search(r"solutions/\d", text) is None, path
    assert any("make lab" in path.read_text(encoding="utf-8") for path in files)
    assert list(site.rglob("*solution*")) == []


@pytest.mark.thorough
def test_instructors_have_the_solutions(tmp_path: Path) -> None:
    """Their site is built without a warning; where it was, the students' later has no solution left."""
    command = [sys.executable, "-m", "workbench.course.site", "--out", str(tmp_path / "site")]
    for more in (["--instructors"], []):
        done = subprocess.run([*command, *more], cwd=ROOT, capture_output=True, text=True, timeout=180)
        assert done.returncode == 0, done.stderr
        page = tmp_path / "site" / "solutions" / "03_ring_allreduce.html"
        assert page.exists() is bool(more)
        assert not more or "<title>03 Ring allreduce: solutions" in page.read_text(encoding="utf-8")
