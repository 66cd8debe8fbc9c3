"""A process that says what it finds, one line of JSON each, and what a test waits for of it."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
import time
from collections.abc import Callable
from typing import Any

_LIMIT_S = 90.0


class Driver:
    """A running process.

    Args:
        process: its output, errors among it, can be read.

    Attributes:
        heard_at: when what was waited for last had come, by ``time.monotonic()``.
    """

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self._lines = process, list[str]()
        self._said: queue.SimpleQueue[tuple[float, dict[str, Any]]] = queue.SimpleQueue()
        self.heard_at = 0.0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout
        begun = time.monotonic()
        for line in self.process.stdout:
            self._lines.append(f"{time.monotonic() - begun:6.1f} {line}")
            if line.startswith("{"):
                self._said.put((time.monotonic(), json.loads(line)))

    def text(self) -> str:
        """All that it has written, with the time of each line."""
        return "".join(self._lines)

    def wait_for(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The next thing that it says of this kind."""
        until = time.monotonic() + _LIMIT_S
        while time.monotonic() < until:
            over = not self._reader.is_alive()
            try:
                self.heard_at, found = self._said.get(timeout=0.2)
            except queue.Empty:
                if over:
                    break
                continue
            if wanted(found):
                return found
        raise AssertionError(self.text())

    def hear(self, name: str) -> Any:
        """What it says under a name."""
        return self.wait_for(lambda said: name in said)[name]

    def write(self, line: str) -> None:
        """To its standard input."""
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def ends(self) -> str:
        """Wait for its end, which is a good one; all that it has written."""
        assert self.process.wait(_LIMIT_S) == 0, self.text()
        self._reader.join(5.0)
        return self.text()

    def end(self) -> None:
        """By SIGKILL, if it is still there."""
        self.process.kill()
        self.process.wait()
        self._reader.join(5.0)
        for stream in (self.process.stdin, self.process.stdout):
            if stream:
                stream.close()


__all__ = ["Driver"]
