"""Ranks on two hosts: where rank 0 listens, and what is said when a host is lost."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hosts import Hosts
from running import environment

from workbench.launch.start.starters import free_port

# test_run_on_hosts.py looks who listens, and kills hosts, of ranks that `workbench run` starts.
pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.thorough, pytest.mark.timeout(150)]

N = 4
# Says where rank 0 listens, and then waits in a collective for a rank of the other host, which never comes.
SCRIPT = """
import time, numpy as np, workbench as hvd
from workbench.job.context import HOLDER
hvd.init()
hvd.allreduce(np.ones(4), name="first")
server = HOLDER.get().server
print("ready", *(server.address if server else ()), flush=True)
if hvd.rank() == 3: time.sleep(600)
hvd.allreduce(np.ones(4), name="second")
"""


class Ranks:
    """The processes of a job, two on each host, with what they write in files."""

    def __init__(self, hosts: Hosts, folder: Path, **env: str) -> None:
        port = free_port()
        self._folder = folder
        self.processes = []
        for rank in range(N):
            with (folder / f"{rank}.out").open("wb") as out, (folder / f"{rank}.err").open("wb") as err:
                words = hosts.words(rank * 2 // N, sys.executable, "-c", SCRIPT)
                own = _environment(hosts, rank, port) | env
                self.processes.append(subprocess.Popen(words, env=own, stdout=out, stderr=err))

    def out(self, rank: int) -> str:
        """What a rank wrote."""
        return (self._folder / f"{rank}.out").read_text()

    def err(self, rank: int) -> str:
        """What a rank complained of."""
        return (self._folder / f"{rank}.err").read_text()

    def ready(self) -> None:
        """Wait until all have met."""
        until = time.monotonic() + 60.0
        while not all("ready" in self.out(rank) for rank in range(N)):
            assert time.monotonic() < until, "\n".join(self.err(rank) for rank in range(N))
            assert all(process.poll() is None for process in self.processes), [self.err(rank) for rank in range(N)]
            time.sleep(0.05)

    def stop(self) -> None:
        """End them all."""
        for process in self.processes:
            process.kill()
            process.wait()


def _environment(hosts: Hosts, rank: int, port: int) -> dict[str, str]:
    """What torchrun would say to a rank, where each host has as many."""
    each = N // len(hosts.names)
    return {
        **environment(),
        **{"RANK": str(rank), "WORLD_SIZE": str(N), "LOCAL_RANK": str(rank % each), "LOCAL_WORLD_SIZE": str(each)},
        **{"MASTER_ADDR": hosts.addresses[0], "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "eth0"},
    }


@pytest.fixture
def ranks(hosts: Hosts, tmp_path: Path) -> Iterator[Callable[..., Ranks]]:
    """Starts ranks on the hosts."""
    started: list[Ranks] = []

    def start(**env: str) -> Ranks:
        started.append(Ranks(hosts, tmp_path, **env))
        return started[-1]

    yield start
    for each in started:
        each.stop()


def test_rank_0_listens_where_the_other_host_reaches_it(hosts: Hosts, ranks: Callable[..., Ranks]) -> None:
    """Its port for the other ranks is open on the interface between the hosts, and on no other."""
    job = ranks()
    job.ready()
    _, address, port = job.out(0).split()
    found = hosts.run(0, "ss", "-Hltn", f"sport = :{port}").stdout.split()
    listening = [word.rpartition(":")[0] for word in found if word.endswith(f":{port}")]
    assert (address, listening) == (hosts.addresses[0], [hosts.addresses[0]])


def test_a_lost_host_is_named_with_its_ranks(hosts: Hosts, ranks: Callable[..., Ranks]) -> None:
    """When the cable is out, ranks of either host name the other one, and the ranks on it; they end by themselves."""
    job = ranks(WORKBENCH_PEER_TIMEOUT_S="2")
    job.ready()
    hosts.cut(1)
    codes = [process.wait(60.0) for process in job.processes[:3]]
    assert all(codes), codes
    where = rf"from host {hosts.names[1]} \(ranks 2, 3; .*Ctrl-C\)"
    said = rf"PeerLostError: Rank [23] was lost: no sign of life for 2 s {where}"
    for rank in (0, 1):
        assert re.search(said, job.err(rank)), job.err(rank)
    assert f"PeerLostError: Rank 0 was lost: no sign of life for 2 s, on host {hosts.names[0]}" in job.err(2)
