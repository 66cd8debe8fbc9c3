"""The contracts of a Link and of a Backend, in every world that there is.

In one file, because a world of processes is started once for both.
"""

from __future__ import annotations

import contract_worlds
import numpy as np
import pytest
from backend_checks import BACKEND_CHECKS, a_backend_ends, allreduce_is_numpys
from link_checks import LINK_CHECKS, Check, Rank, messages_keep_their_order

from workbench.core.backend.base import Reduction, Traffic
from workbench.transport.host.threads import ThreadLink, spawn
from workbench.transport.links import link_backend

WORLDS = [*contract_worlds.ELSEWHERE, *contract_worlds.BESIDE_MPI]

# --- links --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", LINK_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("world", contract_worlds.HERE)
def test_link(world: str, check: Check) -> None:
    """Each check of ``link_checks.py`` holds on every rank of a world of threads, of a part of it, and alone."""
    contract_worlds.run_here(world, check)


def test_a_broken_link_is_found() -> None:
    """The suite is worth something: a Link that swaps nothing but the order of two messages does not pass."""

    class Swapping:
        def __init__(self, link: ThreadLink) -> None:
            self.link, self.rank, self.size, self.name, self.close = link, link.rank, link.size, link.name, link.close
            self.kept: list[tuple[object, int]] = []

        def sendrecv(self, send: object, dest: int, recv: object, source: int) -> None:
            if send is None:
                self.link.sendrecv(None, dest, recv, source)
            elif self.kept:
                self.link.sendrecv(send, dest, None, dest)
                self.link.sendrecv(*self.kept.pop(), None, dest)
            else:
                self.kept.append((send, dest))

    def run(thread: ThreadLink) -> None:
        link = Swapping(thread)
        messages_keep_their_order(Rank(link, link_backend(link), lambda timeout_s: link))

    with pytest.raises((AssertionError, ValueError)):
        spawn(2, run, timeout_s=10)


# --- backends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", [*BACKEND_CHECKS, a_backend_ends], ids=lambda check: check.__name__)
@pytest.mark.parametrize("world", contract_worlds.HERE)
def test_backend(world: str, check: Check) -> None:
    """Each check of ``backend_checks.py`` holds on every rank of a world of threads, of a part of it, and alone."""
    contract_worlds.run_here(world, check)


def test_a_wrong_sum_is_found() -> None:
    """The suite is worth something: a backend that adds one contribution twice does not pass."""

    def run(thread: ThreadLink) -> None:
        backend = link_backend(thread)
        right = backend.collectives.allreduce

        def wrong(array: np.ndarray, reduction: Reduction) -> Traffic:
            if reduction.op == "sum" and thread.rank == 0:
                array += array
            return right(array, reduction)

        backend.collectives.allreduce = wrong
        allreduce_is_numpys(Rank(thread, backend, lambda timeout_s: thread))

    with pytest.raises(AssertionError):
        spawn(2, run, timeout_s=10)


# --- between processes, and beside MPI -------------------------------------------------------------------


@pytest.mark.parallel
@pytest.mark.timeout(contract_worlds.JOB_S + 30)
@pytest.mark.parametrize("check", contract_worlds.CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("world", WORLDS)
def test_between_processes(world: str, check: Check) -> None:
    """The same checks hold on every rank under mpiexec and between plain processes."""
    problem = contract_worlds.outcome(world)[check.__name__]
    assert not problem, problem


@pytest.mark.parallel
@pytest.mark.timeout(contract_worlds.JOB_S + 30)
@pytest.mark.parametrize("world", [world for world in WORLDS if world.endswith("@mpiexec")])
def test_mpi_is_left_alone(world: str) -> None:
    """When a backend has ended, the user's script goes on with MPI's own communicator."""
    problem = contract_worlds.outcome(world)[contract_worlds.MPI_LEFT_ALONE]
    assert not problem, problem
