"""Which cells the notebook has sent to each engine, and which engines it has left idle, as an engine knows it.

The notebook numbers the requests to each engine: 1, 2, 3, …. Each request carries the newest number of every engine, so
who begins a cell knows at once who else gets it. What changes later comes on the control channel, which an engine
serves on a thread of its own while a cell runs. An engine that has not reached its newest number is late. It is idle
when the notebook says so: by its clock, and not by that of an engine which the machine may not have let run.

A request that several engines share has one content for all: an engine finds its own number there.

Every answer says whether the engine's numbers of unnamed tensors may have drifted from those of the others: its cell
raised, or a collective failed in it, or it has left one in flight. The notebook counts such answers, and each request
carries the count: where it has grown, all ranks number anew. So all ranks of one call do, or none: what an engine has
heard of the others' failures by itself may come too late for the cell that it begins.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from workbench.common.notebook import running_kernel
from workbench.common.text import rank_list

_SILENT_S = 2.0  # so long a wait for all ranks says nothing
_AGAIN_S = 30.0

KEY = "workbench_cells"
"""In a request's metadata, and the type of the message on the control channel."""

STATE = "workbench_state"
"""The type of another message on that channel: the notebook asks what the engine is at."""


class CellNumbers:
    """What one engine knows. It is the kernel's own, so it outlives a module that is imported anew.

    Args:
        engine: its id.

    Attributes:
        number: of the newest request that it has begun, or passed over.
        call: of a view, which sent that request; the requests of one call belong together.
        cell: the number that the notebook's user sees beside the cell which runs; 0 if there is none.
        numbered: was the newest request sent by the notebook, and not by another client?
        version: of what the notebook has said; it grows.
        sent: by engine, how many requests the notebook has sent.
        idle: engines that have answered all of them, and get no other one, though the notebook has waited a moment.
        running: by engine that has not answered, the call that it runs.
        failures: how often numbers may have drifted before the newest request; None if no request has said so.
        drifted: called when a request ends: may this engine's numbers have drifted in it?
        changed: called when a request has ended or was passed over; and from another thread when there is news on the
            control channel.
        state: called on another thread while a cell runs: what the job on this engine is at, see ``job/state.py``.

    Example:
        >>> numbers = CellNumbers(engine=0)
        >>> sent = [[0, 3], [1, 5]]
        >>> numbers.begin(
        ...     {"version": 7, "call": 6, "numbers": [[0, 3]], "sent": sent, "idle": [], "running": [[0, 6], [1, 4]]}
        ... )
        >>> numbers.number, numbers.sent, numbers.idle, numbers.elsewhere()
        (3, {0: 3, 1: 5}, [], [1])
        >>> numbers.receive({"version": 8, "sent": sent, "idle": [1], "running": [[0, 6]]})
        >>> numbers.idle, numbers.elsewhere()
        ([1], [])
    """

    def __init__(self, engine: int) -> None:
        self.engine, self.number, self.call, self.version = engine, 0, 0, 0
        self.cell, self.numbered = 0, False
        self.sent: dict[int, int] = {}
        self.idle: list[int] = []
        self.running: dict[int, int] = {}
        self.failures: int | None = None
        self.drifted: Callable[[], bool] = lambda: False
        self.changed: Callable[[], None] = lambda: None
        self.state: Callable[[], dict[str, Any]] = dict
        self._taking = threading.Lock()  # a cell begins on one thread, and news come on another

    def begin(self, message: Mapping[str, Any] | None) -> None:
        """A request is begun; ``message``: what it carries, None if the notebook has not sent it."""
        number = dict(message.get("numbers", ())).get(self.engine) if message is not None else None
        self.cell = message.get("cell", 0) if message is not None else 0
        if message is not None:
            self.failures = message.get("failures")
        self.numbered = number is not None
        if message is not None and number is not None:
            self.number, self.call = max(self.number, number), message["call"]
            self._take(message)

    def elsewhere(self) -> list[int]:
        """The engines that run another call than this one."""
        return sorted(each for each, call in self.running.items() if each != self.engine and call != self.call)

    def passed_over(self, message: Mapping[str, Any] | None) -> None:
        self.begin(message)
        self.changed()

    def receive(self, message: Mapping[str, Any]) -> None:
        if self._take(message):
            self.changed()

    def _take(self, message: Mapping[str, Any]) -> bool:
        with self._taking:
            if message["version"] <= self.version:
                return False  # it has been overtaken
            self.sent, self.idle = dict(message["sent"]), list(message["idle"])
            self.running = dict(message["running"])
            self.version = message["version"]  # last: a thread that reads it first has all that belongs to it
            return True


def cell_numbers() -> CellNumbers | None:
    """This engine's; None where this process is no engine of a notebook.

    Example:
        >>> cell_numbers()
    """
    found: CellNumbers | None = getattr(running_kernel(), "cell_numbers", None)
    return found


def idle() -> list[int]:
    """The engines that the notebook has left idle. Of a cell that somebody else has sent it knows nothing.

    Example:
        >>> idle()
        []
    """
    numbers = cell_numbers()
    return numbers.idle if numbers is not None and numbers.numbered else []


def elsewhere() -> list[int]:
    """The engines that run a cell which the notebook has sent apart from this one's.

    Example:
        >>> elsewhere()
        []
    """
    numbers = cell_numbers()
    return numbers.elsewhere() if numbers is not None and numbers.numbered else []


class WaitNotice:
    """Says on stderr, amid a wait for all ranks, which of them run another cell: after two seconds, and then rarely.

    Args:
        function: which waits.

    Example:
        >>> WaitNotice("init()").look()  # asked for the first time
    """

    def __init__(self, function: str) -> None:
        self._function, self._at = function, time.monotonic() + _SILENT_S

    def look(self, ranks: Collection[int] | None = None) -> None:
        """Called amid the wait.

        Args:
            ranks: who is waited for; all by default.
        """
        if time.monotonic() < self._at:
            return
        if found := [rank for rank in elsewhere() if ranks is None or rank in ranks]:
            self._at = time.monotonic() + _AGAIN_S
            run = "run another cell" if len(found) > 1 else "runs another cell"
            print(
                f"workbench: {self._function} waits until every rank calls it. {rank_list(found).capitalize()} {run}, "
                "which was sent separately.",
                file=sys.stderr,
                flush=True,
            )
