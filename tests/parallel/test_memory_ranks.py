"""Collectives over shared memory among processes: sums bit by bit, memory that all reach, sets in turns, Ctrl-C."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from thorough import diagonal, once_more

import workbench
import workbench.torch as hvd
from workbench.collectives.reduction import Reduction, fold, narrow, wire_dtype
from workbench.collectives.ring import chunk_lengths
from workbench.core.messages import Kind
from workbench.job import api
from workbench.job.context import HOLDER
from workbench.transport.shm.staged import SEGMENT_BYTES

pytestmark = pytest.mark.processes("memory that several processes map; signals")

DTYPES = ["float32", "bfloat16", "int32"]  # all are in tests/transport/shm/test_backend.py
SIZES = [1, 3, 5000, SEGMENT_BYTES // 4 - 1, SEGMENT_BYTES // 4 + 1, 3 * SEGMENT_BYTES // 4 + 1]
SUM = Reduction("sum", "float32")


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_eager(job: None) -> Iterator[None]:
    """Small tensors go over the data plane as well."""
    hvd.shutdown()
    os.environ["WORKBENCH_EAGER_BYTES"] = "0"
    hvd.init()
    yield
    del os.environ["WORKBENCH_EAGER_BYTES"]
    hvd.shutdown()
    hvd.init()


@pytest.fixture(autouse=True)
def _needs_shared_memory(in_memory: bool) -> None:
    if not in_memory:
        pytest.skip("needs ranks that share their memory")


@pytest.fixture(params=["cross", "staged"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How long arrays in ordinary memory are reduced: from process to process, or over the stage."""
    if request.param == "staged":
        hvd.barrier()
        monkeypatch.setattr(HOLDER.get().sets.everybody.collectives, "_cross", None)
        hvd.barrier()
    return str(request.param)


def drawn(rank: int, length: int, dtype: str, seed: int = 0) -> np.ndarray:
    """A rank's data, as it travels, for which the order of additions matters."""
    values = np.random.default_rng([seed, rank]).normal(size=length) * 2.0 ** (np.arange(length) % 13 - 6)
    if dtype == "bfloat16":
        return narrow(values.astype(np.float32))
    return (100 * np.abs(values)).astype(dtype) if "int" in dtype else values.astype(dtype)


def tensor_over(array: np.ndarray, dtype: str) -> torch.Tensor:
    """The same memory as a tensor."""
    return (
        torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if dtype == "bfloat16" else torch.from_numpy(array)
    )


def serial(n: int, length: int, reduction: Reduction, seed: int = 0) -> bytes:
    """What one process makes of all ranks' data, one after the other."""
    out = np.empty(length, wire_dtype(reduction.dtype))
    with np.errstate(over="ignore"):
        fold([drawn(rank, length, reduction.dtype, seed) for rank in range(n)], reduction, out)
    return out.tobytes()


def shared(rank: int, length: int, dtype: str, seed: int = 0) -> np.ndarray:
    """A rank's data in memory that the others reach."""
    array = workbench.empty(length, wire_dtype(dtype).name)
    array[:] = drawn(rank, length, dtype, seed)
    return array


