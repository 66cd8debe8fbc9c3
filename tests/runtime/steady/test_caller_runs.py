"""A thread that waits does the engine's work itself."""

from __future__ import annotations

import random
import signal
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from thorough import once_more

import workbench as wb
from workbench.common import turn as turns
from workbench.config import Settings
from workbench.core import engine as engines
from workbench.core import handle as handles
from workbench.core.messages import Kind
from workbench.errors import CollectiveError, WaitTimeoutError
from workbench.job import api
from workbench.job.context import HOLDER, Context
from workbench.job.start import start
from workbench.transport.bootstrap.base import SingleBootstrap

pytestmark = pytest.mark.long


@pytest.fixture
def long_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has waited once runs the engine from then on."""
    monkeypatch.setattr(turns, "REST_S", 3600.0)


@pytest.fixture
def alone(long_rest: None) -> Iterator[Context]:
    """The context of a job of one rank, on the main thread, which runs the engine."""
    context = start(SingleBootstrap(), Settings(heartbeat_s=3600.0))
    HOLDER.set(context, thread_only=True)
    until_it_rests(context)
    yield context
    HOLDER.set(None, thread_only=True)
    context.leave(1.0)


def until_it_rests(context: Any) -> None:
    """The engine's thread rests from here on."""
    while not context.engine._runner._turn.resting:
        wb.barrier()


def runs_on(name: str, wait: bool = True) -> int:
    """The thread on which the result of an allreduce is converted: the one that does the engine's work."""
    found: list[int] = []
    x = np.ones(2)
    entry = api.entry(Kind.ALLREDUCE, x, name, target=x, convert=lambda _: found.append(threading.get_ident()))
    (handle,) = api.submit([entry], at_once=wait)
    while not (wait or handle.poll()):
        time.sleep(0.001)
    handle.wait(30)
    return found[0]


def test_the_waiting_thread_does_the_work(alone: Context) -> None:
    """One that waits at once does it, one after the other; of what nobody waits for, the engine's does."""
    me = threading.get_ident()
    assert [runs_on("x") for _ in range(3)] == [me] * 3
    assert runs_on("y", wait=False) == alone.engine.ident


def test_a_script_that_handles_other_signals_waits_as_before(alone: Context) -> None:
    """Its handler may raise anywhere, which must not end the engine's work halfway."""
    before = signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        assert runs_on("x") == alone.engine.ident
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_ctrl_c_ends_the_wait(alone: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a thread that runs the engine for a tensor that is not complete. It is reduced when it is."""
    monkeypatch.setattr(handles, "LONG_WAIT_S", 30.0)  # so long it runs the engine
    x = np.ones(2)

    def member(name: str) -> Any:
        return api.entry(Kind.ALLREDUCE, x, name, target=x, group="both", group_size=2)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        (handle,) = api.submit([member("a")], at_once=True)
        threading.Timer(0.3, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            handle.wait(30)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    (other,) = api.submit([member("b")], at_once=True)
    assert other.wait(30) is not None
    assert handle.wait(30) is not None


def test_a_callback_must_not_wait(alone: Context) -> None:
    """It runs on the thread that does the engine's work: a wait there would never end."""
    raised: list[BaseException] = []

    def wait(_: Any) -> None:
        try:
            wb.allreduce(np.ones(2), "inner")
        except RuntimeError as error:
            raised.append(error)

    x = np.ones(2)
    (handle,) = api.submit([api.entry(Kind.ALLREDUCE, x, "x", target=x, convert=wait)], at_once=True)
    handle.wait(30)
    assert "engine's thread" in str(raised)


def test_what_breaks_there_reaches_all(long_rest: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the data plane, on a thread that waits, ends the job with its text on every rank."""
    execute = engines.execute

    def breaks(batch: Any, *rest: Any) -> Any:
        if batch[0].name == "allreduce.broken":
            raise OSError("no such cable")
        return execute(batch, *rest)

    monkeypatch.setattr(engines, "execute", breaks)

    def job() -> str:
        until_it_rests(HOLDER.get())
        with pytest.raises(CollectiveError) as caught:
            wb.allreduce(np.ones(2), "broken")
        with pytest.raises(CollectiveError):
            wb.allreduce(np.ones(2), "after")
        return str(caught.value)

    for text in wb.run_threads(2, job):
        assert "no such cable" in text


def test_nothing_is_done_after_a_failure(alone: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the engine's thread is slow to take over, no other wait goes on in its place; all end with the error."""
    done: list[str] = []

    def breaks(batch: Any, *rest: Any) -> Any:
        done.append(batch[0].name)
        raise OSError("no such cable")

    def begin(name: str) -> Any:
        x = np.ones(2)
        return api.submit([api.entry(Kind.ALLREDUCE, x, name, target=x)], at_once=True)[0]

    alone.engine._control._heartbeat_s = 0.1  # after a failure it waits so long for rank 0's word
    notify = turns.Turn.notify
    monkeypatch.setattr(engines, "execute", breaks)
    monkeypatch.setattr(turns.Turn, "notify", lambda turn: None)
    handles = []
    for name in ("broken", "after"):
        handles.append(begin(name))
        with pytest.raises(WaitTimeoutError):
            handles[-1].wait(0.3)
    assert done == ["allreduce.broken"]
    monkeypatch.setattr(turns.Turn, "notify", notify)
    alone.engine._runner.wake()
    for handle in handles:
        with pytest.raises(CollectiveError, match="no such cable"):
            handle.wait(30)
    assert done == ["allreduce.broken"]


@pytest.mark.parametrize("rest_s", [0.0005, once_more(0.0), once_more(3600.0)])
def test_threads_that_wait_and_threads_that_do_not(rest_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two threads on each of three ranks, blocking and not, in another order on every rank: all sums are right."""
    monkeypatch.setattr(turns, "REST_S", rest_s)

    def job() -> bool:
        context, rank = HOLDER.get(), wb.rank()
        right: list[bool] = []

        def other() -> None:
            HOLDER.set(context, thread_only=True)
            work("other")

        def work(who: str) -> None:
            choice = random.Random(f"{who} {rank}")
            for step in range(15):
                names = [f"{who}.{step}.{i}" for i in range(6)]
                choice.shuffle(names)
                begun = {name: wb.allreduce_async(value(name, rank), name, wb.Sum) for name in names}
                for name, handle in begun.items():
                    right.append(np.array_equal(handle.wait(30), sum(value(name, r) for r in range(3))))
                total = wb.allreduce(value(who, rank), f"{who}.{step}.all", wb.Sum)
                right.append(np.array_equal(total, sum(value(who, r) for r in range(3))))

        thread = threading.Thread(target=other)
        thread.start()
        work("main")
        thread.join()
        return all(right) and len(right) == 2 * 15 * 7

    assert wb.run_threads(3, job) == [True] * 3


def value(name: str, rank: int) -> Any:
    """Of a small or a large tensor."""
    return np.arange(3 if name[-1] in "024l" else 3000, dtype=np.float64) * (rank + 1) + len(name)
