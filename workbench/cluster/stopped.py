"""Says which engine keeps a cell from ending because its process is stopped: its rank cannot say so itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

_PATIENCE_S = 1.5  # with Ctrl-Z and fg, a debugger's attaching, a machine that suspends


class StoppedEngines:
    """Looked at while cells run.

    Args:
        why: why an engine's process does not run; "" if it does, None if it has ended.
        log: prints a line.

    Example:
        >>> watch = StoppedEngines(lambda engine: "", print)
        >>> watch.look({0: 7, 1: 7})
    """

    def __init__(self, why: Callable[[int], str | None], log: Callable[[str], None]) -> None:
        self._why, self._log = why, log
        self._since: dict[int, float] = {}
        self._reported: dict[int, int] = {}  # by engine, amid which request

    def look(self, busy: Mapping[int, int]) -> None:
        """At the engines that have not answered; called twice a second while there are any.

        Args:
            busy: by engine, the number of the request that it runs. Each has an output of its own, where it is said.
        """
        now = time.monotonic()
        found = {engine: why for engine in busy if (why := self._why(engine))}
        for engine in self._reported.keys() - found.keys():
            if self._why(engine) is not None:
                self._log(f"engine {engine} goes on")
        self._reported = {
            engine: number for engine, number in self._reported.items() if engine in found and busy[engine] == number
        }
        self._since = {engine: self._since.get(engine, now) for engine in found}
        for engine in found.keys() - self._reported:
            if now - self._since[engine] >= _PATIENCE_S:
                self._reported[engine] = busy[engine]
                self._log(f"engine {engine} does not run: {found[engine]}; engines.rescue() starts new ones")
