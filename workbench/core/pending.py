"""The table between the threads that submit and the engine: name → entry.

Its lock is held to move items between containers, never across a callback, a wait or a framework call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from workbench.core.backend.base import Array
from workbench.core.backend.memory import Arrival
from workbench.core.handle import Handle
from workbench.core.messages import Event, Key, Request, Response
from workbench.errors import CollectiveError, DuplicateNameError


@dataclass(slots=True)
class Entry:
    """A submitted tensor: the request, the memory to read and to write, and the promise.

    Args:
        source: C-contiguous array; ``None`` where this rank has nothing to send.
        target: where the result goes when its shape is known beforehand; may be ``source`` itself.
        convert: makes of the result array what the caller gets, such as a tensor; runs on the engine's thread.
        submitted, announced: when that was, for the recorder.
        caller: of arrays on a GPU; supplies stream and allocator.
        arrival: of arrays on a GPU, from the submission: the CUDA events when they are ready, and when the result is.
    """

    request: Request
    source: Array | None
    target: Array | None
    handle: Handle
    convert: Callable[[Any], Any] | None = None
    submitted: int = 0
    announced: int = 0
    caller: Any = None
    arrival: Arrival | None = None

    def deliver(self, result: Any, error: BaseException | None = None) -> None:
        """Finish the handle with the converted result, with ``error``, or with the error of the conversion."""
        if error is not None:
            return self.handle.finish(error=error)
        try:
            self.handle.finish(self.convert(result) if self.convert and result is not None else result)
        except Exception as failed:  # noqa: BLE001 - it is raised by wait()
            self.handle.finish(error=failed)


class PendingTable:
    """Entries submitted on this rank and not yet finished."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entries: dict[Key, Entry] = {}
        self.new: list[Entry | Event] = []  # since the last drain
        self._closed: CollectiveError | None = None

    def add(self, entries: list[Entry]) -> None:
        """Put entries in, all or none.

        Raises:
            DuplicateNameError: a name is in flight already.
            CollectiveError: the table was closed, by shutdown or a lost rank.
        """
        fresh: dict[Key, Entry] = {}
        now = perf_counter_ns()
        for entry in entries:
            entry.submitted = now
            fresh[entry.request.process_set, entry.request.name] = entry
        repeated = len(fresh) < len(entries)
        with self._lock:
            if self._closed is not None:
                raise type(self._closed)(*self._closed.args)
            # No comprehension in here: Python 3.12 and 3.13 do not release the lock where Ctrl-C hits one's jump back.
            in_flight = self._entries.keys() & fresh.keys()
            if not in_flight and not repeated:
                # Without a call in between: Ctrl-C comes after calls only, so never between these two.
                self._entries |= fresh
                self.new += entries
        if in_flight or repeated:
            keys = [entry.request.key for entry in entries]
            name = next(key[1] for i, key in enumerate(keys) if key in in_flight or key in keys[:i])
            raise DuplicateNameError(
                f"{name!r} is already in flight on this rank: a name can be used again only after its handle is done. "
                "Wait for the first tensor, or give the second one another name."
            )

    def report(self, event: Event) -> None:
        """Put in what rank 0 is to be told; it keeps its place among the entries."""
        with self._lock:
            self.new.append(event)

    def drain(self) -> list[Entry | Event]:
        """Entries and events added since the last call, in order."""
        with self._lock:
            new, self.new = self.new, []
        return new

    def drain_events(self) -> list[Event]:
        """The events before the first of these entries."""
        events: list[Event] = []
        with self._lock:
            for item in self.new:
                if isinstance(item, Entry):
                    break
                events.append(item)
            del self.new[: len(events)]
        return events

    def alone(self) -> Entry | None:
        """What was added last, if nothing else is in flight, and it was not drained."""
        new = self.new
        first = new[0] if len(new) == 1 == len(self._entries) else None
        return first if isinstance(first, Entry) else None

    def idle(self) -> bool:
        return not self._entries

    def names(self) -> list[str]:
        """Of what is in flight on this rank."""
        with self._lock:
            return [name for _, name in self._entries]

    def submitted(self) -> dict[Key, int]:
        """When each of these was submitted, by ``perf_counter_ns()``."""
        with self._lock:
            return {key: entry.submitted for key, entry in list(self._entries.items())}

    def handles(self, entries: Sequence[Entry]) -> list[Handle]:
        """Of what is in flight under the names of these."""
        with self._lock:
            found = [self._entries.get(entry.request.key) for entry in entries]
        return [one.handle for one in found if one is not None]

    def find(self, process_set: int, name: str) -> Entry | None:
        """The entry behind a name in flight; None if this rank never submitted it."""
        with self._lock:
            return self._entries.get((process_set, name))

    def parts(self, rank: int, batch: Sequence[Response]) -> list[Entry | None]:
        """This rank's entry for each response; None where it takes no part."""
        with self._lock:
            return [None if rank in one.joined else self._entries.get((one.process_set, one.name)) for one in batch]

    def remove(self, entries: Sequence[Entry]) -> None:
        """Take entries out: their names may be submitted again."""
        with self._lock:
            for entry in entries:
                self._entries.pop((entry.request.process_set, entry.request.name), None)

    def close(self, error: CollectiveError) -> list[Entry]:
        """Refuse all further entries with ``error`` and return those that were in flight; events stay."""
        with self._lock:
            self._closed = self._closed or error
            left, self._entries = list(self._entries.values()), {}
            self.new = [item for item in self.new if not isinstance(item, Entry)]
        return left
