"""What starts ranks on several hosts today: one allreduce under each launcher."""

from __future__ import annotations

import shutil
import sys

import pytest
from hosts import Hosts
from running import environment

from workbench.launch.start import mpi

pytestmark = [pytest.mark.integration, pytest.mark.parallel]

SCRIPT = r"""
import socket, sys, numpy as np, workbench as hvd
hvd.init()
total = hvd.allreduce(np.full(3, hvd.rank() + 1.0), op=hvd.Sum, name="total")
said = hvd.rank(), hvd.size(), hvd.local_rank(), hvd.cross_rank(), socket.gethostname(), *total
sys.stdout.write(" ".join(map(str, said)) + "\n")  # in one piece, for launchers mix what ranks write
hvd.shutdown()
"""
RIGHT = [f"{rank} 4 {rank % 2} {rank // 2} wb{rank // 2 + 1} 10.0 10.0 10.0" for rank in range(4)]


# Over UCX, MPICH 5.0.2 tells srun 4 KB of each host's memory, of which an address is only the beginning. By the rest's
# content, lines get longer than 1024 bytes; Slurm 22.05 cuts those, and MPI_Init fails or hangs. libfabric's are short.
SHORT_ADDRESSES = {"MPIR_CVAR_CH4_NETMOD": "ofi"}


def results(hosts: Hosts, *launcher: str, **env: str) -> list[str]:
    """What the ranks print, sorted."""
    done = hosts.run(0, *launcher, sys.executable, "-c", SCRIPT, timeout_s=50.0, env=environment() | env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "c10d" not in done.stderr, done.stderr
    return sorted(done.stdout.splitlines())


@pytest.fixture
def mpiexec() -> str:
    """MPICH's, which starts its proxies by ssh."""
    if mpi.library_vendor() != "MPICH":
        pytest.skip(f"mpi4py uses {mpi.library_vendor()}, and this needs MPICH")
    return shutil.which("mpiexec.hydra") or shutil.which("mpiexec") or "mpiexec"


def test_mpiexec_by_ssh(hosts: Hosts, mpiexec: str) -> None:
    """Ranks that mpiexec starts over ssh find each other, and who shares a host."""
    assert results(hosts, mpiexec, "-launcher", "ssh", "-hosts", "wb1:2,wb2:2", "-n", "4") == RIGHT


@pytest.mark.usefixtures("mpiexec")
def test_srun_with_mpi(slurm: Hosts) -> None:
    """So do ranks of MPI that srun starts."""
    assert results(slurm, "srun", "-N2", "--ntasks-per-node=2", "--mpi=pmi2", **SHORT_ADDRESSES) == RIGHT


@pytest.mark.thorough
def test_srun_without_mpi(slurm: Hosts) -> None:
    """So do ranks that srun starts without MPI: they use TCP. No name of a host is looked up that DNS alone knows."""
    assert results(slurm, "srun", "-N2", "--ntasks-per-node=2", "--mpi=none") == RIGHT


def test_mpiexec_in_an_allocation(slurm: Hosts, mpiexec: str) -> None:
    """mpiexec learns the hosts from Slurm, and starts its proxies by srun."""
    assert results(slurm, "salloc", "-N2", "--ntasks-per-node=2", mpiexec, "-n", "4") == RIGHT
