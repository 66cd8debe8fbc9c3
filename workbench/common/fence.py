"""Order of memory accesses, for what processes write and read in shared memory."""

from __future__ import annotations

import threading


class Fence:
    """All memory accesses before a call come before all after it, on processors that change their order, too.

    To release a lock and then acquire it is a full barrier. One thread at a time calls it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def __call__(self) -> None:
        self._lock.release()
        self._lock.acquire()
