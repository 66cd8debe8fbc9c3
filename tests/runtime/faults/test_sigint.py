"""Ctrl-C reaches waits on threads that Python tells nothing of it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from installed import needs
from interrupted import interrupts

import workbench as wb
from workbench.common import turn as turns
from workbench.common.waiting import Owner
from workbench.config import Settings
from workbench.core.handle import Handle
from workbench.job.context import HOLDER
from workbench.job.entries import Waiters
from workbench.job.start import start
from workbench.runtime.faults.sigint import INTERRUPTS
from workbench.runtime.faults.sigint_later import SigintLater
from workbench.transport.bootstrap.base import SingleBootstrap

IN_A_GRAPH = """
import os, signal, threading
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell ignores it
import numpy as np
import tensorflow as tf
from workbench.common.waiting import Owner
from workbench.core.handle import Handle
from workbench.runtime.faults.sigint import INTERRUPTS
from workbench.tf.tensors import on_host


class Engine(Owner):
    def awaited(self, handle, limit_s):
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()

    def long_wait(self, handle, waiter, timeout_s):
        return INTERRUPTS.acquire(waiter, timeout_s)


never = Handle("never")
never.owner = Engine()
wait = tf.function(lambda: on_host(lambda _: [never.wait()], [], [("float32", ())]))
try:
    wait()
except BaseException as error:
    print("KeyboardInterrupt" in repr(error))
"""


def in_a_child(act: Callable[[], object]) -> int:
    """Its exit code where ``act`` ends, and 9 where it raises KeyboardInterrupt."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    try:
        act()
        os._exit(0)
    except KeyboardInterrupt:
        os._exit(9)
    finally:
        os._exit(1)


def test_a_signal_to_a_child_is_not_this_process_s() -> None:
    """A child that a rank forks gets SIGINT: the rank counts none, and the child is interrupted."""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        INTERRUPTS.install()
        before = INTERRUPTS.count()
        later = SigintLater(lambda: None)
        assert later.begin()
        assert in_a_child(lambda: signal.raise_signal(signal.SIGINT)) == 9
        later.end()
        assert INTERRUPTS.count() == before
    finally:
        INTERRUPTS.uninstall()
        signal.signal(signal.SIGINT, handler)


class Heeding(Owner):
    """Its waits heed interrupts."""

    def long_wait(self, handle: Handle, waiter: threading.Lock, timeout_s: float) -> bool:
        """See :class:`Owner`."""
        return INTERRUPTS.acquire(waiter, timeout_s)


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """SIGINTs are seen, and end nothing on the main thread."""
    before = signal.signal(signal.SIGINT, lambda *_: None)
    INTERRUPTS.install()
    yield lambda: signal.raise_signal(signal.SIGINT)
    INTERRUPTS.uninstall()
    signal.signal(signal.SIGINT, before)


def waiting(heeds: bool) -> tuple[threading.Thread, Handle, list[BaseException]]:
    """A thread that waits for a handle."""
    handle, raised = Handle("never"), []

    def wait() -> None:
        try:
            if heeds:
                handle.owner = Heeding()
                with INTERRUPTS.interruptible():
                    handle.wait()
            else:
                handle.wait()
        except BaseException as error:  # noqa: BLE001 - to look at it
            raised.append(error)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    time.sleep(0.3)  # into the wait
    return thread, handle, raised


def test_a_wait_that_heeds_ends_with_an_interrupt(interrupt: Callable[[], None]) -> None:
    """A thread that heeds interrupts leaves its wait when one comes; the handle stays as it was."""
    thread, handle, raised = waiting(heeds=True)
    interrupt()
    thread.join(10)
    assert [type(each) for each in raised] == [KeyboardInterrupt]
    assert not handle.poll()


def test_other_waits_go_on(interrupt: Callable[[], None]) -> None:
    """A thread that does not heed them waits on, and gets its result."""
    thread, handle, raised = waiting(heeds=False)
    interrupt()
    thread.join(0.6)
    assert thread.is_alive()
    handle.finish(1)
    thread.join(10)
    assert raised == []


def test_an_interrupt_from_before_is_none(interrupt: Callable[[], None]) -> None:
    """What came before a wait began does not end it."""
    interrupt()
    thread, handle, raised = waiting(heeds=True)
    thread.join(0.6)
    assert thread.is_alive()
    handle.finish(1)
    thread.join(10)
    assert raised == []


def test_another_reader_is_left_alone() -> None:
    """Where an event loop has asked to be told of signals, it goes on to be."""
    read, write = socket.socketpair()
    write.setblocking(False)
    before = signal.set_wakeup_fd(write.fileno())
    try:
        INTERRUPTS.install()
        INTERRUPTS.uninstall()
    finally:
        assert signal.set_wakeup_fd(before) == write.fileno()
        read.close()
        write.close()


@pytest.mark.thorough
@pytest.mark.timeout(180)
def test_a_graph_that_waits_is_interrupted(warm_tensorflow: None) -> None:
    """Ctrl-C ends a wait within a graph of TensorFlow, whose main thread hears of nothing."""
    needs("tensorflow")
    child = subprocess.run([sys.executable, "-c", IN_A_GRAPH], capture_output=True, text=True, timeout=170, check=False)
    assert child.stdout.strip() == "True", child.stderr[-3000:]


@pytest.mark.parametrize("how", ["blocking", "handle", "caller runs"])
def test_after_an_interrupt_anywhere_the_next_collectives_are_right(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever Ctrl-C hits a collective, what follows is right, and waits for no sign of life to be taken up.

    So it is where the thread that is hit does the engine's work while it waits.
    """
    monkeypatch.setattr(turns, "REST_S", 3600.0 if how == "caller runs" else 0.0)
    context = start(SingleBootstrap(), Settings(heartbeat_s=3600.0))
    HOLDER.set(context, thread_only=True)
    x = np.arange(3.0)
    resting: Any = lambda: context.engine._runner._turn.resting  # type: ignore[attr-defined]  # noqa: E731

    def step() -> None:
        if how == "handle":
            wb.allreduce_async(x, "x", wb.Sum).wait()
        else:
            wb.allreduce(x, "x", wb.Sum)

    try:
        for at in interrupts(step):
            assert context.part(Waiters) == set()
            for name in ("y", "x"):  # the first ends what may be left of the one that was interrupted
                result = wb.allreduce_async(x + at, name, wb.Sum).wait(timeout_s=10)
                np.testing.assert_array_equal(result, x + at)
            while how == "caller runs" and not resting():
                wb.allreduce(x, "z", wb.Sum)
                time.sleep(0.001)
    finally:
        HOLDER.set(None, thread_only=True)
        context.leave(1.0)
