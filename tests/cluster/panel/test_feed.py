"""The panel's rows, of real engines: who computes, who waits for whom, who is silent, and who is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from workbench import cluster
from workbench.cluster.panel.feed import Feed, Row
from workbench.cluster.panel.show import as_table
from workbench.cluster.panel.widget import panel
from workbench.launch.ranks.job_folder import BEGINS

pytestmark = [pytest.mark.usefixtures("forked_engines"), pytest.mark.integration, pytest.mark.parallel]


@pytest.fixture(scope="module")
def engines() -> Iterator[Any]:
    """Three ranks that have called ``init()``; the last tests of this file take others in their place."""
    with cluster.up(3, quiet=True) as engines:
        engines.view.execute("import time, pathlib, numpy as np, workbench as hvd; hvd.init()", silent=False)
        yield engines


def until(feed: Feed, fits: Callable[[list[Row]], bool]) -> list[Row]:
    """The first rows that fit; the test's time limit ends a wait in vain."""
    while True:
        rows = feed.rows()
        if fits(rows):
            return rows
        time.sleep(0.05)


WATCH = [sys.executable, "-m", "workbench.cli.main", "watch"]


def watched(engines: Any, option: str) -> subprocess.CompletedProcess[str]:
    """What the command prints of these engines."""
    name = engines._job.folder.name.removeprefix(BEGINS)
    return subprocess.run([*WATCH, name, option], capture_output=True, text=True, timeout=50)


def states(rows: list[Row]) -> list[str]:
    """By rank."""
    return [row["state"] for row in rows]


def test_a_straggler_is_seen_with_its_line_and_step(engines: Any, tmp_path: Path) -> None:
    """The others wait for it, in which tensor and which line; the straggler's line, step and loss are there."""
    go = tmp_path / "go"
    cell = f"""
for step in range(3, 6):
    loss = 1.5
    if hvd.rank() == 1 and step == 4:
        while not pathlib.Path({str(go)!r}).exists():
            time.sleep(0.01)
    total = hvd.allreduce(np.ones(1000), name="grad")
"""
    feed, view = Feed(engines.client, range(3)), engines.view
    assert states(until(feed, lambda rows: states(rows) == ["idle"] * 3 and rows[0]["memory"] > 0)) == ["idle"] * 3
    running = view.execute(cell, block=False)
    rows = until(feed, lambda rows: states(rows) == ["waits", "computes", "waits"])
    assert rows[0]["missing"] == [1]
    assert rows[0]["detail"].startswith("for 1 in allreduce.grad, ")
    assert "hvd.allreduce(np.ones(1000)" in rows[0]["line"]
    assert "time.sleep(0.01)" in rows[1]["line"] or "exists()" in rows[1]["line"]
    assert rows[1]["loop"] == {"step": 4, "loss": 1.5}
    assert "ranks 0, 2 wait for rank 1 in 'allreduce.grad'" in feed.sentence()
    assert any("waits" in line and "for 1 in allreduce.grad" in line for line in as_table(rows))
    until(feed, lambda rows: "time.sleep" in feed.stacks().get("1", ""))
    (stuck,) = [each for each in feed.stack_lines() if each.startswith("rank 1, innermost line last:\n")]
    assert "in <module>" in stuck
    said = watched(engines, "--stacks").stdout
    assert "rank 1, innermost line last:" in said
    assert 'hvd.allreduce(np.ones(1000), name="grad")' in said.partition("innermost line last:")[2]
    go.touch()
    running.get()
    until(feed, lambda rows: states(rows) == ["idle"] * 3)
    assert feed.sentence() == ""


def test_rates_and_history(engines: Any) -> None:
    """Bytes per second and cores in use are those of the work that is done; a minute of them is kept."""
    feed = Feed(engines.client, range(3))
    until(feed, lambda rows: all(row["memory"] for row in rows))
    running = engines.view.execute("for step in range(2000): hvd.allreduce(np.ones(100_000), name='x')", block=False)
    rows = until(feed, lambda rows: all(row["gb_s"] > 0 and row["cpu"] > 0 and row["step_s"] for row in rows))
    for row in rows:
        assert row["gb_s"] * 1e9 * (row["step_s"] or 0) == pytest.approx(100_000 * 8, rel=0.5)
    until(feed, lambda rows: len(feed.history()["0"]["cpu"]) >= 2)
    engines.client.send_signal("SIGINT", block=True)
    running.wait(20)


def test_a_closed_panel_asks_no_more(engines: Any) -> None:
    """Its thread ends; the next one is a new one."""
    shown = panel(engines)
    wait(lambda: shown.rows)
    shown.close()
    wait(lambda: not any(each.name == "workbench-watch" for each in threading.enumerate()))
    another = panel(engines)
    assert another is not shown
    wait(lambda: another.rows)
    another.close()


