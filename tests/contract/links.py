"""What every Link and every Backend must do: one suite each, as plain functions that run in any kind of rank.

In a world of threads they run in the test's own process. In a world of processes this file is the program that
each rank runs, ``python links.py FOLDER``: it does all checks and writes down in the folder how each one ended.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from workbench.backends.base import Backend, Link, Reduction, Traffic
from workbench.backends.links import LinkBackend, SubLink
from workbench.backends.node import join_memory
from workbench.backends.shm import ShmBackend, reserved_bytes
from workbench.backends.single import SingleLink
from workbench.backends.threads import Mailboxes, ThreadLink, ThreadMeeting, spawn
from workbench.collectives.reduction import narrow, widen
from workbench.errors import CollectiveError

DTYPES = [*["bool", "uint8", "int8", "int16", "uint16", "int32", "int64", "float16", "bfloat16", "float32", "float64"]]
OPS = {"sum": np.add.reduce, "average": np.add.reduce, "min": np.min, "max": np.max, "product": np.multiply.reduce}
JOB_S = 60.0


@dataclass(frozen=True)
class Rank:
    """What a rank of some world offers to the checks."""

    link: Link
    backend: Backend
    impatient: Callable[[float], Link]
    """Makes another link with a deadline in seconds; all ranks call it."""
    late_s: float = 2.0
    """A deadline in which a link of this world can be made."""


# --- Link ---------------------------------------------------------------------------------------------


def ranks_are_numbered(rank: Rank) -> None:
    """Ranks are 0 … size - 1, and a message to a number reaches the rank that has it."""
    link = rank.link
    seen = [link.rank]
    for step in range(1, link.size):
        got = np.empty(1, np.int64)
        left = (link.rank - step) % link.size
        link.sendrecv(np.array([link.rank]), (link.rank + step) % link.size, got, left)
        assert got[0] == left
        seen.append(int(got[0]))
    assert sorted(seen) == list(range(link.size))


def every_dtype_travels(rank: Rank) -> None:
    """Arrays of every dtype and length, empty ones too, arrive bit by bit at the right neighbour."""
    link = rank.link
    for dtype in (np.dtype(name) for name in DTYPES if name != "bfloat16"):
        for length in (0, 1, 1000):
            data = [
                np.random.default_rng(r).integers(0, 2, length * dtype.itemsize).astype(np.uint8)
                for r in range(link.size)
            ]
            got = np.zeros(length, dtype)
            link.sendrecv(data[link.rank].view(dtype), right(link), got, left(link))
            assert got.tobytes() == data[left(link)].tobytes()


def a_half_can_be_left_out(rank: Rank) -> None:
    """Between every two ranks a message goes one way, while all others do something else."""
    link = rank.link
    for source in range(link.size):
        for dest in range(link.size):
            if source == dest:
                continue
            if link.rank == source:
                link.sendrecv(np.arange(5) + 100 * source, dest, None, dest)
            elif link.rank == dest:
                got = np.zeros(5, np.int64)
                link.sendrecv(None, source, got, source)
                assert got.tolist() == [100 * source + i for i in range(5)]


def messages_keep_their_order(rank: Rank) -> None:
    """Between two ranks messages arrive in the order in which they were sent, long and short and empty ones."""
    link = rank.link
    sizes = [1, 5000, 0, 3, 100_000, 2]
    if link.size == 1:
        return
    if link.rank == 0:
        for i, size in enumerate(sizes):
            link.sendrecv(np.full(size, i, np.int32), 1, None, 1)
    elif link.rank == 1:
        for i, size in enumerate(sizes):
            got = np.full(size, -1, np.int32)
            link.sendrecv(None, 0, got, 0)
            assert (got == i).all()


def what_was_sent_may_be_changed(rank: Rank) -> None:
    """Once ``sendrecv`` has returned, the sender's memory is its own again: what arrives is what it held before."""
    link = rank.link
    if link.size == 1:
        return
    data = np.empty(100_000, np.int32)
    for i in range(5):
        if link.rank == 0:
            data[:] = i
            link.sendrecv(data, 1, None, 1)
            data[:] = -1
        elif link.rank == 1:
            time.sleep(0.01)  # not waiting yet: the message has to be kept somewhere
            link.sendrecv(None, 0, data, 0)
            assert (data == i).all()


