"""With the core alone, with each acceleration alone, and with all of them: the same results and the same errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import workbench as wb
from workbench.common.waiting import OwnThread
from workbench.core.protocols import AtOnce, PlainAnnouncer
from workbench.errors import MismatchError
from workbench.job.context import HOLDER

OFF = {
    "WORKBENCH_CACHE_CAPACITY": "0",
    "WORKBENCH_STEADY_STATE": "0",
    "WORKBENCH_EAGER_BYTES": "0",
    "WORKBENCH_FUSION_WINDOW_S": "0",
    "WORKBENCH_FUSION_THRESHOLD_BYTES": "0",
    "WORKBENCH_BUCKET_BYTES": "0",
    "WORKBENCH_CALLER_RUNS": "0",
    "WORKBENCH_PIECE_BYTES": "0",
}
ALONE = {
    "the core": {},
    "cache": {"WORKBENCH_CACHE_CAPACITY": "1024"},
    "steady state": {"WORKBENCH_CACHE_CAPACITY": "1024", "WORKBENCH_STEADY_STATE": "1"},
    "eager": {"WORKBENCH_EAGER_BYTES": "4096"},
    "batching": {"WORKBENCH_FUSION_WINDOW_S": "0.001"},
    "fusion": {"WORKBENCH_FUSION_THRESHOLD_BYTES": str(64 << 20)},
    "buckets": {"WORKBENCH_FUSION_THRESHOLD_BYTES": str(64 << 20), "WORKBENCH_BUCKET_BYTES": str(16 << 20)},
    "caller runs": {"WORKBENCH_CALLER_RUNS": "1"},
    "priorities": {"WORKBENCH_PIECE_BYTES": "1"},
    "all": dict.fromkeys(OFF),
    "all, and autotune": dict.fromkeys(OFF)
    | {"WORKBENCH_AUTOTUNE": "1", "WORKBENCH_AUTOTUNE_WARMUP_SAMPLES": "0", "WORKBENCH_AUTOTUNE_STEPS_PER_SAMPLE": "1"},
}
ALL = ("all", "all, and autotune")
N = 3


@pytest.fixture(params=list(ALONE))
def acceleration(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What is turned on."""
    if "autotune" in request.param:
        pytest.importorskip("sklearn")
    for name, text in (OFF | ALONE[request.param]).items():
        if text is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, text)
    return str(request.param)


def test_the_settings_turn_them_on_and_off(acceleration: str) -> None:
    """With the core alone nothing wraps the coordinator but the watch for faults, nor the announcer, nor batching."""

    def layers() -> tuple[list[str], bool, bool, bool]:
        context = HOLDER.get()
        layer: Any = context.server and context.server._coordinator
        found = []
        while layer is not None:
            found.append(type(layer).__name__)
            layer = getattr(layer, "_inner", None)
        engine: Any = context.engine
        return (
            found,
            isinstance(engine._announcer, PlainAnnouncer),
            type(engine._batching) is AtOnce,
            type(engine._runner) is OwnThread,
        )

    found, plain, at_once, own_thread = wb.run_threads(1, layers)[0]
    assert found[0] == "SupervisingCoordinator"
    assert found[-1] == "CountingCoordinator"
    wrapped = {
        "cache": ["CachingCoordinator"],
        "steady state": ["SteadyCoordinator", "CachingCoordinator"],
        "eager": ["EagerCoordinator"],
        "priorities": ["PriorityCoordinator"],
        "all": ["SteadyCoordinator", "CachingCoordinator", "EagerCoordinator", "PriorityCoordinator"],
    }
    wrapped["all, and autotune"] = ["TuningCoordinator", *wrapped["all"]]
    assert found[1:-1] == wrapped.get(acceleration, [])
    assert plain == (acceleration not in wrapped or acceleration == "priorities")
    assert at_once == (acceleration not in ("batching", *ALL))
    assert own_thread == (acceleration not in ("caller runs", *ALL))


def each_step(check: Callable[[int, int], None]) -> None:
    """All ranks do the same three times: announced in full, known, and in a steady step."""

    def job() -> None:
        for step in range(3):
            check(wb.rank(), step)

    wb.run_threads(N, job)


def test_all_verbs(acceleration: str) -> None:
    """Small and large tensors of every verb are as numpy has them."""

    def check(rank: int, step: int) -> None:
        for length in (3, 30_000):
            mine = [np.arange(length, dtype=np.float32) + r + step for r in range(N)]
            name = f"{length}"
            many = [wb.allreduce_async(mine[rank] * i, f"many{i}.{name}", wb.Sum) for i in range(4)]
            for i, handle in enumerate(many):
                np.testing.assert_allclose(handle.wait(10), sum(mine) * i, rtol=1e-6)
            np.testing.assert_allclose(wb.allreduce(mine[rank], f"mean.{name}"), sum(mine) / N, rtol=1e-6)
            np.testing.assert_array_equal(wb.allreduce(mine[rank], f"max.{name}", wb.Max), mine[-1])
            np.testing.assert_array_equal(wb.allgather(mine[rank][: rank + 1], f"g.{name}").size, sum(range(1, N + 1)))
            np.testing.assert_array_equal(wb.broadcast(mine[rank], 1, f"b.{name}"), mine[1])
            scattered = wb.reducescatter(mine[rank], f"rs.{name}", wb.Sum)
            np.testing.assert_allclose(scattered, np.array_split(sum(mine), N)[rank], rtol=1e-6)
            swapped, splits = wb.alltoall(np.repeat(np.arange(N) + 10 * rank, length), name=f"a.{name}")
            np.testing.assert_array_equal(swapped, np.repeat([rank + 10 * r for r in range(N)], length))
            assert splits.tolist() == [length] * N
        wb.barrier()

    each_step(check)


