"""A ring and two kinds of parameter server, in the simulator and on real ranks, held against the serial run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from workbench.course.simulator import simulate
from workbench.course.simulator.parameter_server import History, Plan, asynchronous, ring, synchronous
from workbench.course.tasks import task

if TYPE_CHECKING:
    from running import Runner

SAMPLES = np.random.default_rng(1).normal(size=(48, 5))
TARGETS = np.random.default_rng(2).normal(size=48)


def of_part(workers: int) -> Any:
    """The mean gradient of least squares over a worker's part of all samples."""

    def gradient(weights: Any, worker: int, step: int) -> Any:
        x, y = np.split(SAMPLES, workers)[worker], np.split(TARGETS, workers)[worker]
        return x.T @ (x @ weights - y) / len(y) * (1 + step % 3)

    return gradient


def plan(workers: int, steps: int = 20, **options: Any) -> Plan:
    """Least squares."""
    return Plan(np.ones(5), of_part(workers), steps, lr=0.05, momentum=0.5, **options)


def serial(steps: int = 20) -> list[Any]:
    """The weights after each step of plain gradient descent with momentum."""
    weights, velocity, found = np.ones(5), np.zeros(5), []
    for step in range(steps):
        gradient = SAMPLES.T @ (SAMPLES @ weights - TARGETS) / len(TARGETS) * (1 + step % 3)
        velocity = 0.5 * velocity + gradient
        weights = weights - 0.05 * velocity
        found.append(weights)
    return found


def apart(history: History) -> float:
    """The largest difference to the serial run."""
    return max(np.abs(a - b).max() for a, b in zip(serial(), history.weights, strict=True))


@pytest.mark.parametrize("workers", [1, 2, 3, 4, 8])
def test_ring_and_synchronous_server_take_the_serial_steps(workers: int) -> None:
    """With equal parts, every step is that of the whole batch; in the ring all ranks hold the same bits."""
    in_ring = simulate(workers, ring, plan(workers)).results
    assert max(map(apart, in_ring)) < 1e-12
    assert len({history.weights[-1].tobytes() for history in in_ring}) == 1
    server, *rest = simulate(1 + workers, synchronous, plan(workers)).results
    assert apart(server) < 1e-12
    assert rest == [None] * workers


@pytest.mark.parametrize("workers", [2, 4, 8])
def test_bytes_on_the_links(workers: int) -> None:
    """Per step: W · K out of the server and into it, K on its workers' links, 2(W - 1)/W · K on the ring's."""
    large, steps = 8 * 100, 3
    pull = Plan(np.ones(large), lambda weights, worker, step: weights, steps, lr=0.1)
    nbytes = 8 * large
    run = simulate(1 + workers, synchronous, pull)
    assert [size for _, size in run.sent()] == [workers * nbytes * steps] + [nbytes * steps] * workers
    assert [size for _, size in run.received()] == [workers * nbytes * steps] + [nbytes * steps] * workers
    run = simulate(workers, ring, pull)
    assert [size for _, size in run.sent()] == [2 * (workers - 1) * nbytes // workers * steps] * workers
    run = simulate(1 + workers, asynchronous, pull)
    assert run.received()[0] == (workers * steps, workers * steps * (nbytes + 8))


@pytest.mark.parametrize("seconds", [(), (1e-3, 1e-3, 1e-3), (1e-3, 2e-3, 9e-3)])
def test_asynchronous_server_counts_staleness(seconds: tuple[float, ...]) -> None:
    """Every gradient asked for is used, as stale as its order says, W - 1 on average at most; twice the same bits."""
    first, second = (simulate(4, asynchronous, plan(3, seconds=seconds)).results[0] for _ in range(2))
    assert len(first.workers) == 3 * 20
    assert set(first.workers) == {0, 1, 2}
    assert first.staleness == task("04.stale").reference(first.workers)
    assert 0 < sum(first.staleness) / len(first.staleness) <= 2
    assert first.times == sorted(first.times)
    assert first.workers == second.workers
    assert (first.weights[-1] == second.weights[-1]).all()


def test_the_slow_worker_is_the_stale_one() -> None:
    """A worker that takes nine times as long brings fewer gradients, and staler ones; the ring waits for it."""
    slow = plan(3, seconds=(1e-3, 1e-3, 9e-3))
    run = simulate(4, asynchronous, slow)
    history = run.results[0]
    of = {
        who: [s for s, w in zip(history.staleness, history.workers, strict=True) if w == who]
        for who in set(history.workers)
    }
    assert len(of[2]) < len(of[0]) / 3
    assert min(of[2][1:]) > max(of[0])
    assert simulate(3, ring, slow).time_s > 20 * 9e-3 > 2 * run.time_s


def test_one_worker_of_an_asynchronous_server_is_serial() -> None:
    """Nobody changes the weights in between: nothing is stale, and the steps are the serial ones."""
    history = simulate(2, asynchronous, plan(1)).results[0]
    assert set(history.staleness) == {0}
    assert apart(history) < 1e-12


def test_large_weights_do_not_block() -> None:
    """Messages above the eager limit, and no early departure at all: no deadlock in any of the three."""
    large = Plan(np.ones(10_000), lambda weights, worker, step: weights, 3, lr=0.1)
    for n, way in ((3, ring), (4, synchronous), (4, asynchronous)):
        assert simulate(n, way, large, eager_bytes=0).results[0].weights[-1].shape == (10_000,)


ON_MPI = """
import sys
sys.path.insert(0, {folder!r})
from mpi4py import MPI
from test_parameter_server import apart, plan
from workbench.course.simulator import parameter_server
from workbench.course.judging.real_ranks import PolledComm
for comm in (MPI.COMM_WORLD, PolledComm(MPI.COMM_WORLD.Dup())):
    in_ring = parameter_server.ring(comm, plan(comm.size, seconds=[9.0] * comm.size))
    server = parameter_server.synchronous(comm, plan(comm.size - 1))
    free = parameter_server.asynchronous(comm, plan(comm.size - 1))
    if comm.rank == 0:
        print(apart(in_ring) < 1e-12, apart(server) < 1e-12, len(free.workers), sorted(set(free.workers)))
        print(0 < sum(free.staleness) / len(free.staleness) <= comm.size - 2, 0 < free.times[-1] < 60)
"""


@pytest.mark.parallel
@pytest.mark.slow
def test_they_run_unchanged_on_mpi(jobs: Runner, tmp_path: Path) -> None:
    """On plain mpi4py and on the polled communicator: the serial steps, every gradient used, no virtual time spent."""
    script = tmp_path / "on_mpi.py"
    script.write_text(ON_MPI.format(folder=str(Path(__file__).parent)))
    done = jobs.mpiexec(4, str(script), deadline_s=60)
    assert done.code == 0, done.report()
    assert done.out(0) == "True True 60 [0, 1, 2]\nTrue True\n" * 2
