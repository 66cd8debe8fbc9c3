"""What goes wrong on a GPU becomes an error, on every rank and in time; afterwards a new job begins as if nothing were.

The GPUs are made up, see gpu_world.py.
"""

from __future__ import annotations

import gc
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cuda_standin import World
from cuda_standin.operations import Op
from gpu_world import ONE_WAY, begin, made_up, ranks, run
from thorough import once_more

import workbench as hvd
from workbench.core.messages import Kind
from workbench.errors import (
    CollectiveError,
    DeadlineError,
    LaunchError,
    MismatchError,
    PeerLostError,
    RankFailedError,
    ShutDownError,
    UnsupportedTensorError,
)
from workbench.job.context import HOLDER
from workbench.transport.gpu import nccl
from workbench.transport.gpu.device import Gpu

pytestmark = pytest.mark.long

FOR_EVER = 10**9


def ones(length: int = 4) -> Any:
    """On this rank's GPU."""
    import cupy

    return cupy.ones(length, np.float32)


def until_error() -> tuple[type[CollectiveError], str, Any]:
    """Reduce until it fails: kind and text of the error, and the last result, for whose GPU nobody has waited."""
    result = None
    try:
        for _ in range(10_000):
            result = hvd.allreduce(ones(), op=hvd.Sum)
    except CollectiveError as error:
        return type(error), str(error), result
    raise AssertionError("nothing failed")


def heals(world: World) -> None:
    """Nothing hangs; another job begins, and leaves nothing behind, nor did the one before."""
    world.faults.failed.clear()
    world.faults.dead.clear()
    world.run_all()
    assert ranks(world, 2, lambda: hvd.allreduce(ones(3), op=hvd.Sum).tolist()) == [[2.0] * 3] * 2
    world.check_over()


def given_back(world: World) -> list[tuple[str, int, int]]:
    """How each rank's communicators ended: how, rank, which."""
    ended = [each for each in world.log if each.verb in ("abort", "destroy")]
    return sorted((each.verb, each.details["rank"], each.details["communicator"]) for each in ended)


# --- a GPU, or the way between two, breaks --------------------------------------------------------------


def test_an_error_that_nccl_reports_later() -> None:
    """The rank whose library says so raises it; the others hear that it left; every communicator is aborted."""

    def rank() -> tuple[type[CollectiveError], str]:
        hvd.add_process_set([0])
        assert hvd.allreduce(ones(), op=hvd.Sum).tolist() == [2.0] * 4
        hvd.barrier()
        if hvd.rank() == 1:
            world.faults.fail_async(1, "the cable is out")
        return until_error()[:2]

    with made_up(2) as world:
        begun = time.monotonic()
        kinds = ranks(world, 2, rank)
        assert time.monotonic() - begun < 8
        assert kinds[1][0] is PeerLostError
        assert "NCCL lost the connection to another rank's GPU" in kinds[1][1]
        assert "the cable is out" in kinds[1][1]
        assert kinds[0][0] in (ShutDownError, PeerLostError)
        assert given_back(world) == [("abort", 0, 1), ("abort", 0, 2), ("abort", 1, 1)]
        heals(world)


def test_an_error_on_one_rank_ends_what_hangs_on_the_others() -> None:
    """A batch that all had agreed on hangs on the other rank's GPU; it ends long before the deadline."""

    def rank() -> None:
        hvd.allreduce(ones())
        hvd.barrier()
        if hvd.rank() == 1:
            world.faults.fail_async(1)
        last = until_error()[2]
        if last is not None:
            last.get()

    with made_up(2) as world:
        world.deadline_s = 1.0  # of get()
        ranks(world, 2, rank)


def test_a_batch_that_was_aborted_has_no_result() -> None:
    """Whoever waits for its handle afterwards gets the error, and not what happens to lie there."""

    def rank() -> None:
        hvd.barrier()
        world.faults.die(1)
        handle = hvd.allreduce_async(ones(), op=hvd.Sum)
        until_error()
        with pytest.raises(CollectiveError):
            handle.wait()

    with made_up(2, settings={"DATA_TIMEOUT_S": "0.3"}) as world:
        ranks(world, 2, rank)


