"""Which cells the notebook has sent to each engine, and which engines it has left idle, as an engine knows it.

The notebook numbers the requests to each engine: 1, 2, 3, …. Each request carries the newest number of every engine, so
who begins a cell knows at once who else gets it. What changes later comes on the control channel, which an engine
serves on a thread of its own while a cell runs. An engine that has not reached its newest number is late. It is idle
when the notebook says so: by its clock, and not by that of an engine which the machine may not have let run.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

KEY = "workbench_cells"
"""In a request's metadata, and the type of the message on the control channel."""


class CellNumbers:
    """What one engine knows. It is the kernel's own, so it outlives a module that is imported anew.

    Attributes:
        engine: its id; -1 as long as it has got no numbered request.
        number: of the newest request that it has begun, or passed over.
        numbered: was the newest request sent by the notebook, and not by another client?
        version: of what the notebook has said; it grows.
        sent: by engine, how many requests the notebook has sent.
        idle: engines that have answered all of them, and get no other one, though the notebook has waited a moment.
        changed: called when a request has ended or was passed over; and from another thread when there is news on the
            control channel.

    Example:
        >>> numbers = CellNumbers()
        >>> numbers.begin({"version": 7, "engine": 0, "number": 3, "sent": [[0, 3], [1, 5]], "idle": []})
        >>> numbers.number, numbers.sent, numbers.idle
        (3, {0: 3, 1: 5}, [])
        >>> numbers.hear({"version": 8, "sent": [[0, 3], [1, 5]], "idle": [1]})
        >>> numbers.idle
        [1]
    """

    def __init__(self) -> None:
        self.engine, self.number, self.version = -1, 0, 0
        self.numbered = False
        self.sent: dict[int, int] = {}
        self.idle: list[int] = []
        self.changed: Callable[[], None] = lambda: None
        self._taking = threading.Lock()  # a cell begins on one thread, and news come on another

    def begin(self, said: Mapping[str, Any] | None) -> None:
        """A request is begun; ``said``: what it carries, None if the notebook has not numbered it."""
        self.numbered = said is not None
        if said is not None:
            self.engine, self.number = said["engine"], max(self.number, said["number"])
            self._take(said)

    def passed_over(self, said: Mapping[str, Any] | None) -> None:
        """A request is not run."""
        self.begin(said)
        self.changed()

    def hear(self, said: Mapping[str, Any]) -> None:
        """The notebook says what has changed."""
        if self._take(said):
            self.changed()

    def _take(self, said: Mapping[str, Any]) -> bool:
        with self._taking:
            if said["version"] <= self.version:
                return False  # it has been overtaken
            self.sent, self.idle = dict(said["sent"]), list(said["idle"])
            self.version = said["version"]  # last: a thread that reads it, and then the others, has what belongs to it
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


def idle() -> list[int]:
    """The engines that the notebook has left idle.

    Example:
        >>> idle()
        []
    """
    numbers = cell_numbers()
    return numbers.idle if numbers is not None else []


__all__ = ["KEY", "CellNumbers", "cell_numbers", "idle"]
