"""The whole runtime, with ranks that are threads: the verbs against numpy, every order, and every kind of failure."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from checks import VERBS, cases
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from list_checks import LISTS
from modes import Mode
from running import eventually

import workbench as wb
from workbench.core.messages import Kind, Raised
from workbench.errors import (
    CollectiveError,
    DeadlineError,
    DuplicateNameError,
    MismatchError,
    MissingRanksError,
    NotInitializedError,
    RankFailedError,
    ShutDownError,
    UnsupportedTensorError,
)
from workbench.job import api
from workbench.job.api import add_process_set, remove_process_set
from workbench.job.context import HOLDER, Context
from workbench.runtime.events import Began

WORLDS = [1, 2, 4]
OPS = {wb.Sum: np.add.reduce, wb.Average: np.mean, wb.Min: np.min, wb.Max: np.max, wb.Product: np.multiply.reduce}
# A busy machine is no failure: no deadline per example.
PROPERTY = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=25)


@pytest.fixture(autouse=True)
def _quick_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_HEARTBEAT_S", "0.1")
    monkeypatch.setenv("WORKBENCH_FAILED_RANK_GRACE_S", "0.1")
    monkeypatch.setenv("WORKBENCH_SHUTDOWN_TIMEOUT_S", "5")


def run(n: int, function: Callable[[], Any]) -> list[Any]:
    """Results by rank; a world that hangs ends after a while."""
    return wb.run_threads(n, function, timeout_s=20.0)


def caught(function: Callable[[], Any], kind: type[Exception] = CollectiveError) -> str:
    """The class and text of the error that a function raises."""
    with pytest.raises(kind) as raised:
        function()
    return f"{type(raised.value).__name__}: {raised.value}"


def numbers(rank: int, shape: tuple[int, ...], dtype: str = "float64") -> np.ndarray:
    """A rank's data: small whole numbers, so that no order of adding rounds."""
    low = 0 if dtype.startswith("u") else -4
    return np.random.default_rng(rank).integers(low, 5, shape).astype(dtype)


# --- the verbs against numpy --------------------------------------------------------------------------


@pytest.mark.parametrize("n", WORLDS)
def test_world_numbers(n: int) -> None:
    """Each thread is a rank of its own, all on one node."""

    def numbers_of_rank() -> tuple[int, ...]:
        return wb.rank(), wb.size(), wb.local_rank(), wb.local_size(), wb.cross_rank(), wb.cross_size()

    assert run(n, numbers_of_rank) == [(rank, n, rank, n, 0, 1) for rank in range(n)]
    assert run(n, wb.is_homogeneous) == [True] * n


@pytest.mark.parametrize("n", [1, 2, 3])
def test_the_contract_of_the_verbs(n: int) -> None:
    """Each check of ``checks.py`` and ``list_checks.py`` holds: verbs, arguments, errors, and what comes next."""

    def hold() -> None:
        for check in checks:
            check(Mode())
            wb.barrier()

    checks = [check for _, check in cases([Mode], [*VERBS, *LISTS])]
    run(n, hold)


@pytest.mark.parametrize("n", WORLDS)
def test_memory_in_any_order(n: int) -> None:
    """Transposed, strided and read-only arrays are taken as what they mean."""

    def reduce() -> bool:
        base = numbers(wb.rank(), (4, 6))
        base.setflags(write=False)
        expected = sum(numbers(rank, (4, 6)) for rank in range(n))
        views = [lambda a: a, lambda a: a.T, lambda a: a[::2, ::-3], lambda a: np.asfortranarray(a)]
        return all((wb.allreduce(view(base), op=wb.Sum) == view(expected)).all() for view in views)

    assert run(n, reduce) == [True] * n


@pytest.mark.parametrize("n", WORLDS)
def test_barrier(n: int) -> None:
    """Nobody comes out before the last one has gone in."""
    inside = []

    def meet() -> int:
        time.sleep(0.03 * wb.rank())
        inside.append(wb.rank())
        wb.barrier()
        return len(inside)

    assert run(n, meet) == [n] * n