def long_messages_go_both_ways(rank: Rank) -> None:
    """All ranks send 4 MB at the same time and nobody waits for ever."""
    link = rank.link
    got = np.empty(1 << 19)
    link.sendrecv(np.full(1 << 19, float(link.rank)), right(link), got, left(link))
    assert (got == left(link)).all()


def parts_of_arrays_travel(rank: Rank) -> None:
    """A piece of a larger array is sent, and received into a piece; what lies beside it is not touched."""
    link = rank.link
    data, got = np.arange(100) + 1000 * link.rank, np.full(100, -1)
    link.sendrecv(data[30:70], right(link), got[20:60], left(link))
    assert got.tolist() == [-1] * 20 + [1000 * left(link) + i for i in range(30, 70)] + [-1] * 40


def what_is_sent_is_only_read(rank: Rank) -> None:
    """An array that cannot be written to can be sent, without a warning."""
    link = rank.link
    data, got = np.arange(10), np.empty(10, np.int64)
    data.setflags(write=False)
    link.sendrecv(data, right(link), got, left(link))
    assert got.tolist() == data.tolist()


def who_never_sends_is_not_waited_for(rank: Rank) -> None:
    """A wait for a message that does not come ends at the link's deadline with a CollectiveError."""
    ranks_are_numbered(rank)  # all ranks are here, so that none is late where it must not be
    link, go_on = rank.impatient(rank.late_s), np.empty(1)
    if link.size == 1:
        return
    if link.rank == 0:
        started = time.monotonic()
        try:
            link.sendrecv(None, 1, np.empty(1), 1)
        except CollectiveError:
            assert 0.5 * rank.late_s < time.monotonic() - started < 10 * rank.late_s + 5
        else:
            raise AssertionError("nothing was sent, but something was received")
        finally:
            rank.link.sendrecv(go_on, 1, None, 1)
    elif link.rank == 1:
        rank.link.sendrecv(None, 0, go_on, 0)


def a_wait_ticks(rank: Rank) -> None:
    """A link that has a ``tick`` calls it several times a second while it waits, so that the rank is seen to live."""
    link: Any = rank.link
    if not hasattr(link, "tick") or link.size == 1:
        return
    if link.rank == 0:
        ticks: list[float] = []
        before, link.tick = link.tick, lambda: ticks.append(time.monotonic())
        got = np.empty(1)
        link.sendrecv(None, 1, got, 1)
        link.tick = before
        assert got[0] == 7
        assert len(ticks) >= 2, f"{len(ticks)} ticks in 0.6 s"
    elif link.rank == 1:
        time.sleep(0.6)
        link.sendrecv(np.array([7.0]), 0, None, 0)


def right(link: Link) -> int:
    """The right neighbour."""
    return (link.rank + 1) % link.size


def left(link: Link) -> int:
    """The left neighbour."""
    return (link.rank - 1) % link.size


# --- Backend ------------------------------------------------------------------------------------------


def numbers(rank: int, length: int, dtype: str) -> np.ndarray:
    """A rank's data: whole numbers so small that no dtype rounds or overflows."""
    low, high = (0, 2) if dtype == "bool" else (0, 3) if dtype.startswith("u") else (-2, 3)
    return np.random.default_rng(100 + rank).integers(low, high, length).astype(np.float64)


def array_of(values: np.ndarray, dtype: str) -> np.ndarray:
    """Numbers as they travel."""
    return narrow(values.astype(np.float32)) if dtype == "bfloat16" else values.astype(dtype)


def values_of(array: np.ndarray, dtype: str) -> np.ndarray:
    """Undo :func:`array_of`."""
    return (widen(array) if dtype == "bfloat16" else array).astype(np.float64)