def test_a_rank_whose_gpu_does_nothing_any_more() -> None:
    """All give up at the deadline of a batch; then their streams are free, and every communicator is aborted."""

    def rank() -> tuple[type[CollectiveError], str]:
        hvd.allreduce(ones())
        hvd.barrier()
        world.faults.die(1)
        kind, text, result = until_error()
        result.get()  # whatever it holds
        return kind, text

    with made_up(2, settings={"DATA_TIMEOUT_S": "0.4"}) as world:
        begun = time.monotonic()
        errors = ranks(world, 2, rank)
        assert time.monotonic() - begun < 8
        assert any(kind is DeadlineError and "within 0.4 s (WORKBENCH_DATA_TIMEOUT_S)" in text for kind, text in errors)
        assert given_back(world) == [("abort", 0, 1), ("abort", 1, 1)]
        heals(world)


@ONE_WAY
def test_a_gpu_that_fails(way: str) -> None:
    """A kernel has gone astray: from then on CUDA refuses everything. All hear of it, and nobody waits for ever."""

    def rank() -> str:
        import cupy

        hvd.allreduce(ones())
        hvd.barrier()
        cupy.cuda.Stream.null.delay(FOR_EVER)
        hvd.allreduce_async(ones(), "in flight")
        time.sleep(0.2)
        if hvd.rank() == 0:
            world.errors.append("cudaErrorIllegalAddress: an illegal memory access was encountered")
        return error_of(go_on, CollectiveError)

    def go_on() -> None:
        for number in range(100):
            hvd.allreduce_async(np.ones(4), f"on the host {number}").wait(3)
            time.sleep(0.01)

    with made_up(2, way, settings={"SHUTDOWN_TIMEOUT_S": "0.5"}) as world:
        texts = ranks(world, 2, rank)
    assert not [text for text in texts if "did not finish within" in text]
    assert any(f"GPU {gpu} failed with CUDA's error 700" in text for text in texts for gpu in range(2))


@ONE_WAY
def test_a_stream_that_never_gets_there(way: str) -> None:
    """The caller's own kernel hangs: an error at the deadline, also where the CPU waits for the GPU."""

    def rank() -> type[CollectiveError]:
        import cupy

        x, side = ones(), cupy.cuda.Stream(non_blocking=True)
        with side:
            side.delay(FOR_EVER)
            hvd.allreduce_async(x + 1)
        return until_error()[0]

    with made_up(2, way, settings={"DATA_TIMEOUT_S": "0.4"}) as world:
        begun = time.monotonic()
        errors = ranks(world, 2, rank)
        assert time.monotonic() - begun < 10
        assert DeadlineError in errors


@pytest.mark.parametrize(("many", "a_set_ends"), [(20, False), once_more(40, True)])
def test_a_batch_is_not_late_because_of_those_before_it(many: int, a_set_ends: bool) -> None:
    """Many batches are queued at once, each of which takes a small part of the deadline: all come out."""

    def rank() -> list[list[float]]:
        some = hvd.add_process_set([0])
        x = ones()
        handles = [hvd.allreduce_async(x * i, f"{i}", op=hvd.Sum) for i in range(many)]
        if a_set_ends:
            hvd.remove_process_set(some)  # for which the engine waits until all is done
        results = [handle.wait() for handle in handles]
        return [each.tolist() for each in results]

    using = Gpu.using

    @contextmanager
    def slowly(self: Gpu, *args: Any) -> Iterator[None]:
        with using(self, *args):
            yield
            world.issue(self.stream.queue, Op("something long", lambda: time.sleep(0.075)), "compute")

    settings = {"DATA_TIMEOUT_S": "1.2", "FUSION_THRESHOLD_BYTES": "0"}
    with made_up(2, settings=settings) as world, pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gpu, "using", slowly)
        assert ranks(world, 2, rank) == [[[2.0 * i] * 4 for i in range(many)]] * 2


# --- a rank raises --------------------------------------------------------------------------------------