def test_what_cannot_travel_is_refused_at_once() -> None:
    """Unknown dtypes, unknown roots and wrong splits raise on the spot, and the job goes on."""

    def wrong() -> float:
        caught(lambda: wb.allreduce(np.zeros(2, complex)), UnsupportedTensorError)
        caught(lambda: wb.allreduce(np.array(["text"])), UnsupportedTensorError)
        caught(lambda: wb.broadcast(np.zeros(2), root_rank=2), ValueError)
        caught(lambda: wb.broadcast(np.zeros(2), root_rank=-1), ValueError)
        caught(lambda: wb.alltoall(np.zeros(3)), ValueError)
        for splits in ([1], [1, 1], [4, -1], []):
            caught(lambda splits=splits: wb.alltoall(np.zeros(3), splits), ValueError)
        return float(wb.allreduce(np.ones(1), op=wb.Sum)[0])

    assert run(2, wrong) == [2.0, 2.0]


def test_without_a_job_the_verbs_say_so() -> None:
    """Before init() and after a world has ended every verb raises NotInitializedError, a ValueError."""
    run(2, wb.barrier)
    for call in (wb.rank, wb.size, wb.barrier, lambda: wb.allreduce(np.ones(1))):
        assert "init()" in caught(call, NotInitializedError)
    assert not wb.is_initialized()


# --- any order ----------------------------------------------------------------------------------------


def test_handles() -> None:
    """A handle can be asked and waited for; the caller's thread goes on in the meantime."""

    def later() -> float:
        if wb.rank() == 1:
            time.sleep(0.1)
        handle = wb.allreduce_async(np.ones(3), "x", wb.Sum)
        if wb.rank() == 0:
            assert not wb.poll(handle)
        result = wb.synchronize(handle)
        assert wb.poll(handle)
        assert wb.synchronize(handle) is result
        return float(result.sum())

    assert run(2, later) == [6.0] * 2


def test_unnamed_tensors_are_matched_in_order() -> None:
    """Without names the i-th call of a verb on one rank belongs to the i-th on the others, each verb by itself."""

    def many() -> list[Any]:
        handles = [wb.allreduce_async(np.full(2, float(i)), op=wb.Sum) for i in range(10)]
        gathered = wb.allgather(np.array([wb.rank()])).tolist()
        return [float(handle.wait()[0]) for handle in handles] + gathered

    assert run(3, many) == [[3.0 * i for i in range(10)] + [0, 1, 2]] * 3


@st.composite
def loads(draw: st.DrawFn) -> tuple[int, dict[str, str], list[tuple[str, int, wb.ReduceOp, str]], list[list[int]]]:
    """(ranks, settings, tensors as (name, length, op, dtype), for each rank its order of submission)."""
    n = draw(st.integers(1, 3))
    tensors = [
        (
            f"grad{i}",
            draw(st.integers(0, 40)),
            draw(st.sampled_from([wb.Sum, wb.Max])),
            draw(st.sampled_from(["float32", "int64"])),
        )
        for i in range(draw(st.integers(1, 8)))
    ]
    env = {
        "WORKBENCH_FUSION_THRESHOLD_BYTES": str(draw(st.sampled_from([0, 64, 256, 1 << 20]))),
        "WORKBENCH_FUSION_WINDOW_S": str(draw(st.sampled_from([0, 0.001, 0.02]))),
        "WORKBENCH_CACHE_CAPACITY": str(draw(st.sampled_from([0, 2, 1024]))),
    }
    return n, env, tensors, [draw(st.permutations(range(len(tensors)))) for _ in range(n)]


@PROPERTY
@given(loads())
def test_every_order_gives_numpys_results(
    load: tuple[int, dict[str, str], list[tuple[str, int, wb.ReduceOp, str]], list[list[int]]],
) -> None:
    """Each rank submits in its own order, three times over, with any fusion and any cache: all results are numpy's."""
    n, env, tensors, orders = load

    def step() -> list[dict[str, np.ndarray]]:
        rounds = []
        for _ in range(3):
            handles = {}
            for i in orders[wb.rank()]:
                name, length, op, dtype = tensors[i]
                handles[name] = wb.allreduce_async(numbers(wb.rank(), (length,), dtype), name, op)
            rounds.append({name: handle.wait(20) for name, handle in handles.items()})
        return rounds

    with pytest.MonkeyPatch.context() as patch:
        for name, value in env.items():
            patch.setenv(name, value)
        results = run(n, step)
    for name, length, op, dtype in tensors:
        expected = OPS[op](np.stack([numbers(rank, (length,), dtype) for rank in range(n)]), axis=0)
        for rounds in results:
            for one in rounds:
                np.testing.assert_array_equal(one[name], expected)


