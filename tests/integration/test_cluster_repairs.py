"""``up`` again, ``rescue`` and ``down``, whatever has become of the engines; and what ``up`` warns of."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import ipyparallel
import pytest
from running import eventually

from workbench import cluster
from workbench.cluster import engine_commands as engines
from workbench.errors import LaunchError
from workbench.launch.ranks.watchdog import Leftovers
from workbench.launch.start import mpi

pytestmark = [pytest.mark.usefixtures("forked_engines"), pytest.mark.integration, pytest.mark.parallel]


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """An IPython directory of its own, and whatever a failing test leaves running is stopped."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    yield
    cluster.down()


def test_what_up_warns_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A Slurm job of two hosts, where all engines are on one of them; and ZeroMQ that cannot encrypt."""
    monkeypatch.setattr(engines, "encrypted", lambda: False)
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    monkeypatch.setenv("SLURM_JOB_NODELIST", "gpu[03-04]")
    with pytest.warns(UserWarning, match=r"every user of this machine can read what the engines print\..* pyzmq"):
        c = cluster.up(1)
    assert re.search(r"2 hosts \(gpu\[03-04\]\), .* on this one", capsys.readouterr().out)
    assert c.view["mpi_rank"] == [0]


def test_up_again_keeps_repairs_and_replaces(capsys: pytest.CaptureFixture[str]) -> None:
    """A second ``up`` returns the running cluster, replaces one that lost a rank, and one of another size."""
    one = cluster.up(1)
    assert cluster.up(1) is one
    os.kill(one.pids()[0], signal.SIGKILL)
    eventually(lambda: not one.healthy())
    repaired = cluster.up(1)
    assert repaired.healthy()
    cores = len(os.sched_getaffinity(0))
    many = cluster.up(cores + 1)
    assert many.client.ids == list(range(cores + 1))
    assert not Leftovers(one.id).processes()
    assert not Leftovers(repaired.id).processes()
    text = capsys.readouterr().out.splitlines()
    assert text[0].startswith("1 engine ready: id 0 is MPI rank 0, ")
    assert text[1] == text[0].replace("ready", "already running")
    assert text[2:4] == ["stopping the cluster of 1 rank, which has lost ranks", text[0]]
    assert text[4] == "stopping the cluster of 1 rank"
    assert (
        text[6] == f"{cores + 1} ranks share {cores} core{'s' if cores > 1 else ''}: fine for learning, not for timing"
    )


def test_cells_that_ask_torch_for_gloo() -> None:
    """With ``ddp`` their group is the workbench's, under the name that they know."""
    cell = """
import torch.distributed as dist
dist.init_process_group("gloo")
found = [dist.get_backend(), type(dist.group.WORLD).__module__]
"""
    c = cluster.up(2, ddp=True, quiet=True)
    c.view.execute(cell, block=True)
    assert c.view["found"] == 2 * [["gloo", "workbench.torch.distributed.group"]]
    assert cluster.up(2, ddp=True, quiet=True) is c
    assert cluster.up(2, quiet=True) is not c
    assert "WORKBENCH_C10D" not in os.environ


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 warns of forks beside threads
def test_rescue_amid_a_death(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An engine that vanishes from the hub's list between a look at it and a question is rescued like any other."""
    c = cluster.up(2)
    os.kill(c.pids()[1], signal.SIGKILL)
    assert eventually(lambda: c.client.ids == [0])
    # The moment before: the process seemed to be there, and so did the engine.
    monkeypatch.setattr(type(c.client), "ids", property(lambda client: [0, 1]))
    seen = iter([[]])
    monkeypatch.setattr(c._engines, "gone", lambda: next(seen, [1]))
    real = cluster.Cluster._start

    def start(self: cluster.Cluster, timeout_s: float) -> None:
        monkeypatch.undo()
        real(self, timeout_s)

    monkeypatch.setattr(cluster.Cluster, "_start", start)
    c.rescue()
    assert "rank 1 is gone" in capsys.readouterr().out
    assert c.view.apply_sync(mpi.whoami) == [(rank, 2, pid) for rank, pid in enumerate(c.pids())]


def test_down_fails_what_is_awaited_and_not_in_a_forked_child(capsys: pytest.CaptureFixture[str]) -> None:
    """A result awaited from a rank that hangs in MPI becomes an error; ``down`` in a forked child changes nothing.

    ``rescue`` without the hub starts the cluster anew, and says why; after ``down`` it says what to do.
    """
    c = cluster.up(1, quiet=True)
    pid = os.fork()
    if not pid:
        cluster.down()
        os._exit(0)
    os.waitpid(pid, 0)
    assert c.healthy()
    c._job._processes["controller"].kill()
    c._job._processes["controller"].wait(10)
    c.rescue()
    assert "the hub is gone" in capsys.readouterr().out
    assert c.healthy()
    awaited = c.view.apply_async(eval, "MPI.COMM_SELF.recv()")
    c.down()
    with pytest.raises(ipyparallel.error.CompositeError, match="EngineError"):
        awaited.get(1)
    with pytest.raises(LaunchError, match=r"was stopped: call cluster\.up\(\)"):
        c.rescue()
    c.down()