def reduced(size: int, length: int, op: str, dtype: str) -> np.ndarray:
    """What numpy makes of all ranks' data."""
    result = OPS[op](np.stack([numbers(rank, length, dtype) for rank in range(size)]), axis=0)
    return np.minimum(result, 1) if dtype == "bool" else result


def same_bits(backend: Backend, array: np.ndarray) -> bool:
    """Has every rank the same bits?"""
    mine = np.frombuffer(array.tobytes(), np.uint8)
    everything = np.zeros(len(mine) * backend.size, np.uint8)
    everything[backend.rank * len(mine) : (backend.rank + 1) * len(mine)] = mine
    backend.allgather(everything, [len(mine)] * backend.size)
    return len({piece.tobytes() for piece in np.split(everything, backend.size)}) == 1


def a_backend_knows_its_ranks(rank: Rank) -> None:
    """The backend of all ranks has the Link's numbers, and every global rank has its own number."""
    backend = rank.backend
    assert (backend.rank, backend.size) == (rank.link.rank, rank.link.size)
    assert [backend.index(each) for each in range(backend.size)] == list(range(backend.size))


def allreduce_is_numpys(rank: Rank) -> None:
    """Every op and dtype gives numpy's result in place on every rank, for any length; alone, nothing is sent."""
    backend = rank.backend
    for dtype in DTYPES:
        for op in OPS:
            for length in (0, 1, backend.size + 1, 1000) if dtype == "float32" else (backend.size - 1, 1000):
                array = array_of(numbers(backend.rank, length, dtype), dtype)
                traffic = backend.allreduce(array, Reduction(op, dtype))
                expected = reduced(backend.size, length, op, dtype)
                np.testing.assert_array_equal(values_of(array, dtype), expected, err_msg=f"{op} of {length} {dtype}")
                assert isinstance(traffic, Traffic)
                assert backend.size > 1 or not traffic.messages


def long_allreduces_are_numpys(rank: Rank) -> None:
    """The same for arrays that are too long for an algorithm made for short ones."""
    backend = rank.backend
    for dtype in ("float32", "bfloat16", "int64"):
        array = array_of(numbers(backend.rank, 40_001, dtype), dtype)
        backend.allreduce(array, Reduction("sum", dtype))
        np.testing.assert_array_equal(values_of(array, dtype), reduced(backend.size, 40_001, "sum", dtype))


def rounding_is_the_same_everywhere(rank: Rank) -> None:
    """Where adding rounds, the sum is near the exact one and has the same bits on all ranks."""
    backend = rank.backend
    for dtype, eps in (("float32", 2**-23), ("float64", 2**-52), ("float16", 2**-10), ("bfloat16", 2**-7)):
        for length in (100, 20_000):
            data = [np.random.default_rng(each).normal(size=length) for each in range(backend.size)]
            array = array_of(data[backend.rank], dtype)
            backend.allreduce(array, Reduction("sum", dtype))
            bound = (backend.size + 1) * eps * np.abs(data).sum(axis=0)
            assert (abs(values_of(array, dtype) - np.sum(data, axis=0)) <= bound).all()
            assert same_bits(backend, array)


def allgather_concatenates(rank: Rank) -> None:
    """Every rank ends with all parts in the order of the ranks, however uneven, empty ones too."""
    backend = rank.backend
    for lengths in ([3] * backend.size, [0] * backend.size, [5 * i for i in range(backend.size)]):
        for dtype in ("int16", "float64", "bool"):
            array = np.zeros(sum(lengths), dtype)
            start = sum(lengths[: backend.rank])
            array[start : start + lengths[backend.rank]] = backend.rank + 1
            backend.allgather(array, lengths)
            expected = np.repeat(np.arange(1, backend.size + 1), lengths).astype(dtype)
            np.testing.assert_array_equal(array, expected)


def broadcast_copies(rank: Rank) -> None:
    """Every rank ends with the root's bits, for every root."""
    backend = rank.backend
    for root in range(backend.size):
        for length in (0, 1, 50_000):
            array = np.random.default_rng(backend.rank).normal(size=length)
            backend.broadcast(array, root)
            np.testing.assert_array_equal(array, np.random.default_rng(root).normal(size=length))


