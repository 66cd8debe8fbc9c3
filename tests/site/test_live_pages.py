"""Pages whose cells run in the page: real Python as WebAssembly in a real browser, from the site's own files."""

from __future__ import annotations

import importlib.util
import json
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from workbench.course.browser.session import Session
from workbench.course.tasks import names

pytestmark = [pytest.mark.course, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

EXERCISES = "exercises/03_ring_allreduce"
NAME = "03.ring_allreduce"
# What runs threads of its own, or torch; each says so in the page.
ELSEWHERE = {
    *("10.convert", "11.epoch", "11.gradients", "11.restore", "11.start", "11.two_heads", "11.validate", "13.capstone"),
    *("14.six_steps", "16.schedule", "21.late", "21.order"),
}
VERSION = "fetch('../_static/live/runtime/files.json').then(each => each.json()).then(each => each.version)"
ANSWER = """@exercise("03.ring_allreduce")
def ring_allreduce(comm, x):
    n, rank = comm.size, comm.rank
    chunks = np.array_split(x.copy(), n)
    for step in range(2 * (n - 1)):
        out, into = (rank - step) % n, (rank - step - 1) % n
        got = comm.sendrecv(chunks[out], dest=(rank + 1) % n, source=(rank - 1) % n)
        chunks[into] = chunks[into] + got if step < n - 1 else got
    return np.concatenate(chunks)
"""
PROGRAMS = """
import random
import numpy as np
from workbench.course.simulator import Kill, simulate

def program(seed, n):
    def rank(comm):
        own, common, found = random.Random(f"{seed} {comm.rank}"), random.Random(seed), []
        right, left = (comm.rank + 1) % n, (comm.rank - 1) % n
        for i in range(10):
            kind = common.randrange(6)
            if kind == 0:
                found.append(comm.allreduce(comm.rank + i))
            elif kind == 1:
                comm.compute(own.random() * 1e-4)
            elif kind == 2:
                found.append(comm.sendrecv(np.ones(common.randrange(5000)), dest=right, source=left).size)
            elif kind == 3:
                receives, sends = comm.irecv(source=left), comm.isend(i, dest=right)
                while not receives.test()[0]:
                    comm.compute(1e-6)
                sends.wait()
            elif kind == 4:
                found.append(comm.bcast(i if comm.rank == 0 else None, root=0))
            elif comm.rank == 0:
                found.append(sorted(comm.recv() for _ in range(n - 1)))
            else:
                comm.send(comm.rank, dest=0)
        return found, comm.now
    return rank

def told(seed):
    n = random.Random(seed).choice([1, 2, 3, 4, 8])
    kills = [Kill(rank=seed % n, at_s=1e-4)] if seed % 5 == 0 and n > 1 else []
    try:
        run = simulate(n, program(seed, n), kills=kills)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return repr((run.results, run.clocks, run.messages, run.computed, run.died))
"""


@pytest.fixture(autouse=True)
def live(site: Path) -> None:
    """These need a site that was built with Pyodide."""
    if not (site / "_static" / "live" / "runtime").exists():
        pytest.skip("no Pyodide in the cache: .ci/pyodide brings it (make setup-tests)")


class Live:
    """A page whose Python has started."""

    def __init__(self, page: Any) -> None:
        self.page = page
        page.set_default_timeout(60_000)  # Python in a browser on a busy machine
        self.begin()

    def begin(self) -> None:
        """Press the button, and wait."""
        self.page.get_by_role("button", name="Run this page in your browser").click()
        self.ready()

    def ready(self) -> None:
        """Wait until Python is."""
        self.page.locator(".wb-live-said", has_text="Python is ready").wait_for(timeout=60_000)

    def cell(self, label: str) -> Any:
        """The cell whose editor has this name."""
        return self.page.locator(".cell", has=self.page.get_by_label(label, exact=True))

    def write(self, label: str, text: str) -> Any:
        """Put a text into an editor, in place of what is there."""
        editor = self.page.get_by_label(label, exact=True)
        editor.click()
        self.page.keyboard.press("ControlOrMeta+a")
        self.page.keyboard.insert_text(text)
        return self.cell(label)

    def run(self, text: str, label: str = "Cell 1") -> str:
        """Run a text in a cell; what it has printed when it has ended."""
        cell = self.write(label, text)
        cell.get_by_role("button", name="Run").click()
        self.ended()
        return str(cell.locator(".wb-live-out").inner_text()).strip()

    def ended(self) -> None:
        """Wait until nothing runs."""
        stop = self.page.get_by_role("button", name="Stop")
        stop.wait_for(state="hidden", timeout=120_000)


def here(text: str) -> str:
    """What a cell prints that runs in this process."""
    found: list[str] = []
    assert Session(lambda kind, text: found.append(text)).run(text), found
    return "".join(found).strip()


@pytest.fixture
def served(site: Path) -> Iterator[str]:
    """The address at which ``workbench site`` serves the pages."""
    command = [str(Path(sys.executable).with_name("workbench")), "site", "--serve", str(site)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        yield child.stdout.readline().split("/index.html")[0]
        child.send_signal(signal.SIGINT)


@pytest.fixture
def opened(visit: Callable[..., Any]) -> Callable[[str], Live]:
    """Opens a page and starts its Python."""
    return lambda name: Live(visit().open(name))


def test_an_exercise_is_judged_in_the_page(opened: Callable[[str], Live], tmp_path: Path) -> None:
    """A wrong answer gets its cause, a right one passes; text and progress outlive a reload, and can be taken away."""
    live = opened(EXERCISES)
    cell = live.write(f"Exercise {NAME}", ANSWER.replace("(rank - step - 1)", "(rank - step - 2)"))
    cell.get_by_role("button", name="Check").click()
    cell.locator(".wb-live-out", has_text="✗").wait_for()
    live.ended()
    cell.get_by_role("button", name="Show").click()
    cell.locator(".wb-live-html svg").get_by_text("chunks[into] = chunks[into] + got").first.wait_for(state="attached")
    live.ended()
    cell = live.write(f"Exercise {NAME}", ANSWER)
    cell.get_by_role("button", name="Check").click()
    cell.locator(".wb-live-out", has_text="real ranks").wait_for()
    live.ended()
    assert "✗" not in cell.locator(".wb-live-out").inner_text()
    cell.get_by_role("button", name="Show").click()
    cell.locator(".wb-live-html svg").wait_for()
    live.ended()
    nobody_is_kept_out(live.page)

    live.page.reload()
    live.begin()
    assert "chunks[into] + got" in live.page.get_by_label(f"Exercise {NAME}", exact=True).inner_text()
    with live.page.expect_download() as got:
        live.page.get_by_role("button", name="Download my notebook").click()
    got.value.save_as(tmp_path / "mine.ipynb")
    mine = json.loads((tmp_path / "mine.ipynb").read_text(encoding="utf-8"))
    assert ANSWER.strip() in ["".join(each["source"]).strip() for each in mine["cells"]]
    with live.page.expect_download() as got:
        live.page.get_by_role("button", name="Download my progress").click()
    got.value.save_as(tmp_path / "progress.json")
    assert json.loads((tmp_path / "progress.json").read_text(encoding="utf-8"))[NAME]["passed"]
    assert live.run(f"from workbench.course.exercise import BOARD\nBOARD.entry('{NAME}').attempts") == "2"


def nobody_is_kept_out(page: Any) -> None:
    """axe-core finds nothing serious in what runs, light and dark."""
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None or found.origin is None:
        return
    page.evaluate((Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8"))
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.wait_for_timeout(300)  # colours change slowly
        seen = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
        wrong = [each for each in seen if each["impact"] in ("serious", "critical")]
        assert [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in wrong] == []


def test_by_keyboard_alone(visit: Callable[..., Any]) -> None:
    """The button, an editor, Shift+Enter, and out of the editor again by Escape and Tab."""
    page = visit().open(EXERCISES)
    page.get_by_role("button", name="Run this page in your browser").press("Enter")
    page.locator(".wb-live-said", has_text="Python is ready").wait_for(timeout=60_000)
    editor = page.get_by_label("Cell 1", exact=True)
    editor.focus()
    for key in ("ControlOrMeta+a", "Backspace", "6", "*", "7", "Shift+Enter"):
        page.keyboard.press(key)
    page.locator(".wb-live-text", has_text="42").wait_for()
    page.keyboard.press("Escape")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Run"


def test_browsers_that_lack_something(visit: Callable[..., Any]) -> None:
    """Without WebAssembly the page says so; without storage it runs, and says what that means; an old cache goes."""
    page = visit().page
    page.add_init_script("delete window.WebAssembly")
    page.goto(f"{visit().address}/{EXERCISES}.html")
    assert page.get_by_text("This browser has no WebAssembly").is_visible()
    assert not page.get_by_role("button", name="Run this page in your browser").is_visible()

    window = visit()
    window.page.add_init_script(
        "Object.defineProperty(window, 'localStorage', {get() { throw new DOMException('no', 'SecurityError') }})"
    )
    window.open("notebooks/02_collectives_by_hand")
    window.page.evaluate("caches.open('workbench-live-old').then(each => each.put('/x', new Response('y')))")
    live = Live(window.page)
    assert "This browser keeps nothing" in window.page.locator(".wb-live-said").inner_text()
    assert live.run("6 * 7") == "42"
    assert {*window.wrong} <= {"error: no"}  # the theme's own scripts ask for it without care
    window.wrong.clear()
    assert window.page.evaluate("caches.keys()") == [
        f"workbench-live-{window.page.evaluate(VERSION)}",
    ]


def test_whatever_a_cell_does_a_sentence_says_so(opened: Callable[[str], Live]) -> None:
    """Errors name the line of the cell, a flood is cut, a loop without end can be stopped; the next cell is right."""
    live = opened(EXERCISES)
    assert live.run("x = 1\nx / 0") == "cell 1, line 2: x / 0\nZeroDivisionError: division by zero"
    assert "line 1: x = = 2\nSyntaxError" in live.run("x = = 2")
    assert "PyTorch is not there in a browser" in live.run("import torch\ntorch.ones(3)")
    assert "recursion" in live.run("def f():\n    f()\nf()").lower()
    live.ready()
    assert "MemoryError" in live.run("kept = [bytearray(1 << 30) for _ in range(4)]")
    text = live.run("for i in range(200_000):\n    print('line', i)")
    assert text.startswith("line 0\nline 1\n")
    assert "the rest is not shown" in text
    assert len(text) < 1_100_000
    cell = live.write("Cell 1", "while True:\n    pass")
    cell.get_by_role("button", name="Run").click()
    cell.get_by_text("still running").wait_for()
    live.page.get_by_role("button", name="Stop").click()
    cell.get_by_text("your text is kept").wait_for()
    cell.get_by_role("button", name="Run").click()
    live.page.get_by_role("button", name="Stop").click()  # while Python starts again
    live.ended()
    assert live.run("1 + 1") == "2"


def test_on_isolated_pages_stop_is_ctrl_c(visit: Callable[..., Any], served: str) -> None:
    """What cells had defined is still there; a loop that catches every Ctrl-C is ended with its worker."""
    live = Live(visit(address=served).open(EXERCISES))
    deaf = "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass"
    for loop, after in (("while True:\n    pass", "7"), (deaf, "'gone'")):
        live.run("x = 7")
        cell = live.write("Cell 1", loop)
        cell.get_by_role("button", name="Run").click()
        cell.get_by_text("still running").wait_for()
        live.page.get_by_role("button", name="Stop").click()
        cell.get_by_text("Stopped.").wait_for()
        live.ended()
        assert live.run("globals().get('x', 'gone')") == after


def test_ranks_do_in_a_page_what_they_do_here(opened: Callable[[str], Live]) -> None:
    """The same results, messages and virtual times for random programs, deaths and deadlocks among them."""
    text = PROGRAMS + f"for seed in {random.Random(7).sample(range(1000), 25)}:\n    print(told(seed))\n"
    assert opened(EXERCISES).run(text) == here(text)


@pytest.mark.thorough
def test_64_ranks(opened: Callable[[str], Live]) -> None:
    """As many messages as here."""
    text = "from workbench.course.simulator import simulate\ndef ring(comm):\n    return sum(comm.sendrecv(i,"
    text += "dest=(comm.rank + 1) % comm.size, source=(comm.rank - 1) % comm.size) for i in range(126))\n"
    text += "run = simulate(64, ring)\nlen(run.messages), run.time_s"
    assert opened(EXERCISES).run(text) == here(text)


@pytest.mark.thorough
def test_reference_solutions_get_the_same_verdicts(opened: Callable[[str], Live]) -> None:
    """Of every exercise that needs neither threads nor torch."""
    some = [name for name in names() if name not in ELSEWHERE]
    text = "from workbench.course.judging.judge import judge\nfrom workbench.course.tasks import task\n"
    text += f"for one in map(task, {some}):\n"
    text += "    print(one.name, [stage.passed for stage in judge(one, one.reference, None)])"
    assert opened(EXERCISES).run(text) == here(text)
    assert len(some) >= 48
