"""Ctrl-C for waits that Python cannot interrupt: those on the threads of a framework's graph.

Python tells its main thread alone of a SIGINT, when that next runs Python. While TensorFlow runs a graph, the main
thread is in TensorFlow, which waits for our function on a thread of its own, which waits for the other ranks. So that
wait has to see the signal by itself: from the bytes that Python's handler writes to a pipe, whatever thread runs.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LOOK_EVERY_S = 0.2


class _Heeding(threading.local):
    on = False


class Interrupts:
    """How many SIGINTs have come; one per process.

    Example:
        >>> handler = signal.signal(signal.SIGINT, lambda *_: None)
        >>> INTERRUPTS.install()
        >>> before = INTERRUPTS.count()
        >>> signal.raise_signal(signal.SIGINT)
        >>> INTERRUPTS.count() - before
        1
        >>> INTERRUPTS.uninstall()
        >>> _ = signal.signal(signal.SIGINT, handler)
    """

    def __init__(self) -> None:
        self._lock, self._count = threading.Lock(), 0
        self._pipe: tuple[int, int] | None = None  # read, write
        self._heeding = _Heeding()

    def install(self) -> None:
        """See SIGINTs from now on, if nobody else does (an event loop may); on the main thread only."""
        if self._pipe is not None or threading.current_thread() is not threading.main_thread():
            return
        read, write = os.pipe()
        os.set_blocking(read, False)
        os.set_blocking(write, False)
        before = signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
            os.close(read)
            os.close(write)
            return
        self._pipe = read, write

    def uninstall(self) -> None:
        if self._pipe is None or threading.current_thread() is not threading.main_thread():
            return
        now = signal.set_wakeup_fd(-1)
        if now not in (-1, self._pipe[1]):
            signal.set_wakeup_fd(now)  # somebody else's by now
        for each in self._pipe:
            os.close(each)
        self._pipe = None

    def count(self) -> int:
        """SIGINTs since the process began to see them."""
        with self._lock:
            while self._pipe is not None:
                try:
                    signals = os.read(self._pipe[0], 4096)
                except BlockingIOError:
                    break
                self._count += signals.count(signal.SIGINT)
                if not signals:
                    break
            return self._count

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Within the block, this thread's waits end with KeyboardInterrupt when one comes."""
        before, self._heeding.on = self._heeding.on, threading.current_thread() is not threading.main_thread()
        try:
            yield
        finally:
            self._heeding.on = before

    def acquire(self, lock: threading.Lock, timeout_s: float) -> bool:
        """As ``lock.acquire(timeout=timeout_s)``, where -1 is for ever.

        Raises:
            KeyboardInterrupt: this thread heeds interrupts, and one came.
        """
        if not self._heeding.on:
            return lock.acquire(timeout=timeout_s)
        before, left = self.count(), timeout_s
        while timeout_s < 0 or left > 0:
            if lock.acquire(timeout=LOOK_EVERY_S if timeout_s < 0 else min(LOOK_EVERY_S, left)):
                return True
            left -= LOOK_EVERY_S
            if self.count() > before:
                raise KeyboardInterrupt
        return False


INTERRUPTS = Interrupts()
os.register_at_fork(after_in_child=INTERRUPTS.uninstall)  # or a SIGINT to a child would count as one to this process
