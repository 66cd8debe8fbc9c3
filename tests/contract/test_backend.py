"""The contract of a Backend, in every world that there is."""

from __future__ import annotations

import links
import pytest


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