@ONE_WAY
def test_a_rank_raises_amid_collectives(way: str) -> None:
    """The others get RankFailedError where they wait for it; what was agreed on before comes out, on free streams."""
    errors: list[tuple[type[CollectiveError], str]] = []

    def rank() -> None:
        handles = [hvd.allreduce_async(ones() * i, f"{i}", op=hvd.Sum) for i in range(5)]
        if hvd.rank() == 1:
            handles[2].wait()
            raise KeyError("my own mistake")
        found = [handle.wait() for handle in handles]
        errors.append(until_error()[:2])
        assert [each.tolist() for each in found] == [[2.0 * i] * 4 for i in range(5)]

    with made_up(2, way) as world:
        with pytest.raises(KeyError, match="my own mistake"):
            ranks(world, 2, rank)
        assert [kind for kind, _ in errors] == [RankFailedError]
        assert "my own mistake" in errors[0][1]
        heals(world)


# --- a communicator does not come up --------------------------------------------------------------------


@pytest.fixture
def blocked(monkeypatch: pytest.MonkeyPatch) -> Callable[[World, int], None]:
    """Has the communicators of one rank hang, from that number on."""

    def block(world: World, first: int) -> None:
        library = world.cupy.cuda.nccl
        real, world.init_timeout_s = library.NcclCommunicator, 1.2

        def begin(size: int, unique: bytes, rank: int) -> Any:
            if rank == 1 and int.from_bytes(unique, "little") >= first:
                time.sleep(1.5)
                raise library.NcclError(2, "too late")
            return real(size, unique, rank)

        monkeypatch.setattr(library, "NcclCommunicator", begin)

    return block


def test_a_communicator_that_never_comes_up(blocked: Callable[[World, int], None]) -> None:
    """init() raises at its deadline, on every rank."""
    with made_up(2, settings={"INIT_TIMEOUT_S": "0.3"}) as world:
        blocked(world, 1)
        begun = time.monotonic()
        with pytest.raises((DeadlineError, LaunchError, PeerLostError)):
            ranks(world, 2, lambda: None)
        assert time.monotonic() - begun < 8


def test_a_communicator_that_never_comes_up_says_which_deadline(blocked: Callable[[World, int], None]) -> None:
    """That of init()."""
    with made_up(2, settings={"INIT_TIMEOUT_S": "0.3"}) as world:
        blocked(world, 1)
        with pytest.raises(DeadlineError, match="WORKBENCH_INIT_TIMEOUT_S"):
            ranks(world, 2, lambda: None)


def test_a_sets_communicator_that_never_comes_up(blocked: Callable[[World, int], None]) -> None:
    """All ranks get an error, also the one that does not belong to the set; the world's communicator is aborted."""
    errors: list[type] = []

    def rank() -> None:
        try:
            hvd.add_process_set([0, 1])
            until_error()
        except CollectiveError as error:
            errors.append(type(error))
            raise

    with made_up(3, settings={"INIT_TIMEOUT_S": "0.3"}) as world:
        blocked(world, 2)
        begun = time.monotonic()
        with pytest.raises(CollectiveError):
            ranks(world, 3, rank)
        assert time.monotonic() - begun < 10
        assert [each[0] for each in given_back(world)].count("abort") == 3


def test_init_says_why_nccl_does_not_connect() -> None:
    """NCCL's own words, the rank, and what to do."""
    with made_up(2) as world:
        world.uuids[1] = world.uuids[0]  # NCCL finds out what the ranks did not see

        def see_two(runtime: Any) -> None:
            real = runtime.getDeviceProperties
            runtime.getDeviceProperties = lambda i: {**real(i), "uuid": bytes([i] * 16)}

        see_two(world.cupy.cuda.runtime)
        with pytest.raises(LaunchError, match=r"rank [01] of 2.*Duplicate GPU.*NCCL_DEBUG=INFO.*GPU_OPERATIONS=staged"):
            ranks(world, 2, lambda: None)


def test_an_init_that_fails_gives_communicators_back() -> None:
    """And the thread that makes NCCL's calls ends."""

    def fail(collectives: nccl.NcclCollectives, gpu: object) -> None:
        raise LaunchError("no way")

    before = set(threading.enumerate())
    with made_up(2) as world, pytest.MonkeyPatch.context() as patch:
        patch.setattr(nccl, "_connect_now", fail)
        with pytest.raises(LaunchError, match="no way"):
            ranks(world, 2, lambda: None)
        time.sleep(0.1)
        assert [thread.name for thread in set(threading.enumerate()) - before] == []
        world.check_over()


# --- much in flight -------------------------------------------------------------------------------------


