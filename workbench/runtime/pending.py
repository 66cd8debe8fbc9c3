"""The table between the threads that submit and the engine: name → entry. It holds the only lock.

The lock is held to move items between containers, never across a callback, a wait or a framework call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter_ns
from typing import Any

from numpy.typing import NDArray

from workbench.backends.base import Arrival
from workbench.errors import CollectiveError, DuplicateNameError
from workbench.runtime.handle import Handle
from workbench.runtime.messages import Request

Array = NDArray[Any]


@dataclass(slots=True)
class Entry:
    """A submitted tensor: the request, the memory to read and to write, and the promise.

    Args:
        source: C-contiguous array; ``None`` where this rank has nothing to send.
        target: where the result goes when its shape is known beforehand; may be ``source`` itself.
        convert: makes of the result array what the caller gets, such as a tensor; runs on the engine's thread.
        submitted, announced: when that was, for the recorder.
        arrival: of arrays on a GPU: when they are ready, and who waits for the result.
    """

    request: Request
    source: Array | None
    target: Array | None
    handle: Handle
    convert: Callable[[Any], Any] | None = None
    submitted: int = 0
    announced: int = 0
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
        self._entries: dict[tuple[int, str], Entry] = {}
        self._new: list[Entry] = []
        self._closed: CollectiveError | None = None

    def add(self, entries: list[Entry]) -> None:
        """Put entries in, all or none.

        Raises:
            DuplicateNameError: a name is in flight already.
            CollectiveError: the table was closed, by shutdown or a lost rank.
        """
        keys = [(entry.request.process_set, entry.request.name) for entry in entries]
        now = perf_counter_ns()
        for entry in entries:
            entry.submitted = now
        with self._lock:
            if self._closed is not None:
                raise type(self._closed)(*self._closed.args)
            twice = [key[1] for i, key in enumerate(keys) if key in self._entries or key in keys[:i]]
            if not twice:
                self._entries.update(zip(keys, entries, strict=True))
                self._new.extend(entries)
        if twice:
            raise DuplicateNameError(
                f"{twice[0]!r} is in flight already on this rank: a name can be used again only after its handle is "
                "done. Wait for the first one, or give the second another name."
            )

    def drain(self) -> list[Entry]:
        """Entries added since the last call, in the order of submission."""
        with self._lock:
            new, self._new = self._new, []
        return new

    def new(self) -> bool:
        """Is there something to drain?"""
        return bool(self._new)

    def idle(self) -> bool:
        """Is nothing in flight?"""
        return not self._entries

    def find(self, process_set: int, name: str) -> Entry | None:
        """The entry behind a name in flight; None if this rank never submitted it."""
        with self._lock:
            return self._entries.get((process_set, name))

    def remove(self, entry: Entry) -> None:
        """Take an entry out: its name may be submitted again."""
        with self._lock:
            self._entries.pop((entry.request.process_set, entry.request.name), None)

    def close(self, error: CollectiveError) -> list[Entry]:
        """Refuse all further entries with ``error`` and return those that were in flight."""
        with self._lock:
            self._closed = self._closed or error
            left, self._entries, self._new = list(self._entries.values()), {}, []
        return left

    def names(self) -> list[str]:
        """Names in flight, for reports."""
        with self._lock:
            return [name for _, name in self._entries]
