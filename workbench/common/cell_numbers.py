"""Which cells the notebook has sent to each engine, and which of them have been answered, as an engine knows it.

The notebook numbers the requests to each engine: 1, 2, 3, …. Each request carries the newest number of every engine, so
who begins a cell knows at once who else gets it. What changes later comes on the control channel, which an engine
serves on a thread of its own while a cell runs. An engine that has not reached its newest number is late, not idle.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

KEY = "workbench_cells"
"""In a request's metadata, and the type of the message on the control channel."""
_GRACE_S = 0.5  # requests that a program sends one by one belong together


class CellNumbers:
    """What one engine knows. It is the kernel's own, so it outlives a module that is imported anew.

    Attributes:
        engine: its id; -1 as long as it has got no numbered request.
        number: of the newest request that it has begun, or passed over.
        version: of what the notebook has said; it grows.
        sent: by engine, how many requests the notebook has sent.
        ended: by engine, how many of them have been answered.
        changed: called when a request has ended or was passed over; and with True, from another thread, when there is
            news on the control channel.

    Example:
        >>> numbers = CellNumbers()
        >>> numbers.begin({"version": 7, "engine": 0, "number": 3, "engines": [[0, 3, 2], [1, 5, 4]]})
        >>> numbers.number, numbers.sent, numbers.idle()
        (3, {0: 3, 1: 5}, [])
        >>> numbers.hear({"version": 8, "engines": [[0, 3, 2], [1, 5, 5]]})
        >>> numbers.idle(grace_s=0.0)
        [1]
    """

    def __init__(self) -> None:
        self.engine, self.number, self.version = -1, 0, 0
        self.sent: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        self.changed: Callable[[bool], None] = lambda from_control: None
        self._idle_since: dict[int, float] = {}

    def begin(self, said: Mapping[str, Any] | None) -> None:
        """A request is begun; ``said``: what it carries, None if the notebook has not numbered it."""
        if said is not None:
            self.engine, self.number = said["engine"], max(self.number, said["number"])
            self._take(said)

    def passed_over(self, said: Mapping[str, Any] | None) -> None:
        """A request is not run."""
        self.begin(said)
        self.changed(False)

    def hear(self, said: Mapping[str, Any]) -> None:
        """The notebook says what has changed."""
        if self._take(said):
            self.changed(True)

    def idle(self, grace_s: float = _GRACE_S) -> list[int]:
        """The other engines that have answered all requests, and have got no other one for so long."""
        latest = time.monotonic() - grace_s
        return [each for each, since in self._idle_since.items() if since <= latest and each != self.engine]

    def _take(self, said: Mapping[str, Any]) -> bool:
        if said["version"] <= self.version:
            return False  # it has been overtaken
        self.version, now, before = said["version"], time.monotonic(), self._idle_since
        self.sent = {engine: sent for engine, sent, _ in said["engines"]}
        self.ended = {engine: ended for engine, _, ended in said["engines"]}
        idle = [each for each, sent in self.sent.items() if sent <= self.ended[each]]
        self._idle_since = {each: before.get(each, now) for each in idle}
        return True


def cell_numbers() -> CellNumbers | None:
    """This engine's; None where this process is no engine of a notebook.

    Example:
        >>> cell_numbers()
    """
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    found: CellNumbers | None = getattr(getattr(shell, "kernel", None), "cell_numbers", None)
    return found


def idle(ranks: Collection[int] | None = None) -> list[int]:
    """The other ranks of this notebook whose cell has ended, and to whom no other one is on its way.

    Args:
        ranks: those that matter; all by default.

    Example:
        >>> idle()
        []
    """
    numbers = cell_numbers()
    return [each for each in numbers.idle() if ranks is None or each in ranks] if numbers is not None else []


__all__ = ["KEY", "CellNumbers", "cell_numbers", "idle"]
