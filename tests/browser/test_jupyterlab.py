"""The first lesson in JupyterLab as ``make lab`` starts it, in a real browser, with its menus and the keyboard."""

from __future__ import annotations

import contextlib
import io
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jupyter_client
import matplotlib.image
import numpy as np
import pytest
from labs import QUICKSTART, Lab, Notebook, in_browser, needs_make, visible
from other_user import SECRET, as_nobody, heard, listening

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300), needs_make]

CURVE = np.array([0x0B, 0x6E, 0x99])  # the first colour of workbench.course.figures
OWN_CELL = """\
%%px
import numpy as np
import workbench as hvd

hvd.init()
print("ranks add up to", hvd.allreduce(np.array([hvd.rank() + 1]), op=hvd.Sum))"""


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
def test_nobody_else_can_read_what_kernels_say(lab: Lab) -> None:
    """A kernel talks over sockets in a folder that nobody else may enter, and at no port; also when started again."""
    kernel = lab.ask("POST", "api/kernels")["id"]
    for _ in range(2):
        with printer(lab.runtime / f"kernel-{kernel}.json") as prints:
            ports = listening(lab.processes())
            assert {ip for ip, _ in ports} == {"127.0.0.1"}
            assert not heard({port for _, port in ports}, prints)
            names = {each.laddr for process in lab.processes() for each in process.net_connections("unix")}
            sockets = {Path(name).resolve() for name in names if f"kernel-{kernel}-ipc-" in name}
            assert len(sockets) == 5
            assert {each.parent for each in sockets} == {lab.runtime}
            assert lab.runtime.stat().st_mode & 0o777 == 0o700
        lab.ask("POST", f"api/kernels/{kernel}/restart")
    lab.ask("DELETE", f"api/kernels/{kernel}")
    assert not list(lab.runtime.glob("kernel-*"))


@pytest.mark.course
@pytest.mark.parallel
@in_browser
def test_first_lesson_in_the_browser(lab: Lab, notebook: Notebook, tmp_path: Path) -> None:
    """The lesson runs to its end by "Run All Cells", without a word of complaint, and its results can be seen.

    Then a learner starts engines again, types a ``%%px`` cell, and shuts JupyterLab down without stopping the engines:
    nothing is left.
    """
    before = notebook.cells()
    n = len(before)
    assert {(each["prompt"], each["output"]) for each in before} == {("[ ]:", ""), ("", "")}  # "": its code is folded
    notebook.choose("Run", "Run All Cells")
    cells = notebook.wait(n, counted=n)
    assert [each["prompt"] for each in cells] == [f"[{i}]:" for i in range(1, n + 1)]
    outputs = notebook.page.locator(".jp-Notebook .jp-OutputArea-output")
    for line in (
        "I am rank 0 of 2",
        "I am rank 1 of 2",
        "all replicas hold the same bits: True",
        "engines    images/s  speed-up  efficiency",
    ):
        assert line in visible(outputs.filter(has_text=line)).inner_text().splitlines()
    difference = "largest difference to the serial run: "
    (told,) = (line for each in cells for line in each["output"].splitlines() if line.startswith(difference))
    assert float(told.removeprefix(difference)) < 1e-12
    figures = notebook.page.locator(".jp-Notebook .jp-OutputArea-output[data-mime-type='image/svg+xml'] img")
    curves = []  # pictures with a curve in its colour: height and width
    for i in range(figures.count()):
        shot = visible(figures.nth(i)).screenshot()
        pixels = np.rint(255 * matplotlib.image.imread(io.BytesIO(shot))[..., :3])
        if (np.abs(pixels - CURVE).max(axis=-1) < 8).sum() > 500:
            curves.append(pixels.shape[:2])
    assert len(curves) >= 2
    assert all(min(shape) > 200 for shape in curves), curves

    notebook.page.locator(".jp-CodeCell .cm-content").first.click()
    notebook.page.keyboard.press("Shift+Enter")  # the start cell again
    notebook.wait(n, counted=n + 1)
    notebook.page.keyboard.press("a")  # a new cell above the selected one
    notebook.page.keyboard.press("Enter")
    notebook.type(OWN_CELL)
    notebook.page.keyboard.press("Shift+Enter")
    cells = notebook.wait(n + 1, counted=n + 2)
    assert cells[1]["output"].count("ranks add up to [3]") == 1  # of both ranks, for it is equal
    notebook.page.locator("#jp-main-statusbar", has_text="2 ranks: idle").wait_for()
    visible(outputs.filter(has_text="ranks add up to [3]"))
    notebook.picture(tmp_path / "lesson.png")

    assert len(lab.processes()) > 10
    notebook.choose("File", "Shut Down")
    notebook.page.locator(".jp-Dialog").get_by_role("button", name="Shut Down").click()
    assert not lab.left()
    assert lab.process.wait(10) == 0