def alltoall_transposes(rank: Rank) -> None:
    """Piece i of rank r arrives as piece r of rank i, with all kinds of lengths."""
    backend, n = rank.backend, rank.backend.size
    for lengths in (np.ones((n, n), int), np.zeros((n, n), int), np.add.outer(np.arange(n), 3 * np.arange(n))):
        me = backend.rank
        send = np.concatenate([1000 * me + 10 * to + np.arange(lengths[me, to]) % 10 for to in range(n)])
        recv = np.full(lengths[:, me].sum(), -1, send.dtype)
        backend.alltoall(send, list(lengths[me]), recv, list(lengths[:, me]))
        expected = [1000 * source + 10 * me + np.arange(lengths[source, me]) % 10 for source in range(n)]
        np.testing.assert_array_equal(recv, np.concatenate(expected))


def reducescatter_gives_each_its_part(rank: Rank) -> None:
    """Each rank's part of the array holds the reduction of everybody's part."""
    backend, n = rank.backend, rank.backend.size
    for lengths in ([4] * n, [0] * n, [3 * i for i in range(n)], [9] + [0] * (n - 1)):
        for op, dtype in (("sum", "float32"), ("max", "int64"), ("sum", "bfloat16"), ("min", "float64")):
            total, start = sum(lengths), sum(lengths[: backend.rank])
            array = array_of(numbers(backend.rank, total, dtype), dtype)
            backend.reducescatter(array, lengths, Reduction(op, dtype))
            part = slice(start, start + lengths[backend.rank])
            np.testing.assert_array_equal(values_of(array, dtype)[part], reduced(n, total, op, dtype)[part])


def buffers_can_be_reduced(rank: Rank) -> None:
    """A buffer has room for what was asked, can be seen as any dtype and reduced where it lies, again and again."""
    backend = rank.backend
    for nbytes in (8, 80_000, 16, 0, 160_000):
        buffer = backend.buffer(nbytes)
        array = buffer.array
        assert (array.ndim, array.dtype, array.flags.c_contiguous, array.flags.writeable) == (1, np.uint8, True, True)
        assert len(array) >= nbytes
        for dtype in ("float64", "float32"):
            view = array[:nbytes].view(dtype)
            view[:] = backend.rank + 1
            backend.allreduce(view, Reduction("sum", dtype))
            assert (view == sum(range(1, backend.size + 1))).all()
        buffer.release()


def places(backend: Backend, array: np.ndarray) -> list[int]:
    """Every rank's place of its array; empty if one of them has none, as in a response."""
    found = np.zeros(backend.size, np.int64)
    found[backend.rank] = backend.place(array)
    backend.allgather(found, [1] * backend.size)
    return [] if -1 in found else found.tolist()


