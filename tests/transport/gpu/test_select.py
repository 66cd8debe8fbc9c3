"""Who moves the bytes of arrays on GPUs: all ranks choose alike, say why once, and get what they chose."""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from gpu_world import Log, MpiLink, made_up, ranks

import workbench as hvd
from workbench import config
from workbench.config import Settings
from workbench.errors import DeadlineError, LaunchError
from workbench.job.context import HOLDER
from workbench.transport.gpu import select as gpu_select
from workbench.transport.gpu.select import GpusSeen, Operations, choose, see
from workbench.transport.host.threads import ThreadBootstrap

OLD, NEW = 22809, 23004
THREADS = "threads of one process share a GPU, and its default stream, where one would wait for another"
SHARING = ("NCCL_MULTI_RANK_GPU_ENABLE", "NCCL_NVLS_ENABLE", "NCCL_MAX_CTAS")


def seen(gpus: str, nccl: int = OLD, **fields: Any) -> GpusSeen:
    """A rank that sees the GPUs of these letters."""
    return GpusSeen(tuple(gpus), nccl, **fields)


def on(*nodes: str) -> list[str]:
    """The node of each rank."""
    return list(nodes)


ONE, TWO = on("a", "a"), on("a", "a", "b", "b")
CHOICES: dict[str, tuple[list[GpusSeen], list[str], str, Operations]] = {
    "a GPU for each": ([seen("xy")] * 2, ONE, "auto", Operations("nccl", (0, 1))),
    "each sees its own only": ([seen("x"), seen("y")], ONE, "auto", Operations("nccl", (0, 0))),
    "one rank": ([seen("xy")], on("a"), "auto", Operations("nccl", (0,))),
    "two nodes": ([seen("xy")] * 2 + [seen("zw")] * 2, TWO, "auto", Operations("nccl", (0, 1, 0, 1))),
    "two nodes, alike": ([seen("xy")] * 4, TWO, "auto", Operations("nccl", (0, 1, 0, 1))),
    "nodes in turns": ([seen("xy")] * 4, on("a", "b", "a", "b"), "auto", Operations("nccl", (0, 0, 1, 1))),
    "nodes of different sizes": ([seen("xy")] * 3, on("a", "a", "b"), "auto", Operations("nccl", (0, 1, 0))),
    "an older patch of NCCL": ([seen("xy", 22803), seen("xy", OLD)], ONE, "auto", Operations("nccl", (0, 1))),
    "nobody sees one": ([GpusSeen()] * 2, ONE, "auto", Operations("off")),
    "nobody may use them": (
        [GpusSeen(problem="cupy is not installed: pip")] * 2,
        ONE,
        "auto",
        Operations("off", why="cupy is not installed: pip; tensors on GPUs are copied to the host and back"),
    ),
    "one sees none": (
        [seen("xy"), GpusSeen()],
        ONE,
        "auto",
        Operations("off", why="rank 1 sees no GPU; tensors on GPUs are copied to the host and back"),
    ),
    "one cannot use them": (
        [seen("xy"), GpusSeen(problem="cupy 13.6.0 is too old: version 14 is needed")],
        ONE,
        "auto",
        Operations(
            "off", why="cupy 13.6.0 is too old: version 14 is needed; tensors on GPUs are copied to the host and back"
        ),
    ),
    "off": ([seen("xy")] * 2, ONE, "off", Operations("off")),
    "off, and there are none": ([GpusSeen()] * 2, ONE, "off", Operations("off")),
    "shared, and NCCL is too old": (
        [seen("x")] * 2,
        ONE,
        "auto",
        Operations("staged", (0, 0), "ranks 0, 1 share a GPU, which NCCL 2.28.9 cannot: version 2.30.3 can", True),
    ),
    "shared, and NCCL can": (
        [seen("x", NEW)] * 2,
        ONE,
        "auto",
        Operations("nccl", (0, 0), "ranks 0, 1 share a GPU: right, but slower than one rank on it", True),
    ),
    "shared by hand": (
        [seen("x", NEW), seen("yx", NEW)],
        ONE,
        "nccl",
        Operations("nccl", (0, 1), "ranks 0, 1 share a GPU: right, but slower than one rank on it", True),
    ),
    "more ranks than GPUs": (
        [seen("xy")] * 3,
        on("a", "a", "a"),
        "auto",
        Operations("staged", (0, 1, 0), "ranks 0, 2 share a GPU, which NCCL 2.28.9 cannot: version 2.30.3 can", True),
    ),
    "one node of two shares": (
        [seen("xy")] * 2 + [seen("z")] * 2,
        TWO,
        "auto",
        Operations(
            "staged", (0, 1, 0, 0), "ranks 2, 3 share a GPU, which NCCL 2.28.9 cannot: version 2.30.3 can", True
        ),
    ),
    "shared by threads": ([seen("x", NEW, process=7)] * 2, ONE, "auto", Operations("staged", (0, 0), THREADS, True)),
    "shared by processes": (
        [seen("x", NEW, process=7), seen("x", NEW, process=8)],
        ONE,
        "auto",
        Operations("nccl", (0, 0), "ranks 0, 1 share a GPU: right, but slower than one rank on it", True),
    ),
    "threads with a GPU each": ([seen("xy", process=7)] * 2, ONE, "auto", Operations("nccl", (0, 1))),
    "different NCCLs": (
        [seen("xy", OLD), seen("xy", 22703)],
        ONE,
        "auto",
        Operations("staged", (0, 1), "the ranks have different versions of NCCL: 2.28.9 on rank 0, 2.27.3 on rank 1"),
    ),
    "no NCCL on one": (
        [seen("xy"), seen("xy", 0)],
        ONE,
        "auto",
        Operations("staged", (0, 1), "rank 1 has no NCCL that cupy can use: pip install nvidia-nccl-cu13, or -cu12"),
    ),
    "no NCCL, but an MPI that can": (
        [seen("xy", 0, aware=True)] * 2,
        ONE,
        "auto",
        Operations("mpi", (0, 1), "rank 0 has no NCCL that cupy can use: pip install nvidia-nccl-cu13, or -cu12"),
    ),
    "no NCCL, and one MPI that cannot": (
        [seen("xy", 0, aware=True), seen("xy", 0)],
        ONE,
        "auto",
        Operations("staged", (0, 1), "rank 0 has no NCCL that cupy can use: pip install nvidia-nccl-cu13, or -cu12"),
    ),
    "NCCL before MPI": ([seen("xy", aware=True)] * 2, ONE, "auto", Operations("nccl", (0, 1))),
    "NCCL, insisted on": ([seen("xy")] * 2, ONE, "nccl", Operations("nccl", (0, 1))),
    "MPI, insisted on": ([seen("xy", aware=True)] * 2, ONE, "mpi", Operations("mpi", (0, 1))),
    "staged, insisted on": ([seen("xy", aware=True)] * 2, ONE, "staged", Operations("staged", (0, 1))),
}


