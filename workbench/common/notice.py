"""A line that says what goes on, and is replaced: where a user looks, and nowhere else."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from workbench.common.notebook import allows_stdin, running_kernel

_SIGN_S = 2.0


class Notice:
    """One line on stdout.

    Args:
        shown: is it? None: if there is a user, in a notebook or at a terminal.

    Example:
        >>> notice = Notice(shown=False)
        >>> with notice.of(lambda seconds: f"downloading, {seconds:.0f} s"):
        ...     pass  # what may take long
    """

    def __init__(self, shown: bool | None = None) -> None:
        self._asked, self._text, self._lock = shown, "", threading.Lock()

    def now(self, text: str) -> None:
        """Show it in the place of the one before; "" takes it away."""
        with self._lock:
            if text != self._text and (self._shown() or not text):
                print("\r" + text.ljust(len(self._text)) + ("" if text else "\r"), end="", flush=True)
                self._text = text

    @contextmanager
    def of(self, text: Callable[[float], str]) -> Iterator[None]:
        """Every two seconds within the block the text of so many seconds; none if it takes less."""
        if not self._shown():
            yield
            return
        begun, over = time.monotonic(), threading.Event()

        def tell() -> None:
            while not over.wait(_SIGN_S):
                self.now(text(time.monotonic() - begun))

        thread = threading.Thread(target=tell, name="workbench-notice", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
            self.now("")

    def _shown(self) -> bool:
        if sys.platform == "emscripten":  # the page says it
            return False
        if self._asked is not None:
            return self._asked
        kernel = running_kernel()
        return sys.stdin.isatty() and sys.stdout.isatty() if kernel is None else allows_stdin(kernel)
