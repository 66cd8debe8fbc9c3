"""Elastic jobs on Ray's nodes: a node is killed, a node is added, and the training ends right."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ray_nodes import Nodes, processes_of

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = (Path(__file__).parent / "scripts" / "elastic.py").read_text()
_LIMIT_S = 90.0


class Driver:
    """A running driver, and what it says."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.lines = process, list[str]()
        self._said: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.lines.append(f"{time.monotonic():.1f} {line}")
            if line.startswith("{"):
                self._said.put(json.loads(line))

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next thing that it says of this kind."""
        until = time.monotonic() + _LIMIT_S
        while True:
            try:
                found = self._said.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise AssertionError("".join(self.lines)) from None
            if wanted(found):
                return found

    def end(self) -> None:
        """By SIGKILL."""
        self.process.kill()
        self.process.wait()
        self._reader.join(5.0)
        if self.process.stdout:
            self.process.stdout.close()

    def ends(self) -> str:
        """Wait for its end, which is a good one."""
        assert self.process.wait(_LIMIT_S) == 0, "".join(self.lines)
        self._reader.join(5.0)
        return "".join(self.lines)


@pytest.fixture
def begin(nodes: Nodes, tmp_path: Path) -> Iterator[Callable[[str], Driver]]:
    """Starts drivers; none is left."""
    begun: list[Driver] = []

    def start(way: str) -> Driver:
        begun.append(Driver(nodes.begin(SCRIPT, way, str(tmp_path / "stop"))))
        return begun[-1]

    yield start
    for each in begun:
        each.end()


def test_a_node_is_killed_and_another_comes(
    nodes: Nodes, begin: Callable[[str], Driver], tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """The ranks of the other node go on from the last commit; a node that comes gives ranks; each step counts once."""
    driver = begin("ElasticRayExecutor")
    started = driver.wait_for(lambda said: "start_s" in said)
    driver.wait_for(lambda said: said.get("size") == 4)
    killed = time.monotonic()
    try:
        nodes.kill(1)
        driver.wait_for(lambda said: said.get("size") == 2)
        went_on_s = time.monotonic() - killed
    finally:
        nodes.start(1)
    joins = time.monotonic()
    driver.wait_for(lambda said: said.get("size") == 4)
    joined_s = time.monotonic() - joins
    (tmp_path / "stop").touch()
    results = driver.wait_for(lambda said: "results" in said)["results"]
    text = driver.ends()
    assert [each["rank"] for each in results] == [0, 1, 2, 3], text
    assert all(each["right"] and each["size"] == 4 for each in results), text
    assert len({each["step"] for each in results}) == 1
    figures = {"start_s": started["start_s"], "went_on_s": went_on_s, "joined_s": joined_s}
    for name, value in figures.items():
        record_property(name, round(value, 2))
    print({name: round(value, 2) for name, value in figures.items()}, killed, text if False else "")
    assert processes_of(nodes.hosts, "hosts.agent") == []


def test_ray_executor_with_min_workers(nodes: Nodes, begin: Callable[[str], Driver], tmp_path: Path) -> None:
    """``RayExecutor(min_workers=…)`` runs elastic jobs, one after the other in the same places."""
    (tmp_path / "stop").touch()
    driver = begin("RayExecutor")
    for _ in range(2):
        results = driver.wait_for(lambda said: "results" in said)["results"]
        assert [each["rank"] for each in results] == list(range(len(results)))
        assert {(each["step"], each["right"]) for each in results} == {(1, True)}
        assert len(results) >= 2
    driver.ends()
