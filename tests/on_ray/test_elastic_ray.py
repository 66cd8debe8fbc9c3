"""Elastic jobs on Ray's nodes: a node is killed, a node is added, and the training ends right."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from drivers import Driver
from ray_nodes import Nodes, processes_of

pytestmark = [pytest.mark.engines, pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = (Path(__file__).parent / "scripts" / "elastic.py").read_text()


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
    start_s = driver.hear("start_s")
    driver.wait_for(lambda said: said.get("size") == 4)
    killed = time.monotonic()
    try:
        nodes.kill(1)
        driver.wait_for(lambda said: said.get("size") == 2)
        went_on_s = driver.heard_at - killed
    finally:
        nodes.start(1)
    joins = time.monotonic()
    driver.wait_for(lambda said: said.get("size") == 4)
    joined_s = driver.heard_at - joins
    (tmp_path / "stop").touch()
    results = driver.hear("results")
    text = driver.ends()
    assert [each["rank"] for each in results] == [0, 1, 2, 3], text
    assert all(each["right"] and each["size"] == 4 for each in results), text
    assert len({each["step"] for each in results}) == 1
    figures = {"start_s": start_s, "went_on_s": went_on_s, "joined_s": joined_s}
    for name, value in figures.items():
        record_property(name, round(value, 2))
    print({name: round(value, 2) for name, value in figures.items()})
    assert processes_of(nodes.hosts, "hosts.agent") == []


def test_ray_executor_with_min_workers(nodes: Nodes, begin: Callable[[str], Driver], tmp_path: Path) -> None:
    """``RayExecutor(min_workers=…)`` runs elastic jobs, one after the other in the same places."""
    (tmp_path / "stop").touch()
    driver = begin("RayExecutor")
    for _ in range(2):
        results = driver.hear("results")
        assert [each["rank"] for each in results] == list(range(len(results)))
        assert {(each["step"], each["right"]) for each in results} == {(1, True)}
        assert len(results) >= 2
    driver.ends()
