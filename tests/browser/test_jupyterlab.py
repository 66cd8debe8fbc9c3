"""JupyterLab as ``make lab`` opens it, in a real browser: who gets in, the learner's copies, exercises, a whole lesson.

All share one JupyterLab; the last test shuts it down.
"""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest
from labs import QUICKSTART, RING, RING_EXERCISES, Lab, Notebook, choose_theme, in_browser, needs_make, visible
from other_user import SECRET, as_nobody, heard, listening
from running import eventually
from thorough import once_more

from workbench.course import progress_file
from workbench.course.tasks import names, task

if TYPE_CHECKING:
    import jupyter_client

pytestmark = [
    *[pytest.mark.integration, pytest.mark.course, pytest.mark.slow, pytest.mark.timeout(300)],
    *[needs_make, in_browser],
]


# --- the course and the learner's copies ----------------------------------------------------------------

COPY, EXERCISES = f"my/{QUICKSTART}", f"my/{RING_EXERCISES}"
# Of JupyterLab itself only what we put into it is looked at.
AXE = "axe.run({include: [['#wb-course'], ['#wb-welcome']]}, {resultTypes: ['violations']})"

FIGURE = "from workbench.course import drawing\ndrawing.ring_chunks(4)"
QUESTION = """from workbench.course.predictions import predict

predict(
    "03.bytes",
    "How many bytes? And here the line goes on, to far more than what a window has room for at 1,280 pixels, or at any",
    choices=["2 MB", "8 MB", "12 MB"],
)"""
SIDEWAYS = """
() => [...document.querySelectorAll('.jp-NotebookPanel *')]
    .filter(each => each.scrollWidth > each.clientWidth + 1 && each.getClientRects().length)
    .filter(each => ['auto', 'scroll'].includes(getComputedStyle(each).overflowX))
    .map(each => each.outerHTML.slice(0, 200))
"""