@ONE_WAY
def test_more_batches_than_may_be_in_flight(way: str) -> None:
    """The engine waits for the oldest; all come out right."""
    most = [0]

    def rank() -> list[list[float]]:
        import cupy

        x = ones()
        with cupy.cuda.Stream(non_blocking=True) as side:
            side.wait_event(cupy.cuda.Stream.null.record())
            side.delay(2000)
            handles = [hvd.allreduce_async(x * i, f"{i}", op=hvd.Sum) for i in range(150)]
            results = [handle.wait() for handle in handles]
            return [each.tolist() for each in results]

    using = Gpu.using

    def spy(self: Gpu, *args: Any) -> Any:
        most[0] = max(most[0], len(self._flights))
        return using(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Gpu, "using", spy)
        results, _ = run(2, rank, way, settings={"FUSION_THRESHOLD_BYTES": "0"})
    assert results == [[[2.0 * i] * 4 for i in range(150)]] * 2
    assert most[0] <= 64
    assert way != "nccl" or most[0] == 64  # the other ways wait for the GPU amid each batch


@ONE_WAY
def test_the_job_ends_with_batches_in_flight(way: str) -> None:
    """They come to their end: memory that nobody keeps is not written after it was freed, and nothing is left over."""

    def rank() -> tuple[Any, Any]:
        import cupy

        stream = cupy.cuda.Stream.null
        stream.delay(300)
        handles = [begin(Kind.ALLGATHER, ones(10), "all")]
        handles += [hvd.allreduce_async(ones(100) * (i + 1), f"{i}", op=hvd.Sum) for i in range(6)]
        hvd.barrier()  # all are queued; for most nobody waits
        return handles[4].wait(), hvd.rank()

    copy = Gpu.copy

    def slow(self: Gpu, *args: Any) -> None:
        self.stream.delay(30)
        copy(self, *args)

    for seed in range(2):
        settings = {"FUSION_THRESHOLD_BYTES": "900", "FUSION_WINDOW_S": "1"}
        with made_up(2, way, seed=seed, settings=settings) as world, pytest.MonkeyPatch.context() as patch:
            patch.setattr(Gpu, "copy", slow)
            begun = time.monotonic()
            kept = ranks(world, 2, rank)
            assert time.monotonic() - begun < 5
            gc.collect()  # takes what the job has left behind
            world.run_all()
            assert [array._host.tolist() for array, _ in kept] == [[8.0] * 100] * 2
            del kept
            world.check_over()
            assert {how for how, *_ in given_back(world)} == ({"destroy"} if way == "nccl" else set())


def test_a_communicator_that_takes_its_time_to_end() -> None:
    """The job ends cleanly nevertheless."""
    with made_up(2) as world:
        destroy = world.cupy.cuda.nccl.NcclCommunicator.destroy

        def slow(self: Any) -> None:
            time.sleep(0.3)
            destroy(self)

        world.cupy.cuda.nccl.NcclCommunicator.destroy = slow
        ranks(world, 2, lambda: hvd.allreduce(ones()).tolist())
        world.check_over()
        assert [how for how, *_ in given_back(world)] == ["destroy"] * 2


def test_two_communicators_are_called_in_one_order() -> None:
    """Whatever the order in which the ranks submit: NCCL would hang otherwise."""

    def rank() -> None:
        sets = [hvd.add_process_set(each) for each in ([0, 1], [1, 2])]
        wanted = [(None, f"all {i}") for i in range(6)]
        wanted += [(one, f"{k} {i}") for k, one in enumerate(sets) for i in range(6) if one.included()]
        dice = np.random.default_rng([hvd.rank(), seed])
        handles = []
        for at in dice.permutation(len(wanted)):
            one, name = wanted[at]
            where = {} if one is None else {"process_set": one}
            handles.append(hvd.allreduce_async(ones(), name, op=hvd.Sum, **where))
            time.sleep(dice.random() / 1000)
        for handle in handles:
            handle.wait().get()
        hvd.barrier()

    for seed in range(5):
        _, log = run(3, rank, seed=seed, settings={"FUSION_THRESHOLD_BYTES": "0"})
        orders = [
            [each.details["communicator"] for each in log.records if each.verb == "allReduce" and each.device == gpu]
            for gpu in range(3)
        ]
        for one in orders:
            for other in orders:
                both = set(one) & set(other)
                assert [each for each in one if each in both] == [each for each in other if each in both]


