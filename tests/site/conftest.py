"""The students' site, built once, served on this machine alone, and a browser to look at it."""

from __future__ import annotations

import fcntl
import functools
import http.server
import importlib.util
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from labs import BROWSER, FLAGS, LIGHTER, environment

from workbench.course.build import ROOT

_needs = [
    name for name in ("sphinx", "myst_nb", "furo", "sphinx_design", "playwright") if not importlib.util.find_spec(name)
]
_why = f"not installed: {', '.join(_needs)} (make setup installs the extra site)" if _needs else "no chromium"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What looks at pages needs what builds them, and a browser."""
    for item in items:  # of all folders
        if Path(__file__).parent in item.path.parents and {"site", "browser"} & {*getattr(item, "fixturenames", ())}:
            item.add_marker(pytest.mark.skipif(bool(_needs) or not BROWSER, reason=_why))


@pytest.fixture(scope="session")
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The students' site. A warning of Sphinx, such as a link that leads nowhere, fails it.

    A thorough run builds all of it; else three lessons, and the API without frameworks, which take half of the time.
    """
    # All workers of a run share it: the first one that needs it builds it, and the others wait.
    alone = "PYTEST_XDIST_WORKER" not in os.environ
    folder = tmp_path_factory.getbasetemp() if alone else tmp_path_factory.getbasetemp().parent
    out = folder / "site"
    command = [sys.executable, "-m", "workbench.course.site", "--out", str(out)]
    if not any(item.get_closest_marker("thorough") for item in request.session.items):
        command.append("--few")
    with (folder / "site.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "site.built").exists():
            env = os.environ | LIGHTER
            done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=900)
            assert done.returncode == 0, done.stderr
            (folder / "site.built").touch()
    return out


@pytest.fixture(scope="session")
def address(site: Path) -> Iterator[str]:
    """Where it is served."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *message: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")  # tests of other modules may end whatever this process has started
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A browser for the tests of a module."""
    from playwright.sync_api import sync_playwright

    home = tmp_path_factory.mktemp("home")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=BROWSER, args=FLAGS, env=environment(home) | {"HOME": str(home)}
        )
        yield browser
        browser.close()


class Visit:
    """A page of the site, and what went wrong in it.

    Args:
        page: playwright's.
        address: of the site.
    """

    def __init__(self, page: Any, address: str) -> None:
        self.page, self.address = page, address
        self.wrong: list[str] = []
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        page.on("console", self._said)
        page.on("requestfailed", self._failed)
        page.on("request", self._requested)
        page.on("response", self._replied)

    def _said(self, told: Any) -> None:
        # The editor's own word where a busy machine lets it measure its lines again and again.
        if told.type in ("error", "warning") and not told.text.startswith("Measure loop restarted"):
            self.wrong.append(told.text)

    def _failed(self, request: Any) -> None:
        if request.failure != "net::ERR_ABORTED":  # the page was left before its icon had come
            self.wrong.append(f"{request.failure}: {request.url}")

    def _replied(self, reply: Any) -> None:
        if reply.status >= 400:
            self.wrong.append(f"{reply.status}: {reply.url}")

    def _requested(self, request: Any) -> None:
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.wrong.append(f"elsewhere: {request.url}")

    def open(self, name: str) -> Any:
        """Show a page, such as ``notebooks/03_ring_allreduce``."""
        self.page.goto(f"{self.address}/{name}.html")
        return self.page


@pytest.fixture
def visit(browser: Any, address: str) -> Iterator[Callable[..., Visit]]:
    """Opens windows, in a theme; nothing may have gone wrong in any."""
    open_: list[Visit] = []

    def window(theme: str = "light", address: str = address, **options: Any) -> Visit:
        options = {"viewport": {"width": 1280, "height": 900}, "color_scheme": theme, **options}
        open_.append(Visit(browser.new_page(**options), address))
        return open_[-1]

    yield window
    wrong = [each.wrong for each in open_]
    for each in open_:
        each.page.close()
    assert wrong == [[] for _ in open_]


@pytest.fixture
def served(site: Path) -> Iterator[str]:
    """The address at which ``workbench site`` serves the pages: they are isolated there."""
    command = [str(Path(sys.executable).with_name("workbench")), "site", "--serve", str(site)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        yield child.stdout.readline().split("/index.html")[0]
        child.send_signal(signal.SIGINT)
