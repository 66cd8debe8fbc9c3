"""Who am I among all ranks? MPI itself is the oracle where mpiexec started them, else the launcher's variables."""

from __future__ import annotations

import os

import pytest
import torch

import workbench.torch as hvd
from workbench import config

pytestmark = pytest.mark.processes("who started the ranks")

UNDER_MPI = config.launch().launcher in ("mpich", "openmpi", "pmix")


@pytest.mark.skipif(not UNDER_MPI, reason="started without MPI")
def test_numbers_are_mpi_s() -> None:
    """All six numbers are what MPI's communicators say."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    local = world.Split_type(MPI.COMM_TYPE_SHARED)
    cross = world.Split(local.rank)
    assert (hvd.rank(), hvd.size()) == (world.rank, world.size)
    assert (hvd.local_rank(), hvd.local_size()) == (local.rank, local.size)
    assert (hvd.cross_rank(), hvd.cross_size()) == (cross.rank, cross.size)
    assert hvd.is_homogeneous() == (world.allreduce(local.size, MPI.MIN) == world.allreduce(local.size, MPI.MAX))
    assert hvd.mpi_threads_supported() == (MPI.Query_thread() == MPI.THREAD_MULTIPLE)
    local.Free()
    cross.Free()


@pytest.mark.skipif(UNDER_MPI, reason="started by MPI")
def test_numbers_are_the_launcher_s() -> None:
    """Without MPI they are what the variables say; all ranks are on this one host."""
    said = {name: int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")}
    assert (hvd.rank(), hvd.size()) == (said["RANK"], said["WORLD_SIZE"])
    assert (hvd.local_rank(), hvd.local_size()) == (said["LOCAL_RANK"], said["LOCAL_WORLD_SIZE"])
    assert (hvd.cross_rank(), hvd.cross_size()) == (0, 1)
    assert hvd.is_homogeneous()
    assert not hvd.mpi_threads_supported()


def test_every_rank_is_there_once(n: int) -> None:
    """The ranks are 0 … size - 1, and each is a process of its own."""
    everyone = hvd.allgather_object((hvd.rank(), os.getpid()))
    assert [rank for rank, _ in everyone] == list(range(n))
    assert len({pid for _, pid in everyone}) == n


def test_ranks_and_hosts_give_one_picture(n: int) -> None:
    """(local rank, cross rank) tells the ranks apart, and the local sizes of one host are the number of its ranks."""
    places = hvd.allgather_object((hvd.local_rank(), hvd.cross_rank(), hvd.local_size()))
    assert len({place[:2] for place in places}) == n
    for host in {cross for _, cross, _ in places}:
        locals_ = sorted((local, size) for local, cross, size in places if cross == host)
        assert locals_ == [(i, len(locals_)) for i in range(len(locals_))]


def test_bytes_arrive_between_all_ranks(rank: int, n: int) -> None:
    """A large and a small allreduce give the closed form."""
    for length in (3, 100_000):
        total = hvd.allreduce(torch.full((length,), float(rank + 1)), op=hvd.Sum)
        assert torch.equal(total, torch.full((length,), n * (n + 1) / 2))
