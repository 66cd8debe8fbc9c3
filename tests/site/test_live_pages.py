"""Pages whose cells run in the page: real Python as WebAssembly in a real browser, from the site's own files."""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from drawn_programs import PROGRAMS
from right_answers import RING
from wrong_answers import FOLDER, as_a_cell

from workbench.course.browser.session import Session
from workbench.course.tasks import names, task

pytestmark = [pytest.mark.course, pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

EXERCISES = "exercises/03_ring_allreduce"
NAME = "03.ring_allreduce"
TORCH = {"10.convert", "13.capstone"}  # they need PyTorch, and say so in the page
TORCH |= {name for name in names() if "24" <= name[:2] <= "27" and task(name).asks_cause}
OTHER_WORDS = {"draws_lots", "never_seeds", "no_seed_at_all"}  # they draw lots
IN_PYTHON_3_12 = ("max() iterable argument is empty", "max() arg is an empty sequence")
OTHER_WORDS |= {"own_gradient_first"}  # how many sums are rounded otherwise differs from processor to processor
JUDGE = """
import json, warnings
from workbench.course.judging.judge import judge
from workbench.course.tasks import task
def tell(name, kind, answer):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stages = [(one.name, one.passed, one.text) for one in judge(task(name), answer, None)]
    print(json.dumps([name, kind, answer.__name__, stages]))
"""
BLANKS = """
import numpy as np
def blank(name):
    space = {"np": np, "exercise": lambda name: lambda function: function}
    exec(compile(task(name).cell(solved=False), f"<{name}>", "exec"), space)
    return space[task(name).short]
"""
OF_02, OF_03 = ([name for name in names() if name.startswith(f"{lesson}.")] for lesson in ("02", "03"))
VERSION = "fetch('../_static/live/runtime/files.json').then(each => each.json()).then(each => each.version)"
HVD = """
import time
import numpy as np
from workbench.course.judging.rank_threads import on_ranks

def told(function, *inputs):
    try:
        return repr(on_ranks(function, [(1.0,)] * 3))
    except Exception as error:
        return f"{type(error).__name__}: {error}"

def adds(hvd, x):
    return [float(hvd.allreduce(x * i, op=hvd.Sum)) for i in range(5)]

def idle(hvd, x):
    if hvd.rank() != 1:
        return hvd.allreduce(x, name="a")

def shapes(hvd, x):
    return hvd.allreduce(np.full(hvd.rank() + 1, x), name="a")

def order(hvd, x):
    first, second = "ab" if hvd.rank() else "ba"
    return hvd.allreduce(x, name=first) + hvd.allreduce(x, name=second)

def raises(hvd, x):
    if hvd.rank() == 1:
        raise ValueError("mine")
    return hvd.allreduce(x, name="a")

def late(hvd, x):
    if hvd.rank() == 1:
        time.sleep(0.3)
    return hvd.allreduce(x, name="a")

def looks(hvd, x):
    handle = hvd.allreduce_async(x, name="a")
    while not hvd.poll(handle):
        pass
    return hvd.synchronize(handle)

def catches(hvd, x):
    try:
        return idle(hvd, x)
    except Exception:
        return x

for function in (adds, idle, shapes, order, raises, late, looks, catches):
    print(function.__name__, told(function))
"""
THREADS = """
import queue, select, socket, threading, time
from concurrent.futures import ThreadPoolExecutor

before, found = threading.active_count(), []
def note(*what):
    found.append(what)
    print(*what)

lock, own = threading.Lock(), threading.local()
own.x = "main"
with lock:
    thread = threading.Thread(target=lambda: note("alone", hasattr(own, "x"), lock.acquire(timeout=0.05)))
    thread.start()
    thread.join()
note(own.x, lock.acquire(timeout=0.05), lock.acquire(blocking=False))
note(thread.is_alive(), threading.active_count() - before)
lock.release()
try:
    lock.release()
except RuntimeError as error:
    note(error)

condition, barrier, results = threading.Condition(), threading.Barrier(3), queue.SimpleQueue()
def worker(i):
    barrier.wait()
    with condition:
        note("waits", condition.wait_for(lambda: len(found) < 0, timeout=0.1 + i / 10))
    results.put(i)
threads = [threading.Thread(target=worker, args=(i,)) for i in range(3)]
for thread in threads:
    thread.start()
note([results.get(timeout=5) for _ in range(3)])
try:
    results.get(timeout=0.01)
except queue.Empty:
    note("empty")
for thread in threads:
    thread.join()

timer = threading.Timer(0.05, note, ["late"])
timer.start()
note(threading.Event().wait(0.2))
with ThreadPoolExecutor(2) as pool:
    note(list(pool.map(lambda x: x * x, range(5))))
    future = pool.submit(lambda: 1 / 0)
    note(repr(future.exception()))

here, there = socket.socketpair()
poller = select.poll()
poller.register(there, select.POLLIN)
def speaks():
    time.sleep(0.05)
    here.send(b"hello")
thread = threading.Thread(target=speaks)
thread.start()
note(poller.poll(0), len(poller.poll(5000)), there.recv(100), poller.poll(10))
here.close()
note(there.recv(100))
there.close()
thread.join()

def spins():
    while not found_all:
        pass
found_all = []
thread = threading.Thread(target=spins)
thread.start()
time.sleep(0.01)
found_all.append(1)
thread.join()
note(threading.active_count() - before)
"""


@pytest.fixture(autouse=True)
def live(site: Path) -> None:
    """These need a site that was built with Pyodide."""
    faulthandler.cancel_dump_traceback_later()  # tests of a minute; Python may crash in a dump while ranks are threads
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
def opened(visit: Callable[..., Any]) -> Callable[[str], Live]:
    """Opens a page and starts its Python."""
    return lambda name: Live(visit().open(name))


def test_a_page_through_everything(opened: Callable[[str], Live], tmp_path: Path) -> None:
    """A wrong answer gets its cause, a right one passes; text and progress outlive a reload, and can be taken away."""
    live = opened(EXERCISES)
    cell = live.write(f"Exercise {NAME}", RING.replace("(rank - step - 1)", "(rank - step - 2)"))
    cell.get_by_role("button", name="Check").click()
    cell.locator(".wb-live-out", has_text="✗").wait_for()
    live.ended()
    cell.get_by_role("button", name="Show").click()
    cell.locator(".wb-live-html svg").get_by_text("chunks[into] = chunks[into] + got").first.wait_for(state="attached")
    live.ended()
    cell = live.write(f"Exercise {NAME}", RING)
    cell.get_by_role("button", name="Check").click()
    cell.locator(".wb-live-out", has_text="real ranks").wait_for()
    live.ended()
    assert "✗" not in cell.locator(".wb-live-out").inner_text()
    cell.get_by_role("button", name="Show").click()
    cell.locator(".wb-live-html svg").wait_for()
    live.ended()

    with live.page.expect_download() as got:
        live.page.get_by_role("button", name="Download my notebook").click()
    got.value.save_as(tmp_path / "mine.ipynb")
    mine = json.loads((tmp_path / "mine.ipynb").read_text(encoding="utf-8"))
    assert RING.strip() in ["".join(each["source"]).strip() for each in mine["cells"]]
    with live.page.expect_download() as got:
        live.page.get_by_role("button", name="Download my progress").click()
    got.value.save_as(tmp_path / "progress.json")
    assert json.loads((tmp_path / "progress.json").read_text(encoding="utf-8"))[NAME]["passed"]

    # What ranks and threads do in a page is what they do here; whatever a cell does, the next one is right.
    seeds = f"for seed in {random.Random(7).sample(range(1000), 3)}:\n    print(told(seed))\n"
    for text in (PROGRAMS + seeds, THREADS, HVD):
        assert live.run(text) == here(text)
    assert live.run("x = 1\nx / 0") == "cell 1, line 2: x / 0\nZeroDivisionError: division by zero"
    assert "PyTorch is not there in a browser" in live.run("import torch\ntorch.ones(3)")
    cell = live.write("Cell 1", "while True:\n    pass")
    cell.get_by_role("button", name="Run").click()
    cell.get_by_text("still running").wait_for()
    live.page.get_by_role("button", name="Stop").click()
    cell.get_by_text("your text is kept").wait_for()
    assert live.run(f"from workbench.course.exercise import BOARD\nBOARD.entry('{NAME}').attempts") == "2"
    live.page.reload()
    assert "chunks[into] + got" in live.page.get_by_label(f"Exercise {NAME}", exact=True).inner_text()


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


@pytest.mark.thorough
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
    nobody_is_kept_out(page)


@pytest.mark.thorough
def test_browsers_that_lack_something(visit: Callable[..., Any]) -> None:
    """Without switching of stacks the page says so; without storage it runs, and says so, too; an old cache goes."""
    for lacks in ("window.WebAssembly", "WebAssembly.Suspending"):
        page = visit().page
        page.add_init_script(f"delete {lacks}")
        page.goto(f"{visit().address}/{EXERCISES}.html")
        assert page.get_by_text("This browser has no WebAssembly that can switch stacks").is_visible()
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
    assert window.page.evaluate("caches.keys()") == [f"workbench-live-{window.page.evaluate(VERSION)}"]


@pytest.mark.thorough
def test_whatever_a_cell_does_a_sentence_says_so(opened: Callable[[str], Live]) -> None:
    """A flood is cut, memory has an end, Python can be stopped while it starts; the next cell is right."""
    live = opened(EXERCISES)
    assert "line 1: x = = 2\nSyntaxError" in live.run("x = = 2")
    assert "recursion" in live.run("def f():\n    f()\nf()").lower()
    live.ready()
    assert "MemoryError" in live.run("kept = [bytearray(1 << 30) for _ in range(4)]")
    text = live.run("for i in range(200_000):\n    print('line', i)")
    assert text.startswith("line 0\nline 1\n")
    assert "the rest is not shown" in text
    assert len(text) < 1_100_000
    cell = live.write("Cell 1", "while True:\n    pass")
    cell.get_by_role("button", name="Run").click()
    live.page.get_by_role("button", name="Stop").click()
    cell.get_by_text("your text is kept").wait_for()
    cell.get_by_role("button", name="Run").click()
    live.page.get_by_role("button", name="Stop").click()  # while Python starts again
    live.ended()
    assert live.run("1 + 1") == "2"


@pytest.mark.thorough
def test_on_isolated_pages_stop_is_ctrl_c(visit: Callable[..., Any], served: str) -> None:
    """What cells had defined is still there; a loop that catches every Ctrl-C is ended with its worker."""
    live = Live(visit(address=served).open(EXERCISES))
    deaf = "while True:\n    try:\n        while True:\n            pass\n    except BaseException:\n        pass"
    ranks = "def loops():\n    while True:\n        pass\nimport workbench\nworkbench.run_threads(2, loops)"
    for loop, after in (("while True:\n    pass", "7"), (deaf, "'gone'"), (ranks, "")):
        live.run("x = 7")
        cell = live.write("Cell 1", loop)
        cell.get_by_role("button", name="Run").click()
        cell.get_by_text("still running").wait_for()
        live.page.get_by_role("button", name="Stop").click()
        cell.get_by_text("Stopped.").wait_for()
        live.ended()
        # On a busy machine threads may not hear it in time, and then the worker is ended.
        assert live.run("globals().get('x', 'gone')") in ([after] if after else ["7", "'gone'"])


@pytest.mark.thorough
def test_a_loop_without_end_gets_its_verdict_in_a_page(opened: Callable[[str], Live]) -> None:
    """On ranks that are threads, and in a simulated one; the next cell is right."""
    live = opened(EXERCISES)
    loops = "def loops(hvd):\n    while hvd.rank() == 1:\n        pass\n    hvd.barrier()\n"
    loops += "from workbench.course.judging.rank_threads import on_ranks\n"
    assert "Rank 1 did not end within 6 s. Is there a loop whose condition never changes?" in live.run(
        f"{loops}on_ranks(loops, [()] * 2)"
    )
    text = "from workbench.course.simulator import simulate\n"
    text += "def loops(comm):\n    while comm.rank == 1:\n        pass\n"
    assert "DeadlineError" in live.run(f"{text}simulate(2, loops, deadline_s=1.0)")
    assert live.run(f"{text}simulate(2, lambda comm: comm.allreduce(comm.rank)).results") == "[1, 1]"


def cells(lesson: str) -> Iterator[str]:
    """Cells that judge every answer of a lesson that is known, and print a line of JSON for each."""
    some = [name for name in names() if name[:2] == lesson and name not in TORCH]
    for kind, found in (("wrong", "[one for at, one, _ in wrong if at == name]"), ("right", "RIGHT.get(name, [])")):
        if some and (FOLDER.parent / kind / f"{kind[0]}{lesson}.py").exists():
            loop = f"for name in {some}:\n    for answer in {found}:\n        tell(name, {kind!r}, answer)"
            yield f"{as_a_cell(kind, lesson)}{JUDGE}{loop}"
    if some:
        yield f"{JUDGE}{BLANKS}for name in {some}:\n    tell(name, 'blank', blank(name))\n    " + (
            "tell(name, 'official', task(name).reference)"
        )


def judged_the_same(live: Live, lessons: list[str]) -> dict[str, int]:
    """By exercise, how many answers were judged, each with the same stages and words as here."""
    found, other = dict[str, int](), list[Any]()
    for cell in [cell for lesson in lessons for cell in cells(lesson)]:
        texts = [text.replace(*IN_PYTHON_3_12) for text in (live.run(cell), here(cell))]
        told, wanted = ([json.loads(line) for line in text.splitlines()] for text in texts)
        for (name, kind, answer, stages), expected in zip(told, wanted, strict=True):
            found[name] = found.get(name, 0) + 1
            if answer in OTHER_WORDS:
                stages, expected[3] = ([stage[:2] for stage in each] for each in (stages, expected[3]))
            if stages != expected[3]:
                other.append(([name, kind, answer], stages, expected[3]))
    assert other == []
    return found


@pytest.mark.thorough
@pytest.mark.timeout(1200)
def test_all_answers_get_the_same_verdicts(opened: Callable[[str], Live]) -> None:
    """Of each exercise that needs no PyTorch."""
    found = judged_the_same(opened(EXERCISES), sorted({name[:2] for name in names()}))
    assert set(found) == set(names()) - TORCH
    assert sum(found.values()) > 500
