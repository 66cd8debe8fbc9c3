"""Collectives that read the memory of other ranks' processes, wherever in it an array is."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
from memory_world import backends, drawn, serial
from thorough import quick

from workbench.collectives.reduction import Reduction
from workbench.core.backend.base import Backend
from workbench.transport.shm import collectives, cross_memory, process_memory
from workbench.transport.shm.process_memory import read, works

LENGTHS = [5000, 65_537, 300_001]


@pytest.mark.parametrize("n", quick([2, 3, 4], 3))
@pytest.mark.parametrize(("op", "dtype"), [("sum", "float32"), ("average", "bfloat16"), ("max", "int64")])
def test_sums_are_those_of_one_thread(n: int, op: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bit for bit what one thread gets that adds in the order of the ranks, with factors, for every length."""
    monkeypatch.setattr(collectives, "_STAGED_BYTES", 0)
    used: list[int] = []
    monkeypatch.setattr(cross_memory, "read", lambda *what: (used.append(1), read(*what)))
    reduction = Reduction(op, dtype, *((0.5, 2.0, n) if op == "average" else (1.0, 1.0, 1)))

    def run(backend: Backend) -> list[bool]:
        same = []
        for length in LENGTHS:
            array = drawn(backend.rank, length, dtype)
            backend.collectives.allreduce(array, reduction)
            same.append(array.tobytes() == serial(range(n), length, reduction).tobytes())
        return same

    assert backends(n, run, remote=True) == [[True] * len(LENGTHS)] * n
    assert used


@pytest.mark.parametrize("at_once", [4096, 99_999, 200_000, 1 << 30])
def test_what_is_more_than_one_call_moves_is_read_in_several(at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux moves two gigabytes at once: with any such limit every byte arrives; no memory is an error."""
    monkeypatch.setattr(process_memory, "_AT_ONCE_BYTES", at_once)
    there = np.random.default_rng(1).integers(0, 256, 200_000).astype(np.uint8)
    for length in (0, 1, 4096, 4097, 200_000):
        here = np.zeros(length, np.uint8)
        read(os.getpid(), there.ctypes.data, here)
        assert here.tobytes() == there[:length].tobytes()
    with pytest.raises(OSError, match="0 of 8192 bytes were read: Bad address"):
        read(os.getpid(), 1 << 46, np.empty(8192, np.uint8))


@pytest.mark.parametrize("n", [2, 3])
def test_the_others_parts_are_read_in_their_memory(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """allgather and broadcast bring every rank the right elements, empty parts too, also in a process set."""
    monkeypatch.setattr(collectives, "_PUBLISHED_BYTES", 0)
    used: list[int] = []
    monkeypatch.setattr(cross_memory, "read", lambda *what: (used.append(1), read(*what)))

    def run(backend: Backend) -> bool:
        lengths = [40_000 * rank for rank in range(n)]
        expected = np.repeat(np.arange(n, dtype=np.float64), lengths)
        array = np.where(expected == backend.rank, expected, -1.0)
        backend.collectives.allgather(array, lengths)
        copy = drawn(backend.rank, 30_000, "float32")
        backend.collectives.broadcast(copy, n - 1)
        right = (array == expected).all() and copy.tobytes() == drawn(n - 1, 30_000, "float32").tobytes()
        given, copy[:] = drawn(0, 30_000, "float32"), 0
        given.flags.writeable = False
        backend.collectives.broadcast(copy, 0, given if backend.rank == 0 else None)
        right = right and copy.tobytes() == given.tobytes()
        if backend.rank > 0:
            part = backend.life.subset(range(1, n))
            ones = np.ones(9000)
            part.collectives.allreduce(ones, Reduction("sum", "float64"))
            right = right and bool((ones == n - 1).all())
        return bool(right)

    assert backends(n, run, remote=True) == [True] * n
    assert len(used) == (n - 1) * n  # of each rank: the others' parts but the empty one, and the first broadcast


@pytest.mark.parametrize("n", quick([2, 3, 4], 3))
def test_each_rank_gets_its_part_of_a_sum(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """reducescatter gives the part of what one thread adds up, bit for bit, in place or apart; parts may be empty."""
    used: list[int] = []
    monkeypatch.setattr(cross_memory, "read", lambda *what: (used.append(1), read(*what)))
    reduction = Reduction("average", "float32", 0.5, 2.0, n)
    lengths = [0, 70_001, 5, 130_000][:n]

    def run(backend: Backend) -> bool:
        array, start = drawn(backend.rank, sum(lengths), "float32"), sum(lengths[: backend.rank])
        stop = start + lengths[backend.rank]
        expected = serial(range(n), sum(lengths), reduction)[start:stop].tobytes()
        given, out = array.tobytes(), np.empty(stop - start, "float32")
        assert backend.batches
        assert backend.batches.spares(array.nbytes)
        backend.batches.reducescatter_into(out, array, lengths, reduction)
        apart = (out.tobytes(), array.tobytes()) == (expected, given)
        backend.collectives.reducescatter(array, lengths, reduction)
        return apart and array[start:stop].tobytes() == expected

    assert backends(n, run, remote=True) == [True] * n
    assert used


@pytest.mark.parametrize("n", quick([2, 3, 4], 3))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "int64"])
def test_each_rank_gets_what_the_others_have_for_it(n: int, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """alltoall with parts of every length, among them empty ones, as a matrix that is transposed."""
    used: list[int] = []
    monkeypatch.setattr(cross_memory, "read", lambda *what: (used.append(1), read(*what)))
    lengths = np.random.default_rng(n).integers(0, 30_000, (n, n))  # [sender, receiver]
    lengths[0, -1] = 0

    def run(backend: Backend) -> bool:
        me = backend.rank
        parts = [
            [drawn(n * sender + i, int(length), dtype) for i, length in enumerate(row)]
            for sender, row in enumerate(lengths)
        ]
        recv = np.empty(lengths[:, me].sum(), parts[0][0].dtype)
        send = np.concatenate(parts[me])
        backend.collectives.alltoall(send, lengths[me].tolist(), recv, lengths[:, me].tolist())
        return recv.tobytes() == b"".join(row[me].tobytes() for row in parts)

    assert backends(n, run, remote=True) == [True] * n
    assert used


def test_another_process_is_read() -> None:
    """What stands in a child's memory can be read, as far as the system allows it at all."""
    program = (
        "import ctypes, sys; b = ctypes.create_string_buffer(b'hello'); print(ctypes.addressof(b), flush=True); "
        "sys.stdin.readline()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as child:  # type: ignore[call-overload]
        address = int(child.stdout.readline())
        if not works(child.pid, address, b"hello"):
            child.communicate("\n", timeout=20)
            pytest.skip("this system does not let a process read another one's memory")
        found = np.zeros(5, np.uint8)
        read(child.pid, address, found)
        child.communicate("\n", timeout=20)
    assert found.tobytes() == b"hello"
    with pytest.raises(OSError, match=f"process {child.pid}"):
        read(child.pid, address, np.zeros(5, np.uint8))


def test_memory_that_is_not_there() -> None:
    """An address that nobody has is an error, and no more."""
    with pytest.raises(OSError, match="Bad address"):
        read(os.getpid(), 8, np.zeros(5, np.uint8))
    assert not works(os.getpid(), 8, b"hello")