def wait(done: Callable[[], Any]) -> None:
    """The test's time limit ends a wait in vain."""
    while not done():
        time.sleep(0.01)


def test_sixty_four_ranks() -> None:
    """A row for each, in the table and in one line; with columns for GPUs where a rank has one."""
    wait = {"name": "grad", "process_set": 0, "members": list(range(64)), "line": "in the cell, line 3", "since_s": 2.0}
    client = SimpleNamespace(ids=range(64), closed=False, states={}, ask=lambda *asked: None)
    feed = Feed(client, range(64))
    for rank in range(64):
        state = {"rank": rank, "cell_s": 2.5, "cpu_s": 1.0, "memory": 10**9, "gpu": None, "line": "in the cell, line 9"}
        client.states[rank] = time.monotonic(), state | ({"waits": [wait]} if rank != 17 else {})
    rows = feed.rows()
    table = as_table(rows)
    assert len(table) == 65
    assert states(rows) == ["waits"] * 17 + ["computes"] + ["waits"] * 46
    assert rows[0]["missing"] == [17]
    assert "GPU" not in table[0]
    assert "ranks 0-16, 18-63 wait for rank 17 in 'grad' (2 s)" in feed.sentence()
    assert len(feed.history()) == 64
    rows[3]["gpu"] = {"percent": 97, "memory": 7_000_000_000}
    table = as_table(rows)
    assert table[0].split()[-5:] == ["GPU", "%", "GPU", "MB", "line"]
    assert "  97    7000  in the cell" in table[4]


def test_the_command_shows_the_same(engines: Any) -> None:
    """Another process of the same user finds the cluster by its folder, and prints a row for each rank."""
    done = watched(engines, "--once")
    assert done.returncode == 0, done.stdout + done.stderr
    assert [line.split()[:2] for line in done.stdout.splitlines()[1:4]] == [[str(rank), "idle"] for rank in range(3)]
    wrong = subprocess.run([*WATCH, "nobody"], capture_output=True, text=True, timeout=50)
    assert wrong.returncode == 1
    assert "There is no cluster 'nobody'; there are: " in wrong.stderr


def test_a_stopped_engine_is_silent_and_a_dead_one_gone(engines: Any) -> None:
    """Each shows as what it is, and the others as before."""
    feed, pids = Feed(engines.client, range(3)), engines.pids()
    until(feed, lambda rows: all(row["memory"] for row in rows))
    os.kill(pids[1], signal.SIGSTOP)
    rows = until(feed, lambda rows: rows[1]["state"] == "silent")
    assert rows[1]["detail"].startswith("no answer for ")
    assert (rows[0]["state"], rows[2]["state"]) == ("idle", "idle")
    os.kill(pids[1], signal.SIGCONT)
    until(feed, lambda rows: rows[1]["state"] == "idle")
    os.kill(pids[2], signal.SIGKILL)
    assert states(until(feed, lambda rows: rows[2]["state"] == "gone")) == ["idle", "idle", "gone"]


def test_the_panel_follows_its_cluster(engines: Any) -> None:
    """One panel for a cluster; it shows engines that were started anew, and says so when the cluster is down."""
    shown = panel(engines)
    assert panel(engines) is shown
    if "gone" not in states(until(Feed(engines.client, range(3)), lambda rows: all(row["memory"] for row in rows[:2]))):
        os.kill(engines.pids()[2], signal.SIGKILL)
    wait(lambda: shown.rows and shown.rows[2]["state"] == "gone")
    engines.rescue(quiet=True)
    wait(lambda: [row["state"] for row in shown.rows] == ["idle"] * 3)
    assert shown.history["1"]["cpu"]
    beat = shown.beat
    wait(lambda: shown.beat != beat)
    engines.client.send_signal(signal.SIGKILL, block=False)
    wait(lambda: not engines.client.ids)
    engines.down()
    wait(lambda: shown.ended)
    assert "cluster is down" in shown.note
    wait(lambda: not any(each.name == "workbench-watch" for each in threading.enumerate()))


@pytest.mark.thorough
def test_an_elastic_cluster_that_grows() -> None:
    """The new engine has a row."""
    with cluster.up(1, min_np=1, quiet=True) as engines:
        shown = panel(engines)
        wait(lambda: [row["state"] for row in shown.rows] == ["idle"])
        engines.resize(2, quiet=True)
        wait(lambda: [row["state"] for row in shown.rows] == ["idle"] * 2)


def test_without_a_cluster() -> None:
    """It says what to do."""
    with pytest.raises(cluster.LaunchError, match="start one with"):
        cluster.watch()