def test_rows_of_its_own(acceleration: str) -> None:
    """Of an alltoall and a reducescatter each rank gets its own rows: uneven ones, none, and in a process set."""
    splits = np.array([[2, 0, 3], [1, 1, 0], [0, 4, 1]])

    def job() -> None:
        rank, some = wb.rank(), wb.add_process_set([0, 2])
        for step in range(3):
            sent = [
                np.arange(n * 2, dtype=np.float32).reshape(n, 2) + 100 * r + step for r, n in enumerate(splits.sum(1))
            ]
            parts = [np.split(sent[r], np.cumsum(splits[r])[:-1])[rank] for r in range(N)]
            found, rows = wb.alltoall(sent[rank], splits[rank], name="rows")
            np.testing.assert_array_equal(found, np.concatenate(parts))
            assert rows.tolist() == splits[:, rank].tolist()
            found[...] = 0  # the result is the caller's
            whole = np.arange(10, dtype=np.int64).reshape(5, 2)
            found = wb.reducescatter(whole * (rank + 1), "sums", wb.Sum)
            np.testing.assert_array_equal(found, np.array_split(6 * whole, N)[rank])
            found[...] = 0
            if rank != 1:
                found = wb.reducescatter(whole[:1] + rank, "one row", wb.Sum, process_set=some)
                assert found.tolist() == ([[2, 4]] if rank == 0 else [])
                pair, _ = wb.alltoall(np.array([rank, rank + 10]), name="pair", process_set=some)
                assert pair.tolist() == [10 * (rank // 2), 2 + 10 * (rank // 2)]

    wb.run_threads(N, job)


def test_errors_and_what_comes_after_them(acceleration: str) -> None:
    """A mismatch has every rank's value in its text, on every rank; afterwards the same name works."""

    def check(rank: int, step: int) -> None:
        with pytest.raises(MismatchError, match=rf"ranks 0, 1: \[{4 + step}\]\n  rank 2: \[{6 + step}\]"):
            wb.allreduce(np.ones(4 + step + 2 * (rank == 2)), "x")
        assert wb.allreduce(np.ones(4), "x", wb.Sum).tolist() == [N] * 4

    each_step(check)


def test_process_sets_groups_and_join(acceleration: str) -> None:
    """Two ranks by themselves, tensors that start together, and ranks without further data."""

    def job() -> tuple[list[float], int]:
        rank, found = wb.rank(), []
        some = wb.add_process_set([0, 2])
        for step in range(3):
            if rank != 1:
                found.append(float(wb.allreduce(np.full(2, rank + step), "in the set", wb.Sum, process_set=some)[0]))
        for step in range(3 + rank):  # rank 2 has the most data
            found.append(float(wb.allreduce(np.ones(5), f"uneven {step}", wb.Sum)[0]))
        return found, wb.join()

    found = wb.run_threads(N, job)
    sets = [2.0, 4.0, 6.0]
    assert found == [([*sets, 3, 3, 3], 2), ([3, 3, 3, 2], 2), ([*sets, 3, 3, 3, 2, 1], 2)]


def test_a_model_trains_as_alone(acceleration: str) -> None:
    """Parallel SGD with DistributedOptimizer ends where one rank with the whole batch ends."""
    torch = pytest.importorskip("torch")
    import workbench.torch as hvd

    generator = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(6 * N, 4, generator=generator), torch.randn(6 * N, 1, generator=generator)

    def train(part: slice, wrap: bool) -> list[float]:
        torch_model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
        with torch.no_grad():
            for i, param in enumerate(torch_model.parameters()):
                param.copy_(torch.linspace(-1, 1, param.numel()).reshape(param.shape) * (i + 1) / 4)
        optimizer = torch.optim.SGD(torch_model.parameters(), lr=0.1, momentum=0.9)
        if wrap:
            optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=torch_model.named_parameters())
        for _ in range(4):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(torch_model(inputs[part]), targets[part]).backward()
            optimizer.step()
        return [float(x) for param in torch_model.parameters() for x in param.detach().flatten()]

    alone = train(slice(None), wrap=False)
    for each in wb.run_threads(N, lambda: train(slice(6 * wb.rank(), 6 * wb.rank() + 6), wrap=True)):
        np.testing.assert_allclose(each, alone, rtol=1e-4, atol=1e-6)
