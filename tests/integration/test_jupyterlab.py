"""The first lesson in JupyterLab as ``make lab`` starts it, in a real browser, with its menus and the keyboard."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib.image
import nbformat
import numpy as np
import psutil
import pytest

from workbench.course.build import ROOT

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not shutil.which("make"), reason="JupyterLab is started by make, and there is none"),
]

LESSON = "notebooks/00_quickstart.ipynb"
MARK = "WORKBENCH_TEST_LAB"  # in the environment of JupyterLab and of every process that comes from it
# No GPU, nothing in the background, and no sandbox, which root cannot have. It meets only pages of this test.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
# 1. Cells out of sight stay in the page, where the test reads them. 2. No question about news, no look for updates.
SETTINGS: dict[str, dict[str, object]] = {
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
READ_CELLS = """
() => [...document.querySelectorAll('.jp-Notebook .jp-CodeCell')].map(cell => {
    const text = selector => [...cell.querySelectorAll(selector)].map(each => each.innerText).join('')
    return {
        prompt: text('.jp-InputPrompt'),
        output: text('.jp-OutputArea-output'),
        complaint: text('[data-mime-type$=".error"], [data-mime-type$=".stderr"]'),
    }
})
"""
CURVE = np.array([0x0B, 0x6E, 0x99])  # the first colour of workbench.course.figures
OWN_CELL = """\
%%px
import numpy as np
import workbench as hvd

hvd.init()
print("ranks add up to", hvd.allreduce(np.array([hvd.rank() + 1]), op=hvd.Sum))"""


class Lab:
    """``make lab`` in a folder that looks like a checkout: its Makefile, the environment in use, one notebook.

    Attributes:
        port: the free one that JupyterLab found.
        token: the one that it drew.
    """

    def __init__(self, folder: Path) -> None:
        self._mark, self._log = uuid.uuid4().hex, folder / "lab.log"
        checkout = folder / "checkout"
        for each in ("notebooks", ".ci"):
            (checkout / each).mkdir(parents=True)
        shutil.copy(ROOT / "Makefile", checkout)
        (checkout / ".ci" / "setup").write_text("#!/bin/sh\n")
        (checkout / ".ci" / "setup").chmod(0o755)
        (checkout / ".venv").symlink_to(sys.prefix)
        nbformat.write(_without_outputs(ROOT / LESSON), checkout / LESSON)
        for name, values in SETTINGS.items():
            path = folder / "config" / "lab" / "user-settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(values))
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                ["make", "lab", "ARGS=--no-browser"],
                cwd=checkout,
                env=_environment(folder) | {MARK: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._wait(lambda: any((folder / "runtime").glob("jpserver-*.json")))
        (description,) = (folder / "runtime").glob("jpserver-*.json")
        self._wait(lambda: description.read_text().rstrip().endswith("}"))
        said = json.loads(description.read_text())
        self.port, self.token = said["port"], said["token"]

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    def processes(self) -> list[psutil.Process]:
        """What carries the mark and lives."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get(MARK) == self._mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def left(self, timeout_s: float = 20.0) -> list[str]:
        """What still runs after that time; nothing, as soon as nothing does."""
        deadline = time.monotonic() + timeout_s
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.1)
        return [str(each) for each in left]

    def stop(self) -> None:
        """End what a failing test has left: first all but wardens, which then take the clusters' files away."""
        for spared in ("warden.py", ""):
            for process in self.processes():
                with contextlib.suppress(psutil.Error):
                    if not spared or not any(word.endswith(spared) for word in process.cmdline()):
                        process.kill()
            self.left(10.0)
        self.process.wait(10)

    def _wait(self, done: Callable[[], bool], timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not done():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                pytest.fail(f"JupyterLab did not start:\n{self._log.read_text()[-4000:]}")
            time.sleep(0.05)


def _without_outputs(notebook: Path) -> Any:
    found = nbformat.read(notebook, as_version=4)
    for cell in found.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return found


def _environment(folder: Path) -> dict[str, str]:
    """The user's, less what is said to Jupyter and to another make; what is written stays in ``folder``."""
    ours = ("JUPYTER", "IPYTHON", "IPP_", "WORKBENCH_", "XDG_", "MAKE", "MFLAGS")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
    places = {f"JUPYTER_{each.upper()}_DIR": each for each in ("config", "data", "runtime")}
    places |= {f"XDG_{each.upper()}_HOME": f"xdg-{each}" for each in ("config", "data", "cache", "state")}
    return kept | {name: str(folder / place) for name, place in ({"IPYTHONDIR": "ipython"} | places).items()}


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    """A JupyterLab of its own, of which nothing is left."""
    lab = Lab(tmp_path)
    yield lab
    lab.stop()


class Notebook:
    """The lesson in a page, used by mouse and keyboard.

    Args:
        page: an empty page of playwright's.
    """

    def __init__(self, page: Any, lab: Lab) -> None:
        self.page = page
        page.set_default_timeout(30_000)
        page.goto(f"{lab.url('lab/tree/' + LESSON)}?token={lab.token}")
        page.locator(".jp-Notebook .jp-Cell").first.wait_for()
        page.locator("#jp-main-statusbar", has_text="| Idle").wait_for()

    def cells(self) -> list[dict[str, str]]:
        """The code cells: the ``prompt`` beside them, their ``output``, and in it each ``complaint``."""
        found: list[dict[str, str]] = self.page.evaluate(READ_CELLS)
        return found

    def choose(self, menu: str, entry: str) -> None:
        self.page.get_by_role("menuitem", name=menu, exact=True).click()
        self.page.get_by_role("menuitem", name=entry, exact=True).click()

    def wait(self, cells: int, counted: int, timeout_s: float = 120.0) -> list[dict[str, str]]:
        """Wait until the last of ``cells`` code cells is done and the kernel has counted so far; then return them."""
        deadline = time.monotonic() + timeout_s
        while True:
            found = self.cells()
            complaints = [each["complaint"] for each in found if each["complaint"]]
            assert not complaints, complaints[0]
            prompts = [each["prompt"] for each in found]
            if len(found) == cells and f"[{counted}]:" in prompts and "[*]:" not in prompts and self._idle():
                return found
            assert time.monotonic() < deadline, prompts
            time.sleep(0.2)

    def _idle(self) -> bool:
        return "| Idle" in self.page.locator("#jp-main-statusbar").inner_text()

    def type(self, text: str) -> None:
        """Type into the cell that is being edited, and look whether it stands there: a busy page may lose a key."""
        lines = self.page.locator(".jp-Notebook .jp-mod-active .cm-line")
        for _ in range(5):
            self.page.keyboard.press("Control+a")
            self.page.keyboard.type(text)
            if lines.all_text_contents() == text.split("\n"):
                return
        pytest.fail(f"typed {text!r}, and in the page stands {lines.all_text_contents()}")

    def picture(self, path: Path) -> None:
        """The whole page at once, for who wants to see what a learner sees."""
        last = self.page.locator(".jp-Notebook .jp-Cell").last
        self.page.locator(".jp-Notebook .jp-WindowedPanel-outer").evaluate("each => each.scrollTop = 0")
        bottom = last.evaluate("each => each.getBoundingClientRect().bottom")
        self.page.set_viewport_size({"width": 1280, "height": round(bottom) + 60})
        self.page.screenshot(path=path)
        self.page.set_viewport_size({"width": 1280, "height": 900})


@pytest.fixture
def notebook(lab: Lab, tmp_path: Path, new_children: Callable[[], list[psutil.Process]]) -> Iterator[Notebook]:
    """The lesson in a browser of its own, of which nothing is left."""
    from playwright.sync_api import sync_playwright

    env = _environment(tmp_path) | {"HOME": str(tmp_path)}
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=FLAGS, env=env)
        notebook = Notebook(browser.new_page(viewport={"width": 1280, "height": 900}), lab)
        ours = set(new_children()) - set(lab.processes())
        yield notebook
        notebook.picture(tmp_path / "end.png")
        browser.close()
    assert not psutil.wait_procs(ours, timeout=10)[1]


