"""The contracts of a Link and of a Backend, in every world that there is, which is started once for both.

What holds on two or three ranks is run on others, and beside MPI, where thorough tests run.
"""

from __future__ import annotations

import contract_worlds
import numpy as np
import pytest
from backend_checks import allreduce_is_numpys
from link_checks import Rank, messages_keep_their_order
from thorough import once_more

from workbench.core.backend.base import Reduction, Traffic
from workbench.transport.host.threads import ThreadLink, spawn
from workbench.transport.links import link_backend

ALWAYS = ("hosts-3@mpiexec", "sockets-2@plain")  # on two hosts there are memory and MPI, too
WORLDS = [*contract_worlds.ELSEWHERE, *contract_worlds.BESIDE_MPI]
QUICK = ("single", "threads-3", "part-2", "threads+shm-3")


@pytest.mark.parametrize("world", [world if world in QUICK else once_more(world) for world in contract_worlds.HERE])
def test_among_threads(world: str) -> None:
    """Every check holds on every rank of a world of threads, of a part of it, and alone."""
    for check in contract_worlds.CHECKS:
        try:
            contract_worlds.run_here(world, check)
        except Exception as error:
            raise AssertionError(check.__name__) from error


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


@pytest.mark.parallel
@pytest.mark.timeout(contract_worlds.JOB_S + 30)
@pytest.mark.parametrize("world", [world if world in ALWAYS else once_more(world) for world in WORLDS])
def test_between_processes(world: str) -> None:
    """The same checks hold on every rank under mpiexec and between plain processes.

    Under mpiexec the user's script then goes on with MPI's own communicator.
    """
    problems = {check: problem for check, problem in contract_worlds.outcome(world).items() if problem}
    assert not problems, "\n".join(problems.values())
