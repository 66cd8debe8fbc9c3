"""The parts that the engine uses. For each acceleration there is a null implementation: all verbs work with it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from workbench.core.messages import Announce, Decision, Event, Kind, Response
from workbench.core.pending import Entry
from workbench.errors import CollectiveError


class Control(Protocol):
    """A rank's end of the control plane: ``runtime/control/client.py``. For the engine's thread, except ``wake``."""

    rank: int
    seen: int  # number of the last decision that was handed out

    def send(self, event: Event) -> None:
        """Send one event to rank 0; never blocks."""

    def receive(self, timeout_s: float, spin_s: float | None = None) -> list[Decision]:
        """Wait for decisions, a wake-up or ``timeout_s``; return the received decisions, in order.

        Args:
            timeout_s: the longest wait.
            spin_s: None on the engine's thread. On a caller's thread: how long it polls before it sleeps.
        """

    def wake(self) -> None:
        """End :meth:`receive` early; from any thread."""

    def pump(self) -> None:
        """Read all messages without waiting, and send a heartbeat if one is due."""

    def fatal_error(self) -> CollectiveError | None:
        """The error that ended the job: every wait must stop."""

    def verdict(self) -> CollectiveError | None:
        """Like :meth:`fatal_error`, after the data plane failed: waits a moment for rank 0's answer."""

    def close(self) -> None:
        """Free all resources; messages that were sent still arrive."""


class Announcer(Protocol):
    """How tensors are announced, and decisions read."""

    def announce(self, entries: list[Entry], seen: int) -> Announce:
        """The announcement of these entries, after reading decision ``seen``."""

    def read(self, decision: Decision) -> list[Response]:
        """What this rank has to do, in order."""


class PlainAnnouncer:
    """Complete requests and responses."""

    def __init__(self, rank: int) -> None:
        self._rank = rank

    def announce(self, entries: list[Entry], seen: int) -> Announce:
        return Announce(self._rank, tuple(entry.request for entry in entries), seen)

    def read(self, decision: Decision) -> list[Response]:
        items = (item for item in decision.items if isinstance(item, Response))
        return [item for item in items if item.kind not in (Kind.STACKS, Kind.SLOTS)]  # of the control plane


class Alone(Protocol):
    """The whole way of a lone tensor at once, whose caller waits for it."""

    def announce(self, entry: Entry, seen: int) -> Any:
        """Announce it, after reading decision ``seen``; something false if it has to go the ordinary way."""

    def result(self, known: Any, entry: Entry, spin_s: float) -> tuple[bool, list[Any]]:
        """Of what :meth:`announce` has returned: do all agree within ``spin_s``; the result, if it came with that."""


class Batching(Protocol):
    """When entries and events are sent to rank 0, and which of them together."""

    held: list[Entry | Event]
    flush_now: bool  # a thread waits; set by any thread
    open: bool  # more may come, and the engine looks again without a wake-up
    window_s: float

    def add(self, fresh: list[Entry | Event], now: float) -> bool:
        """Add these; True if more may come within ``window_s``."""

    def take(self) -> list[list[Entry] | Event]:
        """Everything that is held, in order, to be sent now; consecutive entries are announced together."""


class AtOnce:
    """Everything is sent as soon as the engine sees it."""

    window_s = 0.0

    def __init__(self) -> None:
        self.held: list[Entry | Event] = []
        self.flush_now = self.open = False

    def add(self, fresh: list[Entry | Event], now: float) -> bool:
        self.held += fresh
        return False

    def take(self) -> list[list[Entry] | Event]:
        """Runs of entries, and the events between them."""
        found: list[list[Entry] | Event] = []
        for item in self.held:
            if not isinstance(item, Entry):
                found.append(item)
            elif item.handle.poll():
                continue  # its name failed before it was announced: do not announce it
            elif found and isinstance(found[-1], list):
                found[-1].append(item)
            else:
                found.append([item])
        self.held, self.flush_now = [], False
        return found


class Observer:
    """Gets notice of what the engine does; this one ignores it. See ``runtime/trace/timeline.py``."""

    def announces(self, entries: Sequence[Entry]) -> None:
        """These are about to be announced."""

    def sent(self) -> None:
        """The announcement has been sent."""

    def cycle(self) -> None:
        """The engine begins to execute a decision."""

    def batch(self, batch: list[Response], entries: Sequence[Entry | None]) -> AbstractContextManager[None]:
        """These responses are executed within the block."""
        return nullcontext()

    def activity(self, batch: list[Response], what: str) -> AbstractContextManager[None]:
        """Within the block ``what`` is done to these tensors."""
        return nullcontext()