def visible(spot: Any) -> Any:
    """The place in the page, scrolled into sight; nothing lies over it."""
    spot.click(trial=True)
    return spot


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
        assert status(lab.url(f"api/contents/{LESSON}{secret}")) == 403
        assert status(lab.url(f"api/kernels{secret}")) == 403
        assert status(lab.url(f"lab{secret}")) == 302  # to the page that asks for the token
    assert status(lab.url(f"api/contents/{LESSON}?token={lab.token}")) == 200


@pytest.mark.course
@pytest.mark.parallel
@pytest.mark.skipif(not BROWSER, reason="no chromium: .ci/system installs it where there is apt-get")
@pytest.mark.skipif(not importlib.util.find_spec("playwright"), reason="no playwright: pip install playwright")
def test_first_lesson_in_the_browser(lab: Lab, notebook: Notebook, tmp_path: Path) -> None:
    """The lesson runs to its end by "Run All Cells", without a word of complaint, and its results can be seen.

    Then a learner starts engines again, types a ``%%px`` cell, and shuts JupyterLab down without stopping the engines:
    nothing is left.
    """
    n = len(notebook.cells())
    assert {(each["prompt"], each["output"]) for each in notebook.cells()} == {("[ ]:", "")}
    notebook.choose("Run", "Run All Cells")
    cells = notebook.wait(n, counted=n)
    assert [each["prompt"] for each in cells] == [f"[{i}]:" for i in range(1, n + 1)]
    outputs = notebook.page.locator(".jp-Notebook .jp-OutputArea-output")
    for line in (
        "I am rank 0 of 2",
        "I am rank 1 of 2",
        "all replicas hold the same bits: True",
        "largest difference to the serial run below 1e-12: True",
        "engines    images/s  speed-up  efficiency",
    ):
        assert line in visible(outputs.filter(has_text=line)).inner_text().splitlines()
    figures = notebook.page.locator(".jp-Notebook .jp-OutputArea-output[data-mime-type='image/svg+xml'] img")
    assert figures.count() == 2
    for i in range(2):
        shot = visible(figures.nth(i)).screenshot()
        pixels = np.rint(255 * matplotlib.image.imread(io.BytesIO(shot))[..., :3])
        assert min(pixels.shape[:2]) > 200
        assert (np.abs(pixels - CURVE).max(axis=-1) < 8).sum() > 500

    notebook.page.locator(".jp-CodeCell .cm-content").first.click()
    notebook.page.keyboard.press("Shift+Enter")  # the start cell again
    notebook.wait(n, counted=n + 1)
    notebook.page.keyboard.press("a")  # a new cell above the selected one
    notebook.page.keyboard.press("Enter")
    notebook.type(OWN_CELL)
    notebook.page.keyboard.press("Shift+Enter")
    cells = notebook.wait(n + 1, counted=n + 2)
    assert cells[1]["output"] == "[stdout:0] \nranks add up to [3]\n[stdout:1] \nranks add up to [3]\n"
    visible(outputs.filter(has_text="ranks add up to [3]"))
    notebook.picture(tmp_path / "lesson.png")

    assert len(lab.processes()) > 10
    notebook.choose("File", "Shut Down")
    notebook.page.locator(".jp-Dialog").get_by_role("button", name="Shut Down").click()
    assert not lab.left()
    assert lab.process.wait(10) == 0