def memory_of_the_backend_is_reduced(rank: Rank) -> None:
    """What the backend allocates is memory like other memory, and is reduced and scattered where it lies."""
    backend, n = rank.backend, rank.backend.size
    assert backend.place(np.ones(3)) == -1
    for length in (0, 1, n + 1, 40_001, 700_000):
        memory = backend.allocate(4 * length)
        assert (memory.ndim, memory.dtype, memory.flags.c_contiguous, memory.flags.writeable) == (
            1,
            np.uint8,
            True,
            True,
        )
        assert len(memory) == 4 * length
        array, expected = memory.view(np.float32), reduced(n, length, "sum", "float32")
        array[:] = numbers(backend.rank, length, "float32")
        backend.allreduce(array, Reduction("sum", "float32"), places(backend, array))
        np.testing.assert_array_equal(array, expected)
        array[:] = numbers(backend.rank, length, "float32")
        lengths = [length // n + (i < length % n) for i in range(n)]
        backend.reducescatter(array, lengths, Reduction("sum", "float32"), places(backend, array))
        part = slice(sum(lengths[: backend.rank]), sum(lengths[: backend.rank + 1]))
        np.testing.assert_array_equal(array[part], expected[part])


def what_one_rank_offers_all_reach(rank: Rank) -> None:
    """Memory offered by a rank is one memory for all of them, or is reached by none."""
    backend = rank.backend
    for owner in range(backend.size):
        place = np.array([backend.offer(8 * backend.size) if backend.rank == owner else 0])
        backend.broadcast(place, owner)
        memory = backend.reach(owner, int(place[0]), 8 * backend.size)
        reached = np.array([memory is not None], np.int64)
        backend.allreduce(reached, Reduction("sum", "int64"))
        assert reached[0] in (0, backend.size)
        if memory is not None:
            array = memory.view(np.int64)
            array[backend.rank] = 100 * owner + backend.rank
            backend.allreduce(reached, Reduction("max", "int64"))  # all have written
            assert array.tolist() == [100 * owner + each for each in range(backend.size)]


def some_ranks_work_alone(rank: Rank) -> None:
    """The backend of a part of the ranks reduces among these; then all work together again."""
    backend = rank.backend
    some = list(range(1, backend.size)) or [0]
    if backend.rank in some:
        part = backend.subset(some)
        assert (part.rank, part.size) == (some.index(backend.rank), len(some))
        assert [part.index(each) for each in some] == list(range(len(some)))
        array = np.full(5000, float(backend.rank))
        part.allreduce(array, Reduction("sum", "float64"))
        assert (array == sum(some)).all()
        part.broadcast(array, part.size - 1)
    together = np.ones(3)
    backend.allreduce(together, Reduction("sum", "float64"))
    assert (together == backend.size).all()


LINK_CHECKS = [
    ranks_are_numbered,
    every_dtype_travels,
    a_half_can_be_left_out,
    messages_keep_their_order,
    what_was_sent_may_be_changed,
    long_messages_go_both_ways,
    parts_of_arrays_travel,
    a_wait_ticks,
    who_never_sends_is_not_waited_for,
    what_is_sent_is_only_read,
]
BACKEND_CHECKS = [
    a_backend_knows_its_ranks,
    allreduce_is_numpys,
    long_allreduces_are_numpys,
    rounding_is_the_same_everywhere,
    allgather_concatenates,
    broadcast_copies,
    alltoall_transposes,
    reducescatter_gives_each_its_part,
    buffers_can_be_reduced,
    memory_of_the_backend_is_reduced,
    what_one_rank_offers_all_reach,
    some_ranks_work_alone,
]
Check = Callable[[Rank], None]


# --- worlds in this process ---------------------------------------------------------------------------

HERE = ["single", "threads-1", "threads-2", "threads-3", "threads-4", "part-2", "part-3", "shm-2", "shm-3", "shm-4"]


def run_here(world: str, check: Check) -> None:
    """Run a check in a world within this process; ``part-n``: n of n + 1 threads, in another order."""
    name, _, number = world.partition("-")
    if name == "single":
        check(Rank(SingleLink(), LinkBackend(SingleLink()), lambda timeout_s: SingleLink()))
        return
    n = int(number)
    ranks = [*range(n, 0, -1)] if name == "part" else [*range(n)]
    impatient = Mailboxes(n + (name == "part"), late_s := 0.2)

    def run(thread: ThreadLink) -> None:
        if thread.rank not in ranks:
            return
        link, late = thread, impatient.link(thread.rank)
        backend: Backend = LinkBackend(thread)
        if name == "shm":
            meeting = ThreadMeeting(thread.mailboxes, thread.rank)
            node, problem = join_memory(meeting.exchange, thread.rank, reserved_bytes(100_000), timeout_s=20)
            assert node, problem
            backend = ShmBackend(backend, node, 100_000)
        if name == "part":
            link, late = _Renumbered(SubLink(thread, ranks)), SubLink(late, ranks)
            backend = LinkBackend(link)
        check(Rank(link, backend, lambda timeout_s: late, late_s))

    spawn(n + (name == "part"), run, timeout_s=30)


class _Renumbered:
    """A SubLink that says nothing of the other ranks, so that the backend over it takes its ranks for all there are."""

    def __init__(self, link: Link) -> None:
        self.rank, self.size, self.sendrecv = link.rank, link.size, link.sendrecv


# --- worlds of processes ------------------------------------------------------------------------------

ELSEWHERE = ["mpi-2", "mpi-3", "gloo-2", "shm-2", "shm-3", "hosts-3", "hosts-4"]
_LAUNCHERS = ("PMI", "HYDRA_", "MPI_LOCAL", "OMPI_", "PRTE_", "SLURM_", "WORKBENCH_", "HOROVOD_")


@cache
def outcome(world: str) -> dict[str, str]:
    """Check → what went wrong in a world of processes, empty if nothing did. The world is started once."""
    name, _, n = world.partition("-")
    with tempfile.TemporaryDirectory() as folder, Path(folder, "said").open("w+b") as said:
        processes = [
            subprocess.Popen(
                [*words, folder], env=env, stdin=subprocess.DEVNULL, stdout=said, stderr=said, start_new_session=True
            )
            for words, env in _commands(name, int(n))
        ]
        try:
            deadline = time.monotonic() + JOB_S
            while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        files = [path.read_text().splitlines() for path in Path(folder).glob("*.json")]
        said.seek(0)
        return _judge(
            [json.loads(line) for lines in files for line in lines], said.read().decode(errors="replace"), int(n)
        )


def _commands(name: str, n: int) -> Iterator[tuple[list[str], dict[str, str]]]:
    env = {key: text for key, text in os.environ.items() if not key.startswith(_LAUNCHERS)}
    env |= {"WORKBENCH_BACKEND": name, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = [sys.executable, "-W", "error", "-X", "faulthandler", str(Path(__file__).resolve())]
    if name in ("mpi", "shm", "hosts"):
        from workbench.launch.mpi import command

        # Several hosts on one machine: MPI takes ranks of different names for ranks that share no memory.
        hosts = ["-launcher", "fork", "-hosts", "here:2,there:2"] if name == "hosts" else []
        env |= {"WORKBENCH_BACKEND": "auto", "WORKBENCH_HIERARCHICAL_BYTES": "100"} if name == "hosts" else {}
        starter, *rest = command(n)
        yield [starter, *hosts, *rest, *words], env
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    for rank in range(n):
        meeting = {"RANK": str(rank), "WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        yield words, env | meeting


def _judge(ends: list[tuple[str, str]], said: str, n: int) -> dict[str, str]:
    ended: dict[str, list[str]] = {}
    for check, problem in ends:
        ended.setdefault(check, []).append(problem)
    checks = [check.__name__ for check in LINK_CHECKS + BACKEND_CHECKS]
    problems = {check: "\n".join(filter(None, ended.get(check, []))) for check in checks}
    for check in checks:
        if not problems[check] and len(ended.get(check, [])) < n:
            problems[check] = f"only {len(ended.get(check, []))} of {n} ranks came through it; they said:\n{said}"
    return problems


def main(folder: Path) -> None:
    """One rank: do every check and write down how it ended."""
    from workbench import config
    from workbench.backends.select import meet

    settings = replace(config.settings(), data_timeout_s=20.0)
    backend = meet(config.launch(), settings).backend()

    def impatient(timeout_s: float) -> Link:
        return link_of(meet(config.launch(), replace(settings, data_timeout_s=timeout_s)).backend())

    rank = Rank(link_of(backend), backend, impatient)
    with (folder / f"{backend.rank}.json").open("w") as ends:
        for check in BACKEND_CHECKS + LINK_CHECKS:
            problem = ""
            try:
                check(rank)
            except BaseException as error:  # noqa: BLE001 - it is written down, and the parent judges it
                problem = f"rank {backend.rank}: {''.join(traceback.format_exception(error))}"
            print(json.dumps((check.__name__, problem)), file=ends, flush=True)


def link_of(backend: Any) -> Link:
    """The backend's own, or that of the one beneath it."""
    return getattr(backend, "beneath", backend).link  # type: ignore[no-any-return]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