@pytest.fixture
def page(lab: Lab, browser: Any, tmp_path: Path) -> Iterator[Any]:
    """JupyterLab as it opens, in an empty workspace."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(30_000)
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto(f"{lab.url('lab')}?reset&token={lab.token}")
    page.get_by_role("heading", name="Distributed deep learning").wait_for()
    yield page
    page.screenshot(path=tmp_path / "end.png")
    page.close()
    lab.end_kernels()
    assert wrong == []


def lesson(page: Any, number: str) -> Any:
    """Its row in the side bar."""
    return page.locator("#wb-course .wb-lesson").filter(has=page.get_by_role("button", name=f"{number} "))


def opened(page: Any) -> list[str]:
    """The notebooks that are open. A new tab gets its path a moment later."""
    page.wait_for_function(
        "() => document.querySelectorAll('.jp-NotebookPanel').length ==="
        " document.querySelectorAll('#jp-main-dock-panel .lm-TabBar-tab[title*=\"Path: \"]').length"
    )
    titles = [tab.get_attribute("title") or "" for tab in page.locator("#jp-main-dock-panel .lm-TabBar-tab").all()]
    return [line.removeprefix("Path: ") for title in titles for line in title.splitlines() if line.startswith("Path: ")]


def test_it_opens_on_a_page_that_says_where_to_begin(lab: Lab, page: Any) -> None:
    """In place of the launcher, beside the side bar; nothing asks about news; the log says the address and no more.

    From there a lesson opens as the learner's own copy.
    """
    assert page.locator("#wb-welcome").get_by_role("button", name="Begin here: 00 Quickstart").is_visible()
    assert page.locator("#jp-main-dock-panel .lm-TabBar-tabLabel").all_inner_texts() == ["Welcome"]
    assert page.get_by_role("heading", name="Course").is_visible()
    assert page.locator(".jp-toast").count() == 0
    said = lab.log.read_text()
    assert f"127.0.0.1:{lab.port}/lab?token={lab.token}" in said
    assert [line for line in said.splitlines() if line.startswith(("[I", "[W", "[E"))] == []
    assert len(said.splitlines()) < 15

    # A lesson is opened by the keyboard; what is run and saved there changes no published notebook, and it is ticked.
    published = (lab.checkout / QUICKSTART).read_bytes()
    begin = page.locator("#wb-course .wb-begin")
    begin.focus()
    page.keyboard.press("Enter")
    page.locator("#jp-main-statusbar", has_text="| Idle").wait_for()
    assert page.locator(".jp-NotebookPanel").count() == 1
    assert opened(page) == [COPY]
    page.locator(".jp-Notebook .jp-CodeCell .cm-content").last.click()
    page.keyboard.press("Control+a")
    page.keyboard.insert_text("6 * 7")
    page.keyboard.press("Control+Enter")
    page.locator(".jp-Notebook .jp-OutputArea-output", has_text="42").wait_for()
    page.locator(".jp-Notebook .jp-InputPrompt:text-matches('\\\\[\\\\d+\\\\]:')").wait_for()  # comes after the output
    page.keyboard.press("Control+s")
    lesson(page, "00").locator("summary", has_text="✓").wait_for()
    page.locator("#wb-course .wb-begin", has_text="Go on here: 01 Ranks").wait_for()
    assert lesson(page, "01").get_by_role("button", name="01 Ranks").get_attribute("aria-current") == "step"
    assert "6 * 7" in (lab.checkout / COPY).read_text()
    assert (lab.checkout / QUICKSTART).read_bytes() == published


@pytest.mark.thorough
def test_everybody_can_use_it(page: Any) -> None:
    """axe-core finds nothing in the side bar and the page, in the light and in the dark theme."""
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None or found.origin is None:
        pytest.skip("not installed: axe-playwright-python, which brings axe-core (make setup)")
    page.evaluate((Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8"))
    for details in lesson(page, "03").locator("summary").all():
        details.click()
    for theme in ("light", "dark"):
        choose_theme(page, theme)
        violations = page.evaluate(AXE)["violations"]
        assert [(each["id"], [node["html"][:200] for node in each["nodes"]]) for each in violations] == [], theme


@pytest.mark.thorough
def test_what_is_solved_is_counted(lab: Lab, page: Any) -> None:
    """A card only when its cause is named, too; an exercise opens at its cell."""
    kept = lab.checkout / "my" / "exercises" / progress_file.FILE
    progress_file.update(kept, lambda found: found.update({"03.reduce_scatter": {"passed": True}}))
    progress_file.update(kept, lambda found: found.update({"11.epoch": {"passed": True, "cause": False}}))
    page.locator("#wb-course").get_by_role("button", name="Refresh").click()
    page.get_by_text(f"1 of {len(names())} exercises solved", exact=True).wait_for()
    ring = lesson(page, "03")
    assert ring.locator("summary").inner_text() == "1 of 2 solved"
    assert lesson(page, "11").locator("summary").inner_text() == "0 of 12 solved"
    ring.locator("summary").focus()
    page.keyboard.press("Enter")
    assert ring.get_by_role("button", name="the first half of the ring: solved").is_visible()
    ring.get_by_role("button", name="the whole ring: open").click()
    active = page.locator(".jp-Notebook .jp-mod-active")
    active.locator(".cm-content", has_text='@exercise("03.ring_allreduce")').wait_for()
    assert opened(page) == [EXERCISES]


@pytest.mark.thorough
def test_a_copy_is_reset_and_the_old_one_kept(lab: Lab, page: Any) -> None:
    """Also what is not saved yet; the new one has no outputs and is open. It can be done again."""
    ring = lesson(page, "03")
    ring.locator("summary").click()
    for i in (1, 2, 3):
        ring.get_by_role("button", name="03 Ring allreduce", exact=True).click()
        page.locator("#jp-main-statusbar", has_text="| Idle").wait_for()
        page.locator(".jp-Notebook .jp-CodeCell .cm-content").first.click()
        page.keyboard.press("Control+a")
        page.keyboard.insert_text(f"print('mine', {i})")
        ring.get_by_role("button", name="Reset my copy of the lesson").click()
        page.get_by_role("button", name="Reset", exact=True).click()
        page.locator(".jp-Notebook .jp-CodeCell .cm-content", has_text="import numpy").first.wait_for()
        old = lab.checkout / f"my/notebooks/03_ring_allreduce.{i}.ipynb"
        assert f"print('mine', {i})" in old.read_text()
        fresh = nbformat.read(lab.checkout / "my" / RING, as_version=4)
        published = nbformat.read(lab.checkout / RING, as_version=4)
        assert [cell.source for cell in fresh.cells] == [cell.source for cell in published.cells]
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in fresh.cells)
        assert page.locator(".jp-NotebookPanel").count() == 1
    (lab.checkout / "my" / RING).unlink()  # comes back when its lesson is opened
    ring.get_by_role("button", name="03 Ring allreduce", exact=True).click()
    page.locator(".jp-Notebook .jp-CodeCell").first.wait_for()
    assert eventually((lab.checkout / "my" / RING).exists)


@pytest.mark.thorough
def test_a_lesson_is_newer_than_its_copy(lab: Lab, page: Any) -> None:
    """The side bar says so, until a new copy is taken."""
    states = lab.checkout / "my/notebooks/.workbench/lessons.json"
    states.write_text(states.read_text().replace('"published": "', '"published": "new'))
    page.get_by_role("button", name="Refresh").click()
    ring = lesson(page, "03")
    ring.locator("summary", has_text="newer than your copy").click()
    ring.locator(".wb-newer", has_text="the lesson").wait_for()
    ring.get_by_role("button", name="Reset my copy of the lesson").click()
    page.get_by_role("button", name="Reset", exact=True).click()
    ring.locator(".wb-newer", has_text="the lesson").wait_for(state="hidden")
    page.get_by_role("button", name="Refresh").click()
    page.locator(".wb-lesson summary", has_text="newer than your copy").first.wait_for()  # another one still is
    assert "newer" not in ring.locator("summary").inner_text()


def scrolled(page: Any) -> list[str]:
    """What in the open notebook is wider than its place, and can be scrolled sideways."""
    found: list[str] = page.evaluate(SIDEWAYS)
    return found


@pytest.mark.thorough
def test_figures_follow_the_theme_and_nothing_scrolls_sideways(lab: Lab, browser: Any, tmp_path: Path) -> None:
    """JupyterLab's theme, not that of the reader's system; and a question that is asked stands there once."""
    import matplotlib.image

    code = nbformat.v4.new_code_cell
    folded = code("#" * 300 + "\n1 + 1", metadata={"jupyter": {"source_hidden": True}})
    cells = [code(FIGURE), code(QUESTION), folded, code("'last'")]
    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    written = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})
    nbformat.write(written, lab.checkout / "my/exercises/own.ipynb")
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    notebook = Notebook(page, lab, "my/exercises/own.ipynb?reset")
    notebook.choose("Run", "Run All Cells")
    notebook.wait(4, counted=4)
    page.locator(".jp-Notebook form.wbq").wait_for()
    assert page.locator(".jp-Notebook").inner_text().count("How many bytes") == 1
    grounds = {}
    for theme in ("light", "dark"):
        choose_theme(page, theme)
        for system in ("light", "dark"):
            page.emulate_media(color_scheme=system)
            figure = page.locator(".jp-Notebook .jp-RenderedSVG img").screenshot(
                path=tmp_path / f"{theme}-{system}.png"
            )
            pixel = matplotlib.image.imread(io.BytesIO(figure))[8, 8, :3]
            grounds[theme, system] = "light" if min(pixel) == 1 else "dark" if max(pixel) < 0.2 else str(pixel)
        assert scrolled(page) == []
    page.close()
    assert grounds == {(theme, system): theme for theme in ("light", "dark") for system in ("light", "dark")}


# --- who gets in ----------------------------------------------------------------------------------------


def status(address: str) -> int:
    """What the server answers to a GET that follows no redirection."""

    class Stay(urllib.request.HTTPRedirectHandler):
        def redirect_request(self, *_: Any) -> None:
            return None

    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), Stay)
        with opener.open(address, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def test_lab_is_for_this_machine_and_its_user(lab: Lab) -> None:
    """JupyterLab listens on loopback alone, and gives nothing without its token: contents, kernels, the page itself."""
    ports = [each for process in lab.processes() for each in process.net_connections() if each.status == "LISTEN"]
    assert {each.laddr.ip for each in ports} == {"127.0.0.1"}
    assert lab.port in {each.laddr.port for each in ports}
    assert len(lab.token) >= 32
    for secret in ("", "?token=", f"?token={lab.token[::-1]}"):
        assert status(lab.url(f"api/contents/{QUICKSTART}{secret}")) == 403
        assert status(lab.url(f"api/kernels{secret}")) == 403
        assert status(lab.url(f"lab{secret}")) == 302  # to the page that asks for the token
    assert status(lab.url(f"api/contents/{QUICKSTART}?token={lab.token}")) == 200


def ready(connection_file: Path, timeout_s: float = 60.0) -> jupyter_client.BlockingKernelClient:
    """A client of a kernel that has just been started: as long as its heart does not beat, it counts as dead."""
    import jupyter_client

    deadline = time.monotonic() + timeout_s
    while True:
        client = jupyter_client.BlockingKernelClient(connection_file=str(connection_file))
        client.load_connection_file()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=timeout_s)
        except RuntimeError:
            client.stop_channels()
            if time.monotonic() > deadline:
                raise
        else:
            return client


@contextlib.contextmanager
def printer(connection_file: Path) -> Iterator[Callable[[], None]]:
    """Lets a kernel print the secret."""
    client = ready(connection_file)

    def prints() -> None:
        printed: list[str] = []
        take = lambda message: printed.append(message["content"].get("text", ""))  # noqa: E731
        client.execute_interactive(f"print({SECRET!r})", timeout=60, output_hook=take)
        assert f"{SECRET}\n" in "".join(printed)  # the line and its end may come as two messages

    try:
        yield prints
    finally:
        client.stop_channels()


@as_nobody
@pytest.mark.parametrize("starts", [1, once_more(2)])
def test_nobody_else_can_read_what_kernels_say(lab: Lab, starts: int) -> None:
    """A kernel talks over sockets in a folder that nobody else may enter, and at no port; also when started again."""
    kernel = lab.ask("POST", "api/kernels")["id"]
    for _ in range(starts):
        with printer(lab.runtime / f"kernel-{kernel}.json") as prints:
            ports = listening(lab.processes())
            assert {ip for ip, _ in ports} == {"127.0.0.1"}
            assert not heard({port for _, port in ports}, prints)
            names = {each.laddr for process in lab.processes() for each in process.net_connections("unix")}
            sockets = {Path(name).resolve() for name in names if f"kernel-{kernel}-ipc-" in name}
            assert len(sockets) == 5
            assert {each.parent for each in sockets} == {lab.runtime}
            assert lab.runtime.stat().st_mode & 0o777 == 0o700
        if starts > 1:
            lab.ask("POST", f"api/kernels/{kernel}/restart")
    lab.ask("DELETE", f"api/kernels/{kernel}")
    assert not list(lab.runtime.glob(f"kernel-{kernel}*"))


# --- an exercise ----------------------------------------------------------------------------------------

NAME = "03.reduce_scatter"
IMPORTS, BLANK, CHECK, SHOW = range(4)  # the first code cells of the exercises
TOO_WIDE = """
() => [...document.querySelectorAll('.jp-Notebook .jp-OutputArea-output, .jp-Notebook .jp-OutputArea')]
    .filter(each => each.scrollWidth > each.clientWidth).map(each => each.outerHTML.slice(0, 200))
