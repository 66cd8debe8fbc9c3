"""Ctrl-C while the main thread does what must not end halfway: it comes when that is done."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from importlib import import_module
from types import FrameType
from typing import Any

# What ``signal`` wraps in enums, which takes ten times as long; it is called for each small collective.
_plain = import_module("_signal")
_set: Callable[[int, Any], Any] = _plain.signal
_get: Callable[[int], Any] = _plain.getsignal
_MAIN = threading.main_thread().ident
_SIGINT = int(signal.SIGINT)
_OTHERS = [
    int(getattr(signal, name))
    for name in ("SIGTERM", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGVTALRM", "SIGPROF", "SIGQUIT")
    if hasattr(signal, name)
]


class SigintLater:
    """Holds SIGINT back on the main thread, the only one that gets it.

    Args:
        end_wait: called when one comes; it ends the wait that the main thread may be in.

    Attributes:
        came: one is held back.
    """

    def __init__(self, end_wait: Callable[[], None]) -> None:
        self._end_wait, self._before, self._pid = end_wait, None, os.getpid()
        self.came: tuple[int, FrameType | None] | None = None

    def begin(self) -> bool:
        """Hold it back from now on. False, and it is not, if the script handles another signal: that may raise, too."""
        if threading.get_ident() != _MAIN:
            return True
        for number in _OTHERS:
            other = _get(number)
            if callable(other) and not hasattr(other, "raises_nothing"):
                return False
        before = _get(_SIGINT)
        if callable(before):
            self._before = before
            _set(_SIGINT, self._note)
        return True

    def end(self) -> None:
        """Let it come.

        Raises:
            KeyboardInterrupt: it has come, or what the script's own handler raises.
        """
        if self._before is None or threading.get_ident() != _MAIN:
            return
        # The script's handler first: what comes from here on reaches it, and what came before is handed over below.
        before, self._before = self._before, None
        _set(_SIGINT, before)
        came, self.came = self.came, None
        if came is not None:
            before(*came)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.came = number, frame
        if os.getpid() != self._pid:  # another thread has forked this process meanwhile, and nobody calls end() here
            return self.end()
        self._end_wait()