@pytest.mark.parametrize("name", CHOICES)
def test_the_choice(name: str) -> None:
    """What all ranks see decides, and rank 0's wish."""
    saw, nodes, wanted, way = CHOICES[name]
    assert choose(saw, nodes, wanted) == way


REFUSALS = {
    "no GPU": ([GpusSeen()] * 2, "nccl", "WORKBENCH_GPU_OPERATIONS=nccl, but no rank sees a GPU."),
    "no GPU to stage from": ([GpusSeen()] * 2, "staged", "WORKBENCH_GPU_OPERATIONS=staged, but no rank sees a GPU."),
    "one sees none": ([seen("x"), GpusSeen()], "nccl", "WORKBENCH_GPU_OPERATIONS=nccl, but rank 1 sees no GPU."),
    "a problem": (
        [seen("x"), GpusSeen(problem="it is broken")],
        "mpi",
        "WORKBENCH_GPU_OPERATIONS=mpi, but it is broken.",
    ),
    "shared": (
        [seen("x")] * 2,
        "nccl",
        "WORKBENCH_GPU_OPERATIONS=nccl, but ranks 0, 1 share a GPU, which NCCL 2.28.9 cannot: version 2.30.3 can.",
    ),
    "shared by threads": ([seen("x", NEW, process=7)] * 2, "nccl", f"WORKBENCH_GPU_OPERATIONS=nccl, but {THREADS}."),
    "different NCCLs": (
        [seen("xy", NEW), seen("xy")],
        "nccl",
        "WORKBENCH_GPU_OPERATIONS=nccl, but the ranks have different versions of NCCL: 2.30.4 on rank 0, "
        "2.28.9 on rank 1.",
    ),
    "an MPI that cannot": (
        [seen("xy")] * 2,
        "mpi",
        "WORKBENCH_GPU_OPERATIONS=mpi, but this MPI does not say that it accepts GPU memory.",
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_cannot_be_had_is_refused(name: str) -> None:
    """Whoever insists on a way gets it, or hears why not; never another one."""
    saw, wanted, text = REFUSALS[name]
    with pytest.raises(LaunchError, match=f"^{re.escape(text)}$"):
        choose(saw, ONE, wanted)


def test_a_refusal_reaches_every_rank() -> None:
    """From init()."""
    with made_up(1, "nccl"), pytest.raises(LaunchError, match="ranks 0, 1 share a GPU"):
        hvd.run_threads(2, lambda: None)


def test_mpi_is_not_replaced_where_it_was_insisted_on() -> None:
    """The library says that it takes the GPUs' memory, but another backend moves the bytes."""
    with made_up(2, "mpi") as world, pytest.MonkeyPatch.context() as patch:
        patch.setattr(MpiLink, "name", "THREADS")
        with pytest.raises((LaunchError, DeadlineError)):  # or that rank 0, which raised it first, has gone
            ranks(world, 2, lambda: None)


# --- what a rank sees -----------------------------------------------------------------------------------


@pytest.fixture
def no_import(monkeypatch: pytest.MonkeyPatch) -> None:
    """Importing cupy fails the test."""

    class Trap(ModuleType):
        def __getattr__(self, name: str) -> Any:
            pytest.fail(f"cupy.{name} was used")

    monkeypatch.setitem(sys.modules, "cupy", Trap("cupy"))


def test_without_a_driver_cupy_is_left_alone(no_import: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is installed; and where GPUs are off, whatever there is."""
    monkeypatch.setattr(gpu_select, "find_spec", lambda name: pytest.fail("looked for cupy"))
    for driver, operations in ((False, "auto"), (False, "nccl"), (True, "off")):
        monkeypatch.setattr(gpu_select, "has_driver", lambda driver=driver: driver)
        assert see(Settings(gpu_operations=operations)) == GpusSeen()


def test_an_unknown_way_is_refused() -> None:
    """With the ways that there are, in the case in which they are to be written."""
    with pytest.raises(LaunchError, match=r"'gdr': choose auto, nccl, mpi, staged, off\.$"):
        see(Settings(gpu_operations="gdr"))
    assert config.settings({"WORKBENCH_GPU_OPERATIONS": "NCCL"}).gpu_operations == "nccl"
    assert config.settings({"HOROVOD_GPU_OPERATIONS": "NCCL"}).gpu_operations == "nccl"


def test_what_is_there_is_seen() -> None:
    """Each GPU by a name of its own, the same in every process; NCCL's version."""
    with made_up(3, nccl_version=NEW):
        first, again = see(Settings()), see(Settings())
    assert len(set(first.gpus)) == 3
    assert first == again
    assert (first.nccl, first.aware, first.problem) == (NEW, False, "")


def test_one_gpu_is_one_whatever_its_number() -> None:
    """As with CUDA_VISIBLE_DEVICES, which gives the same GPU another number in another process."""
    with made_up(2, uuids=[b"A" * 16, b"B" * 16]):
        here = see(Settings()).gpus
    with made_up(1, uuids=[b"A" * 16]):
        assert see(Settings()).gpus[0] == here[0]


def test_what_is_wrong_with_cupy_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not an error: the job can go on without GPUs. Not installed, too old, broken, without NCCL."""
    with made_up(2) as world:
        monkeypatch.setattr(gpu_select, "find_spec", lambda name: None)
        assert see(Settings()) == GpusSeen(
            problem="cupy is not installed: pip install cupy-cuda13x, or -cuda12x for CUDA 12"
        )
    with made_up(2) as world:
        world.cupy.__version__ = "13.6.0"
        assert see(Settings()) == GpusSeen(problem="cupy 13.6.0 is too old: version 14 is needed")
    with made_up(2) as world:

        def broken() -> int:
            raise OSError("libcudart.so.13: cannot open shared object file")

        world.cupy.cuda.runtime.getDeviceCount = broken
        assert see(Settings()) == GpusSeen(
            problem="cupy cannot be used: OSError: libcudart.so.13: cannot open shared object file"
        )
    with made_up(2) as world:
        world.cupy.cuda.nccl.available = False
        assert see(Settings()).nccl == 0


# --- what is said, and what is set ----------------------------------------------------------------------


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is set for NCCL is unset at first, and after the test."""
    for name in SHARING:
        monkeypatch.setenv(name, "")
        del os.environ[name]


def test_what_nccl_needs_where_ranks_share_a_gpu(clean_environment: None) -> None:
    """Leave, no NVLS, and few thread blocks, unless somebody has said how many."""
    config.let_ranks_share_a_gpu()
    assert [os.environ[name] for name in SHARING] == ["1", "0", "1"]
    os.environ["NCCL_MAX_CTAS"] = "4"
    config.let_ranks_share_a_gpu()
    assert os.environ["NCCL_MAX_CTAS"] == "4"


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str | None, str]]:
    """Who said what about GPUs."""
    return [(each.threadName, each.getMessage()) for each in caplog.records if each.getMessage().startswith("GPUs:")]


def as_processes(patch: pytest.MonkeyPatch) -> None:
    """Each rank's thread says that it is a process of its own."""
    ask = gpu_select._ask
    patch.setattr(gpu_select, "_ask", lambda: replace(ask(), process=threading.get_ident()))


def name_of_the_way() -> str:
    """As the timeline writes it, if it does what it is for."""
    import cupy

    assert hvd.allreduce(cupy.ones(5), op=hvd.Sum).tolist() == [float(hvd.size())] * 5
    name: str = HOLDER.get().sets.backend(0, "cuda").name
    return name


@pytest.mark.parametrize(
    ("version", "processes", "name", "text"),
    [
        (NEW, True, "NCCL", "GPUs: ranks 0, 1, 2 share a GPU: right, but slower than one rank on it."),
        (NEW, False, "PINNED+THREADS", f"GPUs: collectives go by way of the host, for {THREADS}."),
        (
            OLD,
            True,
            "PINNED+THREADS",
            "GPUs: collectives go by way of the host, for ranks 0, 1, 2 share a GPU, which NCCL 2.28.9 cannot: "
            "version 2.30.3 can.",
        ),
    ],
)
def test_ranks_that_share_a_gpu(
    version: int,
    processes: bool,
    name: str,
    text: str,
    clean_environment: None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The numbers are right; rank 0 says why it is slow, once."""
    if processes:
        as_processes(monkeypatch)
    with made_up(1, nccl_version=version) as world, caplog.at_level(logging.WARNING):
        assert ranks(world, 3, name_of_the_way) == [name] * 3
        world.check_over()
    assert said(caplog) == [("rank 0", text)]
    assert (os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1") == (name == "NCCL")


def test_nothing_is_said_where_all_is_well(clean_environment: None, caplog: pytest.LogCaptureFixture) -> None:
    """A GPU for each rank; or none at all; or another way by wish. And nothing is set."""
    with caplog.at_level(logging.WARNING):
        with made_up(2) as world:
            assert ranks(world, 2, name_of_the_way) == ["NCCL"] * 2
        with made_up(2, "staged") as world:
            assert ranks(world, 2, name_of_the_way) == ["PINNED+THREADS"] * 2
        with made_up(2, "mpi") as world:
            assert ranks(world, 2, name_of_the_way) == ["MPI_CUDA"] * 2
        assert hvd.run_threads(2, lambda: HOLDER.get().sets.gpu) == [None] * 2
    assert said(caplog) == []
    assert not set(SHARING) & set(os.environ)


# --- several machines -----------------------------------------------------------------------------------


@pytest.fixture
def two_nodes(clean_environment: None, monkeypatch: pytest.MonkeyPatch) -> Callable[[list[str]], None]:
    """The ranks say that they are processes on these nodes; each has the GPUs of this machine: NCCL must allow it."""

    def put(nodes: list[str]) -> None:
        init = ThreadBootstrap.__init__

        def begin(self: ThreadBootstrap, mailboxes: Any, rank: int) -> None:
            init(self, mailboxes, rank)
            self.node = nodes[rank]

        monkeypatch.setattr(ThreadBootstrap, "__init__", begin)
        as_processes(monkeypatch)
        monkeypatch.setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1")

    return put


def across(
    n: int, function: Callable[[], Any], hierarchical: bool | None = True
) -> tuple[list[Any], list[dict[str, int]], Log]:
    """Results by rank; what rank 0 of each communicator called, by communicator; the log. None: as the job finds."""
    with made_up(2, "nccl", nccl_version=NEW) as world, pytest.MonkeyPatch.context() as patch:
        if hierarchical is not None:
            patch.setenv("HOROVOD_HIERARCHICAL_ALLREDUCE", str(int(hierarchical)))
        results = ranks(world, n, function)
        world.check_over()
    log = Log(world.log)
    made = {each.details["communicator"] for each in log.records if each.verb == "init"}
    return results, [dict(log.count(0, one)) for one in sorted(made)], log


def test_two_levels(two_nodes: Callable[[list[str]], None]) -> None:
    """A reduce-scatter inside each machine, an allreduce across, an allgather inside; all else goes the flat way."""
    two_nodes(TWO)

    def rank() -> list[Any]:
        import cupy

        me = hvd.rank()
        found = [hvd.allreduce(cupy.arange(8, dtype=np.float32) * (me + 1), op=hvd.Sum)]
        found.append(hvd.allgather(cupy.full(2, me)))
        return [each.tolist() for each in found]

    results, calls, log = across(4, rank)
    assert results == [[[10.0 * i for i in range(8)], [0, 0, 1, 1, 2, 2, 3, 3]]] * 4
    sizes = [each.details["size"] for each in log.records if each.verb == "init"]
    assert sorted(sizes) == [2] * 8 + [4] * 4
    assert calls[0] == {"allGather": 1}
    assert sorted(calls[1:], key=len) == [{"allReduce": 1}] * 2 + [{"reduceScatter": 1, "allGather": 1}] * 2
    counts = {each["kind"]: each["count"] for one in range(2, 6) for each in log.calls(0, one)}
    assert (counts["reduceScatter"], counts["allReduce"], counts["allGather"]) == (4, 4, 16)  # the last in bytes
    order = [each for each in log.records if each.device == 0 and each.stream and each.verb in counts]
    of_rank_0 = [each.verb for each in order if each.details["communicator"] != 1][-6:]
    assert of_rank_0[0] == "reduceScatter"
    assert of_rank_0[-1] == "allGather"


def test_autotune_tries_both_ways(two_nodes: Callable[[list[str]], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """All ranks change at the same collective, from one level to two and back, and every sum is right."""
    pytest.importorskip("sklearn")
    two_nodes(TWO)
    sampling = {"": 1, "_WARMUP_SAMPLES": 0, "_STEPS_PER_SAMPLE": 1, "_BAYES_OPT_MAX_SAMPLES": 5}
    for name, value in sampling.items():
        monkeypatch.setenv(f"WORKBENCH_AUTOTUNE{name}", str(value))

    def rank() -> list[float]:
        import cupy

        return [
            float(hvd.allreduce(cupy.full(8, hvd.rank() + step, dtype=np.float32), "x", op=hvd.Sum)[0].get())
            for step in range(20)
        ]

    results, calls, _ = across(4, rank, hierarchical=None)
    assert results == [[6.0 + 4 * step for step in range(20)]] * 4
    flat, *levels = calls
    assert 0 < flat["allReduce"] < 20
    assert sorted(each.get("reduceScatter", 0) for each in levels) == [0, 0, *[20 - flat["allReduce"]] * 2]


@pytest.mark.parametrize("length", [0, 1, 2, 3, 7, 8])
def test_every_reduction_over_two_levels(length: int, two_nodes: Callable[[list[str]], None]) -> None:
    """Every op, also with factors, for arrays shorter than the number of ranks; alone and in a batch."""
    two_nodes(on("a", "b", "a", "b"))
    ops = [hvd.Sum, hvd.Average, hvd.Min, hvd.Max, hvd.Product]

    def rank() -> list[list[float]]:
        import cupy

        found = []
        for dtype in (np.float32, np.int16, np.int64):
            x = cupy.asarray(np.arange(length, dtype=dtype) * (hvd.rank() - 1) * 4)
            handles = [hvd.allreduce_async(x, f"{dtype.__name__} {op}", op=op) for op in ops]
            factors = {"prescale_factor": 0.5, "postscale_factor": 4.0}
            handles += [hvd.allreduce_async(x, f"{dtype.__name__} f {i}", op=hvd.Average, **factors) for i in range(2)]
            found += [handle.wait().tolist() for handle in handles]
        return found

    results, _, _ = across(4, rank)
    parts = np.stack([np.arange(length) * (r - 1) * 4 for r in range(4)])
    wanted = [parts.sum(0), parts.sum(0) / 4, parts.min(0), parts.max(0), parts.prod(0), *[parts.sum(0) / 2] * 2]
    assert results == [[each.tolist() for each in wanted] * 3] * 4


def test_adasum_and_process_sets_stay_flat(two_nodes: Callable[[list[str]], None]) -> None:
    """Adasum weighs whole gradients; a set has one communicator of its own."""
    two_nodes(TWO)

    def rank() -> list[Any]:
        import cupy

        some = hvd.add_process_set([0, 1, 2])
        mine = hvd.allreduce(cupy.ones(6), op=hvd.Sum, process_set=some).tolist() if some.included() else None
        hvd.remove_process_set(some)
        apart = cupy.asarray(np.eye(4)[hvd.rank()])
        return [hvd.allreduce(apart, op=hvd.Adasum).tolist(), mine]

    results, calls, log = across(4, rank)
    assert results == [[[1.0] * 4, [3.0] * 6]] * 3 + [[[1.0] * 4, None]]
    assert calls[-1] == {"allReduce": 1}
    assert not any(calls[:-1])
    assert sum(each.verb == "destroy" for each in log.records) == 4 + 3 + 2 * 4


@pytest.mark.parametrize(
    ("nodes", "hierarchical"),
    [(TWO, False), (on("a", "a", "a", "a"), True), (on("a", "a", "a", "b"), True), (on("a", "b", "c", "d"), True)],
    ids=["not asked for", "one machine", "machines of different sizes", "a rank on each"],
)
def test_one_level_where_two_win_nothing(
    nodes: list[str], hierarchical: bool, two_nodes: Callable[[list[str]], None]
) -> None:
    """Then there is one communicator."""
    two_nodes(nodes)

    def rank() -> list[float]:
        import cupy

        return hvd.allreduce(cupy.ones(3), op=hvd.Sum).tolist()

    results, calls, _ = across(4, rank, hierarchical)
    assert results == [[4.0] * 3] * 4
    assert calls == [{"allReduce": 1}]
