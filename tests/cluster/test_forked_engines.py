"""Engines that a fork server forks: a notebook cannot tell them from others, but by their time and memory."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from workbench import cluster
from workbench.launch.forks import find
from workbench.launch.forks.find import Forks
from workbench.launch.ranks.watchdog import Leftovers
from workbench.launch.start import mpi

pytestmark = [
    pytest.mark.integration,
    pytest.mark.parallel,
    pytest.mark.skipif(not find.possible(), reason="forks are for Linux"),
]


@pytest.fixture
def warm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """A fork server of its own, which listens; what is called gives its process."""
    folder = tempfile.mkdtemp(prefix="wb-", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    monkeypatch.setenv("WORKBENCH_FORK", "1")
    find.leave()
    start()
    yield lambda: server(folder)
    cluster.down()
    find.leave()
    for each in servers(folder):
        with contextlib.suppress(psutil.Error):
            each.wait(20)
    shutil.rmtree(folder)


def start() -> None:
    """Start a server, and wait until it listens."""
    until = time.monotonic() + 40
    while not (forks := Forks(mpi.environment(1))).found:
        forks.start()
        assert time.monotonic() < until
        time.sleep(0.05)


def servers(folder: str) -> list[psutil.Process]:
    """The server whose socket is there, and its forks."""
    found = []
    for each in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            line = " ".join(each.cmdline())
            if "workbench.launch.forks.server" in line and folder in line:
                found.append(each)
    return found


def wait_for(happened: Callable[[], bool]) -> None:
    """Until it has."""
    until = time.monotonic() + 40
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.05)


def server(folder: str) -> int:
    """The process that forks."""
    found = servers(folder)
    return next(each.pid for each in found if each.ppid() not in {other.pid for other in found})


def about() -> tuple[object, ...]:
    """What an engine says of itself."""
    import os
    import sys

    import torch
    from mpi4py import MPI

    rank, size = MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size
    total = MPI.COMM_WORLD.allreduce(rank)
    return (
        rank, size, total, os.getcwd(), os.environ["OWN"], torch.get_num_threads(), sys.argv[0].endswith("engine.py"),
        "WORKBENCH_FORK_OF" in os.environ,
    )  # fmt: skip


def test_forked_engines_are_as_others(forked_engines: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Their ranks, sums, folder, variables and threads; rescue and down find their processes, and leave none."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OWN", "notebook's")
    engines, threads = cluster.up(2, quiet=True), max(1, len(os.sched_getaffinity(0)) // 2)
    wanted = [(rank, 2, 1, str(tmp_path), "notebook's", threads, True, True) for rank in range(2)]
    assert engines.view.apply_sync(about) == wanted
    assert set(engines.pids()) <= {each.pid for each in Leftovers(engines.id).processes()}
    os.kill(engines.pids()[1], signal.SIGKILL)
    engines.rescue(quiet=True)
    assert engines.view.apply_sync(about) == wanted
    tag = engines.id
    engines.down()
    assert not Leftovers(tag).processes()


@pytest.mark.thorough
def test_a_killed_server_takes_no_engine_and_stops_no_start(
    warm: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Engines that run go on; one that is asked for after the server was found is started as before, with a line."""
    engines = cluster.up(2, quiet=True)
    os.kill(warm(), signal.SIGKILL)
    assert engines.view.apply_sync(lambda: 1 + 1) == [2, 2]
    engines.down()
    start()
    stopped = warm()
    forks = engines._place.engines()
    os.kill(stopped, signal.SIGKILL)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(engines._place), "engines", lambda self: forks)
        engines = cluster.up(2)
    assert engines.view.apply_sync(lambda: 1 + 1) == [2, 2]
    assert "the fork server has ended" in capsys.readouterr().out


@pytest.mark.thorough
def test_a_server_that_does_not_answer_is_not_waited_for(
    warm: Callable[[], int], capsys: pytest.CaptureFixture[str]
) -> None:
    """It is stopped: a line says so, and the engines start as before."""
    process = psutil.Process(warm())
    process.suspend()
    engines = cluster.up(2)
    assert engines.view.apply_sync(lambda: 1 + 1) == [2, 2]
    assert "the fork server does not answer" in capsys.readouterr().out
    process.kill()


@pytest.mark.thorough
def test_elastic_engines_are_forked_and_replaced(warm: Callable[[], int]) -> None:
    """One that is killed is missed, and resize brings another fork."""
    engines = cluster.up(2, min_np=1, quiet=True)
    forked = engines.view.apply_sync(lambda: "WORKBENCH_FORK_OF" in __import__("os").environ)
    assert forked == [True, True]
    os.kill(engines.pids()[0], signal.SIGKILL)
    wait_for(lambda: engines.ready() == [1] and engines.client.ids == [1])  # type: ignore[attr-defined]
    engines.resize(2)  # type: ignore[attr-defined]
    wait_for(lambda: len(engines.client.ids) == 2)
    assert engines.client[:].apply_sync(lambda: "WORKBENCH_FORK_OF" in __import__("os").environ) == [True, True]
