"""JupyterLab as ``make lab`` starts it, and a notebook in a page of a real browser, for the tests in this folder."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nbformat
import psutil
import pytest

from workbench.course.build import ROOT

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
_MISSING = (
    "chromium: make setup-tests installs it where there is apt-get" if not BROWSER else "playwright: pip install it"
)
in_browser = pytest.mark.skipif(not (BROWSER and importlib.util.find_spec("playwright")), reason=f"no {_MISSING}")
needs_make = pytest.mark.skipif(not shutil.which("make"), reason="JupyterLab is started by make, and there is none")

QUICKSTART = "notebooks/00_quickstart.ipynb"
RING, RING_EXERCISES = "notebooks/03_ring_allreduce.ipynb", "exercises/03_ring_allreduce.ipynb"
MARK = "WORKBENCH_TEST_LAB"  # in the environment of JupyterLab and of every process that comes from it
LIGHTER = {"PYTHONPATH": str(Path(__file__).with_name("lighter"))}  # of what imports nbformat: a second of a core each
# No GPU, nothing in the background, and no sandbox, which root cannot have. It meets only pages of this test.
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"]
FLAGS += ["--disable-component-update", "--disable-sync"]
SETTINGS = {"notebook-extension/tracker": {"windowingMode": "none"}}  # cells out of sight stay in the page, to be read
READ_CELLS = """
() => [...document.querySelectorAll('.jp-Notebook .jp-CodeCell')].map(cell => {
    const text = selector => [...cell.querySelectorAll(selector)].map(each => each.innerText).join('')
    return {
        prompt: text('.jp-InputPrompt') || text('.jp-OutputPrompt'),  // of a folded cell that has run
        output: text('.jp-OutputArea-output'),
        complaint: text('[data-mime-type$=".error"], [data-mime-type$=".stderr"]'),
    }
})
"""


class Lab:
    """``make lab`` in a folder that looks like a checkout: its Makefile, the environment in use, some notebooks.

    Attributes:
        port: the free one that JupyterLab found.
        token: the one that it drew.
        runtime: the folder of its kernels' files and sockets.
        checkout: the folder that looks like one.
        log: what it has written.
    """

    def __init__(self, folder: Path) -> None:
        self._mark, self.log = uuid.uuid4().hex, folder / "lab.log"
        self.checkout = checkout = folder / "checkout"
        for each in ("notebooks", "exercises", ".ci", "workbench/cli"):
            (checkout / each).mkdir(parents=True)
        shutil.copy(ROOT / "Makefile", checkout)
        shutil.copy(ROOT / ".ci" / "lab", checkout / ".ci")
        shutil.copy(ROOT / "workbench" / "cli" / "lab.sh", checkout / "workbench" / "cli")
        (checkout / "workbench" / "cli" / "lab_config").symlink_to(ROOT / "workbench" / "cli" / "lab_config")
        (checkout / "workbench" / "labextensions").symlink_to(ROOT / "workbench" / "labextensions")
        (checkout / ".ci" / "setup").write_text("#!/bin/sh\n")
        (checkout / ".ci" / "setup").chmod(0o755)
        (checkout / ".venv").symlink_to(sys.prefix)
        for each in (QUICKSTART, RING, RING_EXERCISES):
            nbformat.write(_without_outputs(ROOT / each), checkout / each)
        for name, values in SETTINGS.items():
            path = folder / "config" / "lab" / "user-settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(values))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                ["make", "lab", "ARGS=--no-browser"],
                cwd=checkout,
                env=environment(folder) | {MARK: self._mark},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._wait(lambda: any((folder / "runtime").glob("jpserver-*.json")))
        self.runtime = folder / "runtime"
        (description,) = self.runtime.glob("jpserver-*.json")
        self._wait(lambda: description.read_text().rstrip().endswith("}"))
        said = json.loads(description.read_text())
        self.port, self.token = said["port"], said["token"]
        self._wait(self._listens)  # the description is written before

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}/{path}"

    def ask(self, method: str, path: str) -> Any:
        """The server's answer to one who knows the token."""
        asked = urllib.request.Request(self.url(path), method=method, headers={"Authorization": f"token {self.token}"})
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(asked, timeout=60) as answer:
            return json.loads(answer.read() or "null")

    def end_kernels(self) -> None:
        """Those of all notebooks, so that the next one counts its cells from 1."""
        if self.process.poll() is None:
            for session in self.ask("GET", "api/sessions"):
                self.ask("DELETE", f"api/sessions/{session['id']}")

    def _listens(self) -> bool:
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", self.port), 10.0):
            return True
        return False

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
        """End what a failing test has left: first all but watchdogs, which then take the clusters' files away."""
        for spared in ("watchdog.py", ""):
            for process in self.processes():
                with contextlib.suppress(psutil.Error):
                    if not spared or not any(word.endswith(spared) for word in process.cmdline()):
                        process.kill()
            self.left(10.0)
        self.process.wait(10)
        for short in Path("/tmp").glob("workbench-lab-*"):  # what a JupyterLab leaves that is killed
            if (short / "r").is_symlink() and (short / "r").readlink() == self.runtime:
                shutil.rmtree(short)

    def _wait(self, done: Callable[[], bool], timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not done():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                pytest.fail(f"JupyterLab did not start:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.05)


def _without_outputs(notebook: Path) -> Any:
    found = nbformat.read(notebook, as_version=4)
    for cell in found.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    return found


def environment(folder: Path) -> dict[str, str]:
    """The user's, less what is said to Jupyter and to another make; what is written stays in ``folder``."""
    ours = ("JUPYTER", "IPYTHON", "IPP_", "WORKBENCH_", "XDG_", "MAKE", "MFLAGS")
    kept = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
    places = {f"JUPYTER_{each.upper()}_DIR": each for each in ("config", "data", "runtime")}
    places |= {f"XDG_{each.upper()}_HOME": f"xdg-{each}" for each in ("config", "data", "cache", "state")}
    return kept | LIGHTER | {name: str(folder / place) for name, place in ({"IPYTHONDIR": "ipython"} | places).items()}


class Notebook:
    """A notebook in a page, used by mouse and keyboard.

    Args:
        page: an empty page of playwright's.
        path: of the notebook in the checkout.
    """

    def __init__(self, page: Any, lab: Lab, path: str) -> None:
        self.page = page
        page.set_default_timeout(30_000)
        page.goto(f"{lab.url('lab/tree/' + path)}{'&' if '?' in path else '?'}token={lab.token}")
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

    def run(self, cell: int, timeout_s: float = 60.0) -> str:
        """Run one code cell by Shift+Enter; return its output."""
        counted = max([int(each["prompt"][1:-2]) for each in self.cells() if each["prompt"][1:-2].isdigit()], default=0)
        self._editor(cell).click()
        self.page.keyboard.press("Shift+Enter")
        return self.wait(len(self.cells()), counted + 1, timeout_s)[cell]["output"]

    def paste(self, cell: int, text: str) -> None:
        """Put a text in place of what stands in a code cell."""
        self._editor(cell).click()
        self.page.keyboard.press("Control+a")
        self.page.keyboard.insert_text(text)
        assert self._editor(cell).locator(".cm-line").all_text_contents() == text.split("\n")

    def source(self, cell: int) -> str:
        """What stands in a code cell."""
        return "\n".join(self._editor(cell).locator(".cm-line").all_text_contents())

    def _editor(self, cell: int) -> Any:
        return self.page.locator(".jp-Notebook .jp-CodeCell").nth(cell).locator(".cm-content")

    def picture(self, path: Path) -> None:
        """The whole page at once, for who wants to see what a learner sees."""
        last = self.page.locator(".jp-Notebook .jp-Cell").last
        self.page.locator(".jp-Notebook .jp-WindowedPanel-outer").evaluate("each => each.scrollTop = 0")
        bottom = last.evaluate("each => each.getBoundingClientRect().bottom")
        self.page.set_viewport_size({"width": 1280, "height": round(bottom) + 60})
        self.page.screenshot(path=path)
        self.page.set_viewport_size({"width": 1280, "height": 900})


def visible(spot: Any) -> Any:
    """The place in the page, scrolled into sight; nothing lies over it."""
    spot.click(trial=True)
    return spot


def choose_theme(page: Any, theme: str) -> None:
    """``light`` or ``dark``, by the menu; JupyterLab keeps the choice."""
    page.get_by_role("menuitem", name="Settings", exact=True).click()
    page.locator(".lm-Menu-itemLabel").get_by_text("Theme", exact=True).hover()
    page.locator(".lm-Menu-itemLabel").get_by_text(f"JupyterLab {theme.title()}", exact=True).click()
    page.wait_for_function(f"document.body.dataset.jpThemeLight == '{str(theme == 'light').lower()}'")


def _of_jupyterlab(page: Any, theme: str) -> None:
    choose_theme(page, theme)
    page.locator("#jupyterlab-splash").wait_for(state="detached")


def look_at_both_themes(page: Any, part: str, choose: Callable[[Any, str], None] = _of_jupyterlab) -> None:
    """axe-core has no finding in a part of the page, dark and light."""
    found = importlib.util.find_spec("axe_playwright_python")
    if found is None or found.origin is None:
        pytest.skip("not installed: axe-playwright-python, which brings axe-core (make setup)")
    page.evaluate((Path(found.origin).parent / "axe.min.js").read_text(encoding="utf-8"))
    for theme in ("dark", "light"):
        choose(page, theme)
        wrong = page.evaluate("part => axe.run(part, {resultTypes: ['violations']})", part)["violations"]
        assert not wrong, [(each["id"], [node["html"][:200] for node in each["nodes"][:3]]) for each in wrong]
