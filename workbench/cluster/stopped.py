"""Says which engine keeps a cell from ending because its process is stopped: its rank cannot say so itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from workbench.control.liveness import stopped
from workbench.machine import has_ended

_PATIENCE_S = 1.5  # with Ctrl-Z and fg, a debugger's attaching, a machine that suspends


class StoppedEngines:
    """Looked at while cells run.

    Args:
        pid: an engine's process on this machine, 0 where there is none.
        say: prints a line.

    Example:
        >>> import os
        >>> watch = StoppedEngines(lambda engine: os.getpid(), print)
        >>> watch.look([0, 1])
    """

    def __init__(self, pid: Callable[[int], int], say: Callable[[str], None]) -> None:
        self._pid, self._say = pid, say
        self._since: dict[int, float] = {}
        self._said: set[int] = set()

    def look(self, busy: Collection[int]) -> None:
        """At the engines that have not answered; called twice a second while there are any."""
        now = time.monotonic()
        found = {engine: why for engine in busy if (pid := self._pid(engine)) and (why := stopped(pid))}
        for engine in self._said - found.keys():
            if (pid := self._pid(engine)) and not has_ended(pid):
                self._say(f"engine {engine} goes on")
        self._said &= found.keys()
        self._since = {engine: self._since.get(engine, now) for engine in found}
        for engine in found.keys() - self._said:
            if now - self._since[engine] >= _PATIENCE_S:
                self._said.add(engine)
                self._say(f"engine {engine} does not run: {found[engine]}; engines.rescue() starts new ones")


__all__ = ["StoppedEngines"]
