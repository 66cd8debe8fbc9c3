"""Ctrl-C reaches waits on threads that Python tells nothing of it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from workbench.runtime.handle import Handle
from workbench.runtime.interrupts import INTERRUPTS

IN_A_GRAPH = """
import os, signal, threading
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell ignores it
import numpy as np
import tensorflow as tf
from workbench.runtime.handle import Handle
from workbench.tensorflow.tensors import on_host

never = Handle("never")
wait = tf.function(lambda: on_host(lambda _: [never.wait()], [], [("float32", ())]))
never.awaited = lambda: threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    wait()
except BaseException as error:
    print("KeyboardInterrupt" in repr(error))
"""


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
                with INTERRUPTS.heeded():
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


@pytest.mark.timeout(180)
def test_a_graph_that_waits_is_interrupted() -> None:
    """Ctrl-C ends a wait within a graph of TensorFlow, whose main thread hears of nothing."""
    pytest.importorskip("tensorflow")
    child = subprocess.run([sys.executable, "-c", IN_A_GRAPH], capture_output=True, text=True, timeout=170, check=False)
    assert child.stdout.strip() == "True", child.stderr[-3000:]