"""


@pytest.mark.parametrize("notebook", [RING_EXERCISES], indirect=True)
def test_an_exercise_is_done(notebook: Notebook, tmp_path: Path) -> None:
    """The blank is told politely, a wrong answer is red and says where, the right one is green and can be drawn."""
    assert notebook.run(IMPORTS) == ""
    assert notebook.source(BLANK) == task(NAME).cell(solved=False).rstrip("\n")
    assert notebook.run(BLANK) == ""
    told = notebook.run(CHECK)
    assert "– not done yet: replace the line “your code here”" in told
    assert "✗" not in told
    assert "not done yet" in notebook.run(SHOW)

    right = task(NAME).cell(solved=True).rstrip("\n")
    notebook.paste(BLANK, right.replace("chunks[mine] +=", "chunks[mine] ="))
    assert notebook.run(BLANK) == ""
    told = notebook.run(CHECK)
    assert "✗ right: the chunk that comes replaces this rank's own: add it" in told
    assert "n = 2: rank 0, chunk 1: your result = rank 1; rank 0 missing" in told
    assert "first wrong in step 1, on rank 0: what was there of rank 0 is lost" in told
    assert "✓ runs" in told

    notebook.paste(BLANK, right)
    assert notebook.run(BLANK) == ""
    told = notebook.run(CHECK)
    assert [line.strip()[:8] for line in told.splitlines()[1:6]] == [
        *["✓ runs", "✓ right:", "✓ no dea", "✓ score:", "– real r"]
    ]
    notebook.run(SHOW)
    figure = notebook.page.locator(".jp-Notebook .wbp svg")  # the learner's own run, to be played
    figure.wait_for()
    assert figure.count() == 1
    assert figure.bounding_box()["width"] > 400
    assert notebook.page.evaluate(TOO_WIDE) == []
    notebook.picture(tmp_path / "exercise.png")


EXPLORE = "from workbench.course.calculators import explore\nexplore.{}()"


@pytest.mark.thorough
@pytest.mark.parametrize("notebook", [RING_EXERCISES], indirect=True)
def test_a_slider_redraws_the_picture(notebook: Notebook, tmp_path: Path) -> None:
    """Each slider has a name and says its value with its unit; the keyboard moves it, and the picture follows."""
    for which, words, before, after in (
        ("step", "ranks n", "n = 8,", "n = 16,"),
        ("memory", "ranks n", "n = 8,", "n = 16,"),
    ):
        notebook.paste(0, EXPLORE.format(which))
        notebook.run(0)
        page = notebook.page
        picture = page.locator(".jp-Notebook .widget-html svg")
        picture.wait_for()
        assert before in picture.inner_html()
        slider = page.locator(".jp-Notebook .widget-hslider", has_text=words)
        handle = visible(slider.locator(".noUi-handle"))
        handle.focus()
        handle.press("ArrowRight")
        page.locator(".jp-Notebook .widget-html svg text", has_text=after).first.wait_for()
        assert "16 ranks" in slider.inner_text()
        assert page.evaluate(TOO_WIDE) == []
        notebook.picture(tmp_path / f"{which}.png")


ASK = """from workbench.course.predictions import predict, reveal
predict("03.bytes", "How many <b>bytes</b>?", choices=["2 MB", "8 MB", "12 MB"])"""
ANSWER = 'reveal("03.bytes", "12 MB", "2(n - 1)/n of 8 MB")'
NUMBER = 'predict("03.count", "How many?", number="messages")'
ORDER = 'predict("03.order", "In what order?", order=["a", "b", "c"])'
# Texts whose ink and ground differ too little (WCAG AA: 4.5).
WEAK = """
() => {
    const colour = words => (words.match(/[\\d.]+/g) ?? []).map(Number)
    const light = ([r, g, b]) => [r, g, b].map(c => c / 255)
        .map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
        .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0)
    const weak = []
    for (const each of document.querySelectorAll('.wbq legend, .wbq label, .wbq p, .wbq button, .wbq span')) {
        if (!each.getClientRects().length || !each.textContent.trim()) continue
        let at = each
        while ((colour(getComputedStyle(at).backgroundColor)[3] ?? 1) < 1) at = at.parentElement
        const [low, high] = [colour(getComputedStyle(each).color), colour(getComputedStyle(at).backgroundColor)]
            .map(light).sort((a, b) => a - b)
        if ((high + 0.05) / (low + 0.05) < 4.5) weak.push([each.textContent, low, high])
    }
    return weak
}
"""


@pytest.mark.thorough
@pytest.mark.parametrize("notebook", [RING_EXERCISES], indirect=True)
def test_a_guess_is_made_by_keyboard(lab: Lab, notebook: Notebook, tmp_path: Path) -> None:
    """The answer's cell was run too early: it opens with the guess. The guess is in the file and cannot be changed."""
    page = notebook.page
    for cell, text in enumerate([ASK, ANSWER, NUMBER, ORDER]):
        notebook.paste(cell, text)
        notebook.run(cell)
    form, answer, number, order = (page.locator(".wbq").nth(i) for i in range(4))
    order.wait_for()
    assert "First make a guess" in answer.inner_text()
    assert "12 MB" not in answer.inner_text()
    assert "How many <b>bytes</b>?" in form.inner_text()

    form.get_by_role("radio", name="2 MB", exact=True).focus()
    for key in ("Space", "ArrowDown", "Tab", "Enter"):
        page.keyboard.press(key)
    answer.get_by_text("Not as you said").wait_for()
    assert [answer.locator("strong").nth(i).inner_text() for i in (0, 1)] == ["8 MB", "12 MB"]
    assert form.get_by_role("radio", name="12 MB").is_disabled()

    number.get_by_label("Your guess").fill("many")
    page.keyboard.press("Enter")
    number.get_by_text("is no number").wait_for()
    page.keyboard.press("Enter")  # and again
    number.get_by_text("is no number").wait_for()
    number.get_by_label("Your guess").fill("1,200")
    page.keyboard.press("Enter")
    number.get_by_text("Stored: 1,200 messages").wait_for()

    order.get_by_role("button", name="Move down: a").focus()
    for key in ("Enter", "Enter"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Move down: a"
    order.get_by_role("button", name="Store my guess").click()
    order.get_by_text("Stored: b → c → a").wait_for()
    place = "[...document.querySelectorAll('.jp-Notebook .jp-Cell')].findIndex(cell => cell.matches('{}'))"
    active, here = place.format(".jp-mod-active"), page.evaluate(place.format(':has([aria-label="Your order"])'))
    for keys, moved in ((["ArrowUp"], -1), (["Shift+Enter"], 1), (["Escape", "ArrowUp"], -1)):
        for key in keys:  # they are the notebook's again: after a guess, and where the form has the focus
            page.keyboard.press(key)
        page.wait_for_function(f"{active} === {here + moved}")
        order.get_by_role("button", name="Move down: a").focus()

    (kept,) = lab.checkout.glob("exercises/**/progress.json")
    found = json.loads(kept.read_text())["predictions"]
    assert {name: one["last"] for name, one in found.items()} == {
        "03.bytes": "8 MB",
        "03.count": 1200,
        "03.order": ["b", "c", "a"],
    }
    for theme in ("light", "dark"):
        choose_theme(page, theme)
        assert page.evaluate(WEAK) == []
        notebook.picture(tmp_path / f"{theme}.png")


# --- a whole lesson, with engines -----------------------------------------------------------------------

CURVE = 0x0B, 0x6E, 0x99  # the first colour of workbench.course.figures
RANKS = "my/exercises/ranks.ipynb"
START = "from workbench import cluster\n\nengines = cluster.up(n=2)"
HELLO = '%%px\nimport workbench as hvd\n\nhvd.init()\nprint(f"I am rank {hvd.rank()} of {hvd.size()}")'
OWN_CELL = """\
%%px
import numpy as np
import workbench as hvd

hvd.init()
print("ranks add up to", hvd.allreduce(np.array([hvd.rank() + 1]), op=hvd.Sum))"""


@pytest.mark.parallel
@pytest.mark.thorough
def test_first_lesson_in_the_browser(lab: Lab, notebook: Notebook) -> None:
    """The lesson runs to its end by "Run All Cells", without a word of complaint, and its results can be seen."""
    n = len(notebook.cells())
    notebook.choose("Run", "Run All Cells")
    cells = notebook.wait(n, counted=n)
    outputs = notebook.page.locator(".jp-Notebook .jp-OutputArea-output")
    for line in ("all replicas hold the same bits: True", "engines    images/s  speed-up  efficiency"):
        assert line in visible(outputs.filter(has_text=line)).inner_text().splitlines()
    difference = "largest difference to the serial run: "
    (told,) = (line for each in cells for line in each["output"].splitlines() if line.startswith(difference))
    assert float(told.removeprefix(difference)) < 1e-12
    import matplotlib.image
    import numpy as np

    figures = notebook.page.locator(".jp-Notebook .jp-OutputArea-output[data-mime-type='image/svg+xml'] img")
    curves = []  # pictures with a curve in its colour: height and width
    for i in range(figures.count()):
        shot = visible(figures.nth(i)).screenshot()
        pixels = np.rint(255 * matplotlib.image.imread(io.BytesIO(shot))[..., :3])
        if (np.abs(pixels - np.array(CURVE)).max(axis=-1) < 8).sum() > 500:
            curves.append(pixels.shape[:2])
    assert len(curves) >= 2
    assert all(min(shape) > 200 for shape in curves), curves


@pytest.fixture
def ranks(lab: Lab) -> None:
    """A notebook that starts engines."""
    cells = [nbformat.v4.new_code_cell(text) for text in (START, HELLO)]
    kernel = {"name": "python3", "display_name": "Python 3 (ipykernel)", "language": "python"}
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), lab.checkout / RANKS)


