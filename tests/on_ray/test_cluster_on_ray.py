"""``cluster.up(ray=…)``: a notebook's engines in places that Ray gives; and ``cluster.up(k8s=…)``."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from drivers import Driver
from ray_nodes import Nodes, processes_of

from workbench import cluster
from workbench.errors import LaunchError
from workbench.launch.hosts.agent_connections import Target
from workbench.launch.hosts.remote_shell import Relay
from workbench.launch.sync import sync

SCRIPT = (Path(__file__).parent / "scripts" / "engines.py").read_text()


@pytest.mark.engines
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_engines_in_rays_places(nodes: Nodes) -> None:
    """Four engines on two nodes are one job; the places outlive them; a lost node's ranks go to the other."""
    driver = Driver(nodes.begin(SCRIPT))
    try:
        assert "Call ray.init() first" in driver.hear("early")
        places = [[0, 4, 0], [1, 4, 1], [2, 4, 0], [3, 4, 1]]
        found = driver.hear("engines")
        assert [each[:3] for each in found] == places
        assert {each[3] for each in found} == {"wb1", "wb2"}
        assert {each[4] for each in found} == {6.0}
        assert driver.hear("same")
        assert driver.hear("after down")[0].startswith("4 places in Ray on wb")
        assert [each[:3] for each in driver.hear("again")] == places
        try:
            nodes.kill(1)
            driver.write("go")
            assert re.search(
                r"gone with host wb2 \(its executor is lost.*call engines\.rescue\(\)", driver.hear("lost")
            )
            rescued = driver.hear("rescued")
            assert [each[:3] for each in rescued] == [[rank, 4, rank] for rank in range(4)]
            assert {each[3] for each in rescued} == {"wb1"}
            assert driver.hear("released") == 0
            driver.ends()
        finally:
            nodes.start(1)
        assert processes_of(nodes.hosts, "ipyparallel") == []
    finally:
        driver.end()


@pytest.mark.parametrize(
    ("words", "kind", "text"),
    [
        ({"ray": {}, "slurm": {}}, ValueError, "slurm and ray exclude each other"),
        ({"ray": {"gpu": 1}}, LaunchError, "ray: 'gpu' is not known. There are: cpus, gpus, strategy, timeout_s"),
        ({"k8s": {}}, LaunchError, "this kernel runs in no pod of the chart"),
        ({"k8s": {"pods": 2}}, LaunchError, "k8s: 'pods' is not known"),
        ({"k8s": {"script": "false"}}, LaunchError, "exit code 1"),
    ],
)
def test_what_cannot_be_had_is_said(words: dict[str, object], kind: type[Exception], text: str) -> None:
    """Places named in two ways, a word that is not known, no pod, a script that fails: nothing is started."""
    pytest.importorskip("ray")
    with pytest.raises(kind, match=text):
        cluster.up(2, quiet=True, **words)  # type: ignore[arg-type]
    assert cluster.places.held() == []


def test_mpi_and_copies_have_no_way_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """MPI's launcher and rsync go by ssh, and places in Ray are not reached by it."""
    pytest.importorskip("ray")
    with pytest.raises(LaunchError, match="--sync copies by ssh"):
        sync([Target("a", 1, Relay("/nowhere"))], ".", print)
    monkeypatch.setenv("WORKBENCH_BACKEND", "mpi")
    with pytest.raises(LaunchError, match="MPI's launcher starts nothing in Ray's places"):
        cluster.up(2, ray={}, quiet=True)


@pytest.mark.parallel
def test_pods_are_hosts(tmp_path: Path) -> None:
    """``cluster.up(k8s=…)`` starts engines where the script says: here it names this machine."""
    script = tmp_path / "discover_hosts.sh"
    script.write_text("#!/bin/sh\necho localhost:2\n")
    script.chmod(0o700)
    with cluster.up(k8s={"script": str(script)}, quiet=True) as c:
        assert c.n == 2
