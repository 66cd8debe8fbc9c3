"""Two levels on hosts of several sizes, which are one machine here: MPI takes names for hosts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from running import environment
from thorough import once_more

from workbench.config import Settings
from workbench.errors import LaunchError
from workbench.launch.start import mpi
from workbench.transport.hierarchical import MachineMap, hierarchical_backend

RANKS, TUNED = (str(Path(__file__).with_name(f"{name}_levels_ranks.py")) for name in ("two", "tuned"))


@pytest.mark.parallel
@pytest.mark.timeout(150)
@pytest.mark.parametrize(
    ("hosts", "wire"),
    [
        once_more({"a": 2, "b": 2}, ""),
        once_more({"a": 1, "b": 2}, ""),
        ({"a": 2, "b": 1, "c": 1}, ""),
        ({"a": 2, "b": 2}, "bfloat16"),
        once_more({"a": 1, "b": 1, "c": 2}, "float16"),
    ],
)
def test_what_the_ranks_get(hosts: dict[str, int], wire: str) -> None:
    """Allreduce, broadcast from every rank, and allgather; with as many ranks on each host or not; and in one level."""
    on_hosts(hosts, RANKS, WORKBENCH_WIRE=wire)


@pytest.mark.parallel
@pytest.mark.timeout(150)
@pytest.mark.parametrize("hosts", [{"a": 2, "b": 2}, once_more({"a": 2, "b": 1, "c": 1})])
def test_autotune_chooses_between_one_level_and_two(hosts: dict[str, int]) -> None:
    """All ranks change at the same collective, and every sum is right."""
    pytest.importorskip("sklearn")
    sampling = {"WARMUP_SAMPLES": 0, "STEPS_PER_SAMPLE": 1, "BAYES_OPT_MAX_SAMPLES": 10_000}
    on_hosts(hosts, TUNED, WORKBENCH_AUTOTUNE=1, **{f"WORKBENCH_AUTOTUNE_{name}": n for name, n in sampling.items()})


def on_hosts(hosts: dict[str, int], script: str, **env: object) -> None:
    """Run a script on ranks of these hosts; each says OK."""
    if mpi.mpiexec_vendor(mpi.find_mpiexec()) != "MPICH":
        pytest.skip("needs MPICH's mpiexec, which takes names for hosts")
    said = {"WORKBENCH_HIERARCHICAL_BYTES": 0, "OMP_NUM_THREADS": 1, **env}
    listed = ",".join(f"{name}:{n}" for name, n in hosts.items())
    mpiexec = [mpi.find_mpiexec(), "-n", str(sum(hosts.values())), "-launcher", "fork", "-hosts", listed]
    words = [*mpiexec, sys.executable, script]
    whole = environment() | {name: str(value) for name, value in said.items()}
    done = subprocess.run(words, env=whole, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout.count("OK")) == (0, sum(hosts.values())), done.stdout + done.stderr


def test_a_wire_that_there_is_not() -> None:
    """Is refused before anything is connected."""
    with pytest.raises(LaunchError, match="WORKBENCH_WIRE='fp8': choose float16 or bfloat16, or unset it"):
        hierarchical_backend(None, ["a", "b"], None, Settings(wire="fp8"))  # type: ignore[arg-type]


@pytest.mark.parametrize(("nodes", "in_a_row"), [("aabb", True), ("abab", False), ("abb", True), ("aba", False)])
def test_machines_in_a_row(nodes: str, in_a_row: bool) -> None:
    """Only then one piece of the array is a machine's in an allgather."""
    assert MachineMap(nodes, 0).in_a_row == in_a_row