@pytest.mark.parallel
@pytest.mark.usefixtures("ranks")
@pytest.mark.parametrize("notebook", [RANKS], indirect=True)
def test_engines_in_the_browser(lab: Lab, notebook: Notebook, tmp_path: Path) -> None:
    """Cells run on engines by "Run All Cells", without a word of complaint.

    Then a learner starts engines again, types a ``%%px`` cell, and shuts JupyterLab down without stopping the engines:
    nothing is left.
    """
    assert {(each["prompt"], each["output"]) for each in notebook.cells()} == {("[ ]:", "")}
    notebook.choose("Run", "Run All Cells")
    cells = notebook.wait(2, counted=2)
    assert [each["prompt"] for each in cells] == ["[1]:", "[2]:"]
    outputs = notebook.page.locator(".jp-Notebook .jp-OutputArea-output")
    for line in ("I am rank 0 of 2", "I am rank 1 of 2"):
        assert line in visible(outputs.filter(has_text=line)).inner_text().splitlines()

    notebook.page.locator(".jp-CodeCell .cm-content").first.click()
    notebook.page.keyboard.press("Shift+Enter")  # the start cell again
    notebook.wait(2, counted=3)
    notebook.page.keyboard.press("a")  # a new cell above the selected one
    notebook.page.keyboard.press("Enter")
    notebook.type(OWN_CELL)
    notebook.page.keyboard.press("Shift+Enter")
    cells = notebook.wait(3, counted=4)
    assert cells[1]["output"].count("ranks add up to [3]") == 1  # of both ranks, for it is equal
    notebook.page.locator("#jp-main-statusbar", has_text="2 ranks: idle").wait_for()
    visible(outputs.filter(has_text="ranks add up to [3]"))
    notebook.picture(tmp_path / "ranks.png")

    assert len(lab.processes()) > 10
    notebook.choose("File", "Shut Down")
    notebook.page.locator(".jp-Dialog").get_by_role("button", name="Shut Down").click()
    assert not lab.left()
    assert lab.process.wait(10) == 0