# --- wrong arrays ---------------------------------------------------------------------------------------


def error_of(function: Callable[[], Any], kind: type[Exception]) -> str:
    """The text of the error that it raises."""
    with pytest.raises(kind) as caught:
        function()
    return str(caught.value)


@ONE_WAY
def test_a_mismatch_of_devices_names_each_rank(way: str) -> None:
    """Some on the CPU, some on the GPU; afterwards the ranks go on."""

    def rank() -> str:
        mine = ones() if hvd.rank() % 2 else np.ones(4, np.float32)
        text = error_of(lambda: hvd.allreduce(mine, "mixed"), MismatchError)
        assert hvd.allreduce(ones(), op=hvd.Sum).tolist() == [3.0] * 4
        return text

    texts, _ = run(3, rank, way)
    for text in texts:
        assert "Mismatched allreduce CPU/GPU device selection" in text
        assert "  ranks 0, 2: cpu\n  rank 1: cuda\n" in text


def test_arrays_of_both_kinds_in_one_job() -> None:
    """Each kind goes its way, under names of its own."""

    def rank() -> list[list[float]]:
        handles = [
            hvd.allreduce_async(ones() if i % 2 else np.ones(4, np.float32), f"{i}", op=hvd.Sum) for i in range(8)
        ]
        return [handle.wait().tolist() for handle in handles]

    assert run(2, rank)[0] == [[[2.0] * 4] * 8] * 2


def test_an_array_on_another_ranks_gpu() -> None:
    """Refused at once, with the numbers of both GPUs and the cure."""

    def rank() -> str:
        import cupy

        with cupy.cuda.Device(1 - hvd.rank()):
            wrong = ones()
            text = error_of(lambda: hvd.allreduce(wrong), UnsupportedTensorError)
        hvd.allreduce(ones())
        return text

    for me, text in enumerate(run(2, rank)[0]):
        assert text.startswith(f"The array is on GPU {1 - me}, but rank {me} reduces on GPU {me}")
        assert "cupy.cuda.Device(" in text


def test_the_cure_helps_where_there_are_more_ranks_than_gpus() -> None:
    """What the text says to call, called as it stands, makes arrays that are taken."""

    def rank() -> None:
        import cupy

        mine = cupy.cuda.Device().id
        cupy.cuda.Device(1 - mine).use()
        text = error_of(lambda: hvd.allreduce(ones()), UnsupportedTensorError)
        exec(text.partition("Call ")[2].partition(" before ")[0], {"cupy": cupy, "hvd": hvd})
        hvd.allreduce(ones())

    run(3, rank, "staged", devices=2)


def test_arrays_on_gpus_where_gpus_are_off() -> None:
    """Refused at once, with the cure."""

    def rank() -> str:
        assert HOLDER.get().sets.gpu is None
        text = error_of(lambda: hvd.allreduce(ones()), UnsupportedTensorError)
        assert hvd.allreduce(ones().get(), op=hvd.Sum).tolist() == [2.0] * 4
        return text

    texts, log = run(2, rank, "off")
    assert all("array.get()" in text and "workbench doctor" in text for text in texts)
    assert not [each for each in log.records if each.verb in ("new stream", "init")]


# --- machines without ----------------------------------------------------------------------------------


def test_cupy_is_not_begun_without_a_driver(tmp_path: Path) -> None:
    """Neither by an import nor by init(), though it is installed."""
    (tmp_path / "cupy").mkdir()
    (tmp_path / "cupy" / "__init__.py").write_text("raise SystemExit('cupy was imported')")
    lines = f"""
        import sys
        sys.path.insert(0, {str(tmp_path)!r})
        import numpy
        import workbench as hvd
        from workbench.transport.gpu import select as gpu_select
        assert "cupy" not in sys.modules
        gpu_select.has_driver = lambda: False
        hvd.init(); hvd.allreduce(numpy.ones(3)); hvd.shutdown()
        hvd.run_threads(2, lambda: hvd.allreduce(numpy.ones(3)))
        assert "cupy" not in sys.modules
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(lines)], capture_output=True, text=True, timeout=50, check=False
    )
    assert done.returncode == 0, done.stderr
