"""A call that blocks and cannot be interrupted, on a thread of its own: whoever waits for it can keep a deadline."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def background(function: Callable[[], T]) -> Future[T]:
    """Begin ``function()``, which must release the GIL while it blocks.

    ``result(timeout_s)`` waits for it; Ctrl-C ends the wait. The call goes on nevertheless, but the process can end.

    Example:
        >>> background(lambda: 6 * 7).result(timeout=10)
        42
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # noqa: BLE001 - result() raises it
            future.set_exception(error)

    threading.Thread(target=run, name="workbench-background", daemon=True).start()
    return future
