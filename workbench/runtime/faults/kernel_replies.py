"""Ctrl-C ends a cell, and never the kernel's answer to it.

A kernel lets SIGINT raise KeyboardInterrupt all the while it handles a request. If it comes when the cell has not begun
or has just ended, it ends the sending of the answer instead: the client then waits for a cell that is over, for ever.
So here SIGINT raises within the cell only, and is passed over before and after it.
"""

from __future__ import annotations

import inspect
import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

_REQUESTS = ("execute_request", "apply_request")


class Replies:
    """Keeps SIGINT from interrupting a kernel outside of its cells.

    Attributes:
        within: does a cell run?

    Example:
        >>> replies = Replies()
        >>> replies.on_sigint(signal.SIGINT, None)  # nothing, for no cell runs
    """

    def __init__(self) -> None:
        self.within = False

    def guard(self, kernel: Any) -> None:
        """From now on, also for the request that is being handled: this is called by its cell."""
        handlers = getattr(kernel, "shell_handlers", {})
        if not handlers:
            return  # a terminal's IPython
        for name in handlers.keys() & set(_REQUESTS):
            handlers[name] = self._guarded(handlers[name])
        self.within = True
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._install()

    def on_sigint(self, number: int, frame: FrameType | None) -> None:
        if self.within:
            signal.default_int_handler(number, frame)

    def _install(self) -> None:
        """Until the kernel, which puts its own there for every request, has handled this one."""
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, self.on_sigint)

    def _guarded(self, handle: Callable[..., Any]) -> Callable[..., Any]:
        async def guarded(*args: Any, **kwargs: Any) -> None:
            self.within = False
            self._install()
            answer = handle(*args, **kwargs)
            if inspect.isawaitable(answer):
                await answer

        return guarded