@pytest.mark.parametrize(("dtype", "length"), diagonal(DTYPES, SIZES))
def test_sums_have_the_bits_of_a_serial_loop(dtype: str, length: int, way: str, rank: int, n: int) -> None:
    """In shared memory, in ordinary memory, in parts of larger arrays, and where ranks have the one or the other."""
    wanted = serial(n, length, Reduction("sum", dtype))
    everywhere = workbench.empty(length + 7, wire_dtype(dtype).name)
    everywhere[3 : length + 3] = drawn(rank, length, dtype)
    arrays = {
        "in shared memory": shared(rank, length, dtype),
        "in ordinary memory": drawn(rank, length, dtype),
        "in a part": everywhere[3 : length + 3],
        "mixed": shared(rank, length, dtype) if rank % 2 else drawn(rank, length, dtype),
    }
    for where, array in arrays.items():
        hvd.allreduce_(tensor_over(array, dtype), op=hvd.Sum, name=where)
        assert array.tobytes() == wanted, where


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_factors_and_averages(dtype: str, rank: int, n: int) -> None:
    """Scaled before and after, and divided, in every way: the serial reduction's bits."""
    for length in (7, 5000, SEGMENT_BYTES // 2):
        for op, pre, post in ((hvd.Average, 1.0, 1.0), (hvd.Average, 0.5, 4.0), (hvd.Sum, 0.25, 1.0)):
            wanted = serial(n, length, Reduction("sum", dtype, pre, post, n if op is hvd.Average else 1))
            for array in (shared(rank, length, dtype), drawn(rank, length, dtype)):
                hvd.allreduce_(tensor_over(array, dtype), op=op, prescale_factor=pre, postscale_factor=post)
                assert array.tobytes() == wanted


def test_tensors_that_are_packed(rank: int, n: int) -> None:
    """Small tensors of one group share the fusion buffer, and each has the serial bits."""
    for rounds in range(10):
        lengths = [1, 50, 3000, 7, 20_000]
        tensors = [torch.from_numpy(drawn(rank, length, "float32", rounds)) for length in lengths]
        for result, length in zip(hvd.grouped_allreduce(tensors, op=hvd.Sum), lengths, strict=True):
            assert result.numpy().tobytes() == serial(n, length, SUM, rounds)


def test_reducescatter_in_place(rank: int, n: int) -> None:
    """The own part of the caller's array is the serial sum's, bit by bit in shared memory, else but for rounding."""
    for length in (n, 1000, SEGMENT_BYTES // 4 + 3):
        for array, most in ((shared(rank, length, "float32"), 0.0), (drawn(rank, length, "float32"), 1e-4)):
            entry = api.entry(Kind.REDUCESCATTER, array, "scattered", op=hvd.Sum, target=array)
            assert api.submit([entry])[0].wait() is array
            lengths = chunk_lengths(length, n)
            part = slice(sum(lengths[:rank]), sum(lengths[: rank + 1]))
            wanted = np.frombuffer(serial(n, length, SUM), np.float32)[part]
            np.testing.assert_allclose(array[part], wanted, rtol=0, atol=most)


def test_empty(n: int) -> None:
    """Arrays of any shape and dtype, each its own memory; freed ones are given out again."""
    arrays = [
        workbench.empty(shape, dtype)
        for shape in (0, 1, (3, 5), (2, 0), (), (7, 11, 13))
        for dtype in ("float32", "uint8", "bool", "int64", "float16")
    ]
    for i, array in enumerate(arrays):
        array[...] = i % 2
        assert array.flags.c_contiguous
        assert array.flags.writeable
        assert (HOLDER.get().sets.everybody.shared.offset(array) >= 0) == (array.size > 0)
    assert all((array == i % 2).all() for i, array in enumerate(arrays))
    start = workbench.empty(10**6).ctypes.data
    assert all(workbench.empty(10**6).ctypes.data == start for _ in range(5))


@pytest.mark.parametrize("slow", [once_more("first"), "last"])
def test_sets_in_turns_with_a_slow_rank(slow: str, rank: int, n: int) -> None:
    """Sets that overlap, arrays of all sizes in both memories, and a rank that sleeps now and then: always right."""
    some = {2: [[0]], 3: [[0, 1], [1, 2]]}.get(n, [[0, 1], [1, 2], [n - 2, n - 1], [0, 1, n - 1]])
    sets = [hvd.global_process_set, *map(hvd.add_process_set, some)]
    dice, own = random.Random(1), random.Random(rank)
    for step in range(60):
        one, length, name = dice.choice(sets), dice.choice([3, 5000, 100_000]), f"{dice.randrange(3)}"
        inside = dice.random() < 0.5
        ranks = one.ranks or []
        if rank not in ranks:
            continue
        if rank == (0 if slow == "first" else n - 1) and own.random() < 0.2:
            time.sleep(own.random() / 100)
        array = shared(rank, length, "float32", step) if inside else drawn(rank, length, "float32", step)
        hvd.allreduce_(torch.from_numpy(array), op=hvd.Sum, name=name, process_set=one)
        out = np.empty(length, np.float32)
        fold([drawn(r, length, "float32", step) for r in ranks], SUM, out)
        assert array.tobytes() == out.tobytes(), step
    assert all(map(hvd.remove_process_set, sets[1:]))


def test_rank_0_s_settings_count(rank: int, n: int, job_with: Callable[..., None]) -> None:
    """Ranks whose environment says another size of the fusion buffer, or another backend, take the same way."""
    for first, others in ((1 << 20, 0), (100, 1 << 20), (5000, 100)):
        job_with(FUSION_THRESHOLD_BYTES=others if rank else first, BACKEND="mpi" if rank else "auto")
        assert HOLDER.get().sets.everybody.name == "SHM"
        for _ in range(3):
            results = [
                hvd.allreduce_async(torch.full((k,), 1.0), op=hvd.Sum, name=f"t{k}") for k in range(1, 2000, 300)
            ]
            assert all((handle.wait(20) == n).all() for handle in results)


def test_nothing_is_left_of_a_job(n: int) -> None:
    """After shutdown() no memory of the job is mapped, but what somebody still has an array over."""

    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:workbench")

    hvd.shutdown()
    before = mapped()
    hvd.init()
    assert mapped() == before + n
    few = hvd.add_process_set([n - 1])
    if few.included():
        hvd.allreduce(torch.ones(10_000), process_set=few)
    array = workbench.empty(10)
    array[:] = 3
    hvd.shutdown()
    assert mapped() == before + 1
    assert (array == 3).all()
    del array
    assert mapped() == before
    hvd.init()


def test_ctrl_c_amid_a_collective(rank: int, n: int) -> None:
    """Ctrl-C while the engine meets a rank that has fallen asleep amid the collective ends the wait, and no more."""
    backend: Any = HOLDER.get().sets.everybody.collectives
    array = shared(rank, 1000, "float32")
    if rank == n - 1:
        barrier = backend._barrier

        def late() -> None:
            time.sleep(1.5)
            barrier()

        backend._barrier = late
        hvd.allreduce_(torch.from_numpy(array), op=hvd.Sum, name="late")
        backend._barrier = barrier
    else:
        handle = hvd.allreduce_async_(torch.from_numpy(array), op=hvd.Sum, name="late")
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            handle.wait()
        handle.wait()
    assert array.tobytes() == serial(n, 1000, SUM)
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == n
