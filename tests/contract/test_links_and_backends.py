"""The contracts of a Link and of a Backend, in every world that there is.

In one file, because a world of processes is started once for both.
"""

from __future__ import annotations

import links
import pytest

# --- links --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", links.LINK_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("world", links.HERE)
def test_link(world: str, check: links.Check) -> None:
    """Each check of ``links.py`` holds on every rank of a world of threads, of a part of it, and alone."""
    links.run_here(world, check)


@pytest.mark.parallel
@pytest.mark.timeout(links.JOB_S + 30)
@pytest.mark.parametrize("check", links.LINK_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("world", links.ELSEWHERE)
def test_link_between_processes(world: str, check: links.Check) -> None:
    """The same checks hold on every rank under mpiexec and between plain processes."""
    problem = links.outcome(world)[check.__name__]
    assert not problem, problem


def test_a_broken_link_is_found() -> None:
    """The suite is worth something: a Link that swaps nothing but the order of two messages does not pass."""

    class Swapping:
        def __init__(self, link: links.ThreadLink) -> None:
            self.link, self.rank, self.size = link, link.rank, link.size
            self.kept: list[tuple[object, int]] = []

        def sendrecv(self, send: object, dest: int, recv: object, source: int) -> None:
            if send is None:
                self.link.sendrecv(None, dest, recv, source)
            elif self.kept:
                self.link.sendrecv(send, dest, None, dest)
                self.link.sendrecv(*self.kept.pop(), None, dest)
            else:
                self.kept.append((send, dest))

    def run(thread: links.ThreadLink) -> None:
        link = Swapping(thread)
        links.messages_keep_their_order(links.Rank(link, links.LinkBackend(link), lambda timeout_s: link))

    with pytest.raises((AssertionError, ValueError)):
        links.spawn(2, run, timeout_s=10)


# --- backends -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", links.BACKEND_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("world", links.HERE)
def test_backend(world: str, check: links.Check) -> None:
    """Each check of ``links.py`` holds on every rank of a world of threads, of a part of it, and alone."""
    links.run_here(world, check)


@pytest.mark.parallel
@pytest.mark.timeout(links.JOB_S + 30)
@pytest.mark.parametrize("check", links.BACKEND_CHECKS, ids=lambda check: check.__name__)
@pytest.mark.parametrize("world", links.ELSEWHERE)
def test_backend_between_processes(world: str, check: links.Check) -> None:
    """The same checks hold on every rank under mpiexec and between plain processes."""
    problem = links.outcome(world)[check.__name__]
    assert not problem, problem


def test_a_wrong_sum_is_found() -> None:
    """The suite is worth something: a backend that adds one contribution twice does not pass."""

    def run(thread: links.ThreadLink) -> None:
        backend = links.LinkBackend(thread)
        right = backend.allreduce

        def wrong(array: links.np.ndarray, reduction: links.Reduction) -> links.Traffic:
            if reduction.op == "sum" and thread.rank == 0:
                array += array
            return right(array, reduction)

        backend.allreduce = wrong
        links.allreduce_is_numpys(links.Rank(thread, backend, lambda timeout_s: thread))

    with pytest.raises(AssertionError):
        links.spawn(2, run, timeout_s=10)