def test_several_threads_of_one_rank_may_submit() -> None:
    """Threads of a rank submit at the same time; every tensor is reduced once."""

    def step() -> list[float]:
        context = HOLDER.get()
        results: dict[int, float] = {}

        def work(me: int) -> None:
            HOLDER.set(context, thread_only=True)
            for i in range(20):
                results[20 * me + i] = float(wb.allreduce(np.array([float(i)]), f"{me}.{i}", wb.Sum)[0])

        threads = [threading.Thread(target=work, args=(me,)) for me in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [results[i] for i in range(80)]

    assert run(2, step) == [[2.0 * i for i in range(20)] * 4] * 2


def test_a_small_cache_does_not_change_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a cache for two names and a dozen in a loop, ids are evicted while announcements of them are on the way."""
    monkeypatch.setenv("WORKBENCH_CACHE_CAPACITY", "2")

    def steps() -> bool:
        order = np.random.default_rng(wb.rank())
        for step in range(30):
            handles = [
                (i, wb.allreduce_async(np.full(3, float(i + step)), f"t{i}", wb.Sum)) for i in order.permutation(5)
            ]
            if not all((handle.wait(10) == 3 * (i + step)).all() for i, handle in handles):
                return False
        return True

    assert run(3, steps) == [True] * 3


def test_shapes_may_change_from_step_to_step() -> None:
    """A name that comes with another shape, as the last batch of an epoch does, is negotiated anew."""

    def steps() -> list[int]:
        return [wb.allreduce(np.ones(length), "x", wb.Sum).size for length in (4, 4, 3, 4, 4, 0, 4)]

    assert run(2, steps) == [[4, 4, 3, 4, 4, 0, 4]] * 2


@pytest.mark.parametrize("capacity", ["0", "2", "1024"])
def test_ranks_with_less_data_join(monkeypatch: pytest.MonkeyPatch, capacity: str) -> None:
    """Who has no more data joins: the others' sums go on without it, all learn who came last, then go on together."""
    monkeypatch.setenv("WORKBENCH_CACHE_CAPACITY", capacity)

    def epochs() -> list[Any]:
        said: list[Any] = []
        for epoch in range(3):
            for _ in range(2 * wb.rank() + 1):
                handles = [wb.allreduce_async(np.full(2, i + 1.0), f"grad{i}", wb.Sum) for i in range(3)]
                said.append([float(handle.wait(10)[0]) for handle in handles])
            said.append(wb.join())
            said.append(wb.allgather(np.array([wb.rank() + epoch])).tolist())
        return said

    for me, said in enumerate(run(3, epochs)):
        expected: list[Any] = []
        for epoch in range(3):
            with_data = [sum(step <= 2 * rank for rank in range(3)) for step in range(2 * me + 1)]
            expected += [[(i + 1.0) * ranks for i in range(3)] for ranks in with_data]
            expected += [2, [epoch, epoch + 1, epoch + 2]]
        assert said == expected


def test_process_sets_work_side_by_side() -> None:
    """Two overlapping sets reduce under the same names among their own members, in whatever order."""

    def step() -> list[float]:
        me, sums = wb.rank(), list[float]()
        sets = [add_process_set([0, 1, 3]), add_process_set([1, 2])]
        mine = [one for one in sets if one.included()]
        for one in mine if me % 2 else reversed(mine):
            handles = [wb.allreduce_async(np.full(2, 10.0**me), f"x{i}", wb.Sum, process_set=one) for i in range(3)]
            sums += [float(handle.wait(10)[0]) for handle in handles]
        wb.barrier()
        assert all(map(remove_process_set, sets))
        return [len(mine), *sorted(sums)]

    one, other = 1011.0, 110.0
    assert run(4, step) == [[1, *[one] * 3], [2, *[other] * 3, *[one] * 3], [1, *[other] * 3], [1, *[one] * 3]]


def test_removing_a_process_set_ends_what_waits_in_it() -> None:
    """A tensor that not all members had submitted when its set was removed ends with an error instead of never."""

    def step() -> float:
        both = add_process_set([0, 1])
        handle = wb.allreduce_async(np.ones(2), "x", process_set=both) if wb.rank() == 0 else None
        wb.barrier()
        remove_process_set(both)
        if handle is not None:
            with pytest.raises(CollectiveError) as raised:
                handle.wait(3)
            assert not isinstance(raised.value, DeadlineError)
        return float(wb.allreduce(np.ones(2), "x", wb.Sum)[0])

    assert run(3, step) == [3.0] * 3


# --- failures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 4])
def test_a_rank_that_raises_is_named_to_the_others(n: int) -> None:
    """All the others get a RankFailedError with the rank and its exception, at once, instead of waiting for it."""
    texts: dict[int, str] = {}

    def step() -> None:
        wb.barrier()
        if wb.rank() == 1:
            raise ZeroDivisionError("no data")
        texts[wb.rank()] = caught(lambda: wb.allreduce(np.ones(2), "loss"), RankFailedError)

    with pytest.raises(ZeroDivisionError):
        run(n, step)
    assert sorted(texts) == [rank for rank in range(n) if rank != 1]
    for text in texts.values():
        assert "Rank 1 raised" in text
        assert "no data" in text
        assert "'allreduce.loss'" in text


def test_the_error_of_the_rank_that_failed_first_is_raised() -> None:
    """The caller of run_threads sees the cause, not what followed from it on the other ranks."""

    def step() -> None:
        if wb.rank() == 1:
            raise ZeroDivisionError("the cause")
        wb.allreduce(np.ones(2), "x")

    for _ in range(10):
        with pytest.raises(ZeroDivisionError, match="the cause"):
            run(3, step)


def test_a_wait_in_a_thread_that_is_waited_for_is_answered() -> None:
    """Ranks whose threads wait for each other are told so, though the threads that began them have submitted before."""

    def step() -> str:
        wb.barrier()
        context = HOLDER.get()

        def work() -> None:
            HOLDER.set(context, thread_only=True)
            wb.allreduce(np.ones(2), f"of rank {context.rank}")

        with ThreadPoolExecutor(1) as pool:
            text = caught(lambda: pool.submit(work).result(), MissingRanksError)
            assert float(pool.submit(again, context).result()) == 2.0
        return text

    def again(context: Context) -> np.ndarray:
        HOLDER.set(context, thread_only=True)
        return wb.allreduce(np.ones(1), "again", wb.Sum)[0]

    for rank, text in enumerate(run(2, step)):
        assert f"The ranks wait for each other, so 'allreduce.of rank {rank}'" in text


MISMATCHES: dict[str, tuple[Callable[[int], Any], list[str]]] = {
    "shape": (lambda me: wb.allreduce(np.ones(2 + me), "x"), ["[2]", "[3]"]),
    "dtype": (lambda me: wb.allreduce(np.ones(2, ["f4", "f8"][me]), "x"), ["float32", "float64"]),
    "op": (lambda me: wb.allreduce(np.ones(2), "x", [wb.Sum, wb.Max][me]), ["sum", "max"]),
    "factor": (lambda me: wb.allreduce(np.ones(2), "x", prescale_factor=1.0 + me), ["1.0", "2.0"]),
    "root": (lambda me: wb.broadcast(np.ones(2), me, "x"), ["rank 0: 0", "rank 1: 1"]),
    "columns": (lambda me: wb.allgather(np.ones((2, 2 + me)), "x"), ["2", "3"]),
    "columns to all": (lambda me: wb.alltoall(np.ones((2, 2 + me)), name="x"), ["2", "3"]),
    "rows": (lambda me: wb.reducescatter(np.ones(2 + me), "x"), ["[2]", "[3]"]),
}


@pytest.mark.parametrize("kind", MISMATCHES)
def test_a_mismatch_is_raised_everywhere(kind: str) -> None:
    """Every rank gets the same text, with each rank's value; the next collective, under the same name, works."""
    wrong, values = MISMATCHES[kind]

    def step() -> tuple[str, float]:
        text = caught(lambda: wrong(wb.rank()), MismatchError)
        return text, float(wb.allreduce(np.ones(2), "x", wb.Sum)[0])

    (one, sum_one), (other, sum_other) = run(2, step)
    assert one == other
    assert all(value in one for value in [*values, "rank 0", "rank 1", "x"])
    assert sum_one == sum_other == 2.0


def test_a_duplicate_name_is_refused() -> None:
    """The second one raises at once, on this rank only; the first one is not disturbed, and then the name is free."""

    def step() -> list[float]:
        first = wb.allreduce_async(np.ones(2), "x", wb.Sum) if wb.rank() == 0 else None
        if wb.rank() == 0:
            assert "allreduce.x" in caught(lambda: wb.allreduce_async(np.zeros(5), "x"), DuplicateNameError)
        wb.barrier()
        first = first or wb.allreduce_async(np.ones(2), "x", wb.Sum)
        return [float(first.wait()[0]), float(wb.allreduce(np.ones(2), "x", wb.Sum)[0])]

    assert run(2, step) == [[2.0, 2.0]] * 2


@pytest.mark.parametrize("when", ["before", "after"])
def test_leaving_ends_what_waits_for_it(when: str) -> None:
    """A rank that returns early is named in a ShutDownError to who waits for it, whichever came first."""
    texts: dict[int, str] = {}

    def step() -> None:
        if wb.rank() == 0:
            time.sleep(0.2 if when == "after" else 0.0)
            return
        time.sleep(0.2 if when == "before" else 0.0)
        texts[wb.rank()] = caught(lambda: wb.allreduce(np.ones(2), "x"), ShutDownError)

    run(3, step)
    assert sorted(texts) == [1, 2]
    assert all("Rank 0 has left" in text for text in texts.values())


def test_shutdown_amid_tensors_in_flight() -> None:
    """Handles that a rank leaves behind end with an error on that rank, and on the others; nothing hangs."""
    handles: dict[int, list[Any]] = {}

    def step() -> None:
        me = wb.rank()
        handles[me] = [wb.allreduce_async(np.ones(2), f"{me}.{i}") for i in range(5)]

    run(3, step)
    for mine in handles.values():
        for handle in mine:
            assert "left the job" in caught(lambda handle=handle: handle.wait(10), ShutDownError)


def test_a_callback_that_raises_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """The exception is logged; the result stays, and the engine goes on."""

    def step() -> float:
        handle = wb.allreduce_async(np.ones(2), "x", wb.Sum)
        handle.add_done_callback(lambda done: 1 / 0)
        return float(handle.wait()[0] + wb.allreduce(np.ones(2), "y", wb.Sum)[0])

    with caplog.at_level(logging.ERROR, logger="workbench"):
        assert run(2, step) == [4.0, 4.0]
    assert len([record for record in caplog.records if "allreduce.x" in record.getMessage()]) == 2


def test_a_wait_in_a_callback_is_refused() -> None:
    """On the engine's thread a wait for something unfinished would never end: it raises, and the job goes on."""
    added = threading.Event()

    def step() -> tuple[str, float]:
        said: list[str] = []
        later = wb.allreduce_async(np.ones(2), "later", wb.Sum) if wb.rank() == 0 else None
        assert later is not None or added.wait(10)  # so that rank 0's callback runs on its engine's thread
        first = wb.allreduce_async(np.ones(2), "first", wb.Sum)
        waited = threading.Event()

        def wait_for_other(done: Any) -> None:
            if later is not None:
                said.append(caught(later.wait, RuntimeError))
            waited.set()

        first.add_done_callback(wait_for_other)
        added.set()
        assert waited.wait(10)
        wb.barrier()
        later = later or wb.allreduce_async(np.ones(2), "later", wb.Sum)
        return "".join(said), float(later.wait(10)[0])

    (text, one), (_, other) = run(2, step)
    assert "engine's thread" in text
    assert one == other == 2.0


def test_a_callback_may_submit() -> None:
    """A callback knows which rank it belongs to, and may begin the next collective; only waiting is forbidden there."""
    added = threading.Event()

    def step() -> tuple[int, float]:
        second: list[Any] = []
        called = threading.Event()

        def go_on(done: Any) -> None:
            try:
                second.extend([wb.rank(), wb.allreduce_async(np.ones(2), "second", wb.Sum)])
            finally:
                called.set()

        assert wb.rank() == 0 or added.wait(10)  # so that rank 0's callback runs on its engine's thread
        wb.allreduce_async(np.ones(2), "first", wb.Sum).add_done_callback(go_on)
        added.set()
        assert called.wait(10)
        rank, handle = second
        return rank, float(handle.wait(10)[0])

    assert run(2, step) == [(0, 2.0), (1, 2.0)]


def test_an_announcement_that_crosses_a_failure_is_not_taken_for_the_next_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank submits x while the failure of x is on its way to it. Its next x must have its data in it.

    The failure ends x on every rank that has submitted it, so the late announcement stands for nothing any more.
    """
    monkeypatch.setenv("WORKBENCH_FAILED_RANK_GRACE_S", "0.6")
    failed, announced, resumed, over = (threading.Event() for _ in range(4))

    def step() -> float:
        engine = HOLDER.get().engine
        if wb.rank() == 0:
            caught(lambda: wb.allreduce(np.ones(1), "x"), RankFailedError)
            failed.set()
        elif wb.rank() == 1:
            engine.report(Raised(1, "ValueError: a cell", final=False))
            assert announced.wait(10)
            engine.report(Began(1))
            time.sleep(0.1)
            resumed.set()
        else:
            control, near = engine._control, threading.Event()
            take = control._channel.take
            control._channel.take = lambda *who: take(*who) if near.is_set() else []  # rank 0 is far away
            assert failed.wait(10)
            handle = wb.allreduce_async(np.ones(1), "x", wb.Sum)
            time.sleep(0.1)
            announced.set()
            assert resumed.wait(10)
            near.set()
            control.wake()
            caught(lambda: handle.wait(10), RankFailedError)
            over.set()
        assert over.wait(10)
        time.sleep(0.4 if wb.rank() == 2 else 0.0)
        return float(wb.allreduce_async(np.array([1.0 + wb.rank()]), "x", wb.Sum).wait(5)[0])

    assert run(3, step) == [6.0] * 3


def test_a_barriers_handle_has_no_result() -> None:
    """Nothing was moved, and no number stands for nothing."""

    def step() -> object:
        (handle,) = api.submit([api.entry(Kind.BARRIER, None, None)])
        return handle.wait(10)

    assert run(2, step) == [None, None]


# --- cost ---------------------------------------------------------------------------------------------


def test_an_idle_rank_costs_no_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks that have nothing to do sleep: four of them together cost less than a tenth of one core."""
    monkeypatch.delenv("WORKBENCH_HEARTBEAT_S")

    def idle() -> float:
        wb.barrier()
        started = time.process_time()
        time.sleep(0.8)
        return time.process_time() - started

    assert max(run(4, idle)) < 0.08


def test_leaving_together_takes_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """When all ranks leave, the job ends at once: it does not wait for the next sign of life."""
    monkeypatch.setenv("WORKBENCH_HEARTBEAT_S", "3")
    started = time.monotonic()
    for _ in range(3):
        run(2, wb.barrier)
    assert time.monotonic() - started < 2.5


def test_a_world_leaves_nothing_behind() -> None:
    """After a world has ended its threads are gone, and the next one starts with a fresh numbering."""
    before = set(threading.enumerate())
    for _ in range(3):
        assert run(2, lambda: float(wb.allreduce(np.ones(1), op=wb.Sum)[0])) == [2.0, 2.0]
    assert eventually(lambda: not set(threading.enumerate()) - before)


def test_a_broken_world_leaves_nothing_behind_once_a_new_one_has_begun() -> None:
    """Also where the data plane broke, so that not all ranks left in good order, threads do not pile up."""

    def broken() -> None:
        def fail(*_: Any) -> None:
            raise ZeroDivisionError("in the data plane")

        if wb.rank() == 0:
            HOLDER.get().sets.everybody.collectives.allreduce = fail
        wb.allreduce(np.ones(2000), "x")

    before = set(threading.enumerate())
    for _ in range(2):
        with pytest.raises(CollectiveError):
            run(2, broken)
    run(2, wb.barrier)
    assert eventually(lambda: not set(threading.enumerate()) - before)


@pytest.mark.parametrize("length", [3, 4000])
def test_what_was_submitted_before_join_is_in_the_sum(length: int) -> None:
    """Rank 1 submits, joins, and waits afterwards: small or large, both ranks get the whole sum."""

    def program() -> list[float]:
        mine = np.full(length, 1.0 + wb.rank())
        handle = wb.allreduce_async(mine, name="x", op=wb.Sum)
        if wb.rank() == 0:
            handle.wait()
        wb.join()
        return list(np.unique(handle.wait(10.0)))

    assert wb.run_threads(2, program) == [[3.0]] * 2
