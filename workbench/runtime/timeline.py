"""The timeline: what happened to each tensor, as a Chrome trace (chrome://tracing, Perfetto).

Each tensor is a "process" of the trace. Its life has two phases: NEGOTIATE_<VERB>, with a tick for every rank
that announced it, and <VERB>, with activities inside: QUEUE, MEMCPY_IN_FUSION_BUFFER, MPI_ALLREDUCE, … Names of
events and layout are those of Horovod's timeline, so its readers know them.

Rank 0 writes. The threads that are watched only put an event into a queue; a thread of its own writes the file, which
is valid JSON after every event.
"""

from __future__ import annotations

import json
import os
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

Event = dict[str, Any]


class Timeline:
    """Records while it is open; otherwise every method returns at once.

    Example:
        >>> import tempfile, os
        >>> path = os.path.join(tempfile.mkdtemp(), "timeline.json")
        >>> timeline = Timeline()
        >>> timeline.open(path)
        >>> timeline.announced(0, "allreduce.x", "allreduce")
        >>> timeline.responded("allreduce.x")
        >>> timeline.close()
        >>> [event["ph"] for event in json.loads(Path(path).read_text()) if event["ph"] != "M"]
        ['B', 'X', 'E']
    """

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Event | None] | None = None
        self._writer: threading.Thread | None = None
        self._pids: dict[str, int] = {}
        self._negotiating: set[str] = set()
        self._mark_cycles = False

    @property
    def on(self) -> bool:
        """Is a file open?"""
        return self._queue is not None

    def open(self, path: str, mark_cycles: bool = False) -> None:
        """Begin a new file.

        Raises:
            OSError: it cannot be written.
        """
        self.close()
        file = Path(path).open("wb")  # noqa: SIM115 - the writer closes it
        self._mark_cycles = mark_cycles
        self._pids, self._negotiating = {}, set()
        self._queue = queue.SimpleQueue()
        args = {"start_time_since_epoch_in_micros": time.time_ns() // 1000}
        self._put({"name": "process_name", "ph": "M", "pid": 0, "args": args})
        self._writer = threading.Thread(target=_write, args=(file, self._queue), name="workbench-timeline", daemon=True)
        self._writer.start()

    def close(self) -> None:
        """End the file; nothing if none is open."""
        waiting, self._queue = self._queue, None
        if waiting is not None and self._writer is not None:
            waiting.put(None)
            self._writer.join(10.0)

    def announced(self, rank: int, name: str, kind: str) -> None:
        """``rank`` is ready with ``name``."""
        if self._queue is None:
            return
        if name not in self._negotiating:
            self._negotiating.add(name)
            self._event(name, "B", f"NEGOTIATE_{kind.upper()}")
        self._event(name, "X", str(rank), dur=0)

    def responded(self, name: str) -> None:
        """All ranks are ready with ``name``, or it failed."""
        if self._queue is not None and name in self._negotiating:
            self._negotiating.discard(name)
            self._event(name, "E", "")

    def cycle(self) -> None:
        """The engine begins to execute a message's responses."""
        if self._queue is not None and self._mark_cycles:
            self._put({"name": "CYCLE_START", "ph": "i", "s": "g", "pid": 0, "ts": _now_us()})

    @contextmanager
    def activity(self, names: Sequence[str], what: str) -> Iterator[None]:
        """``what`` is done to these tensors within the block."""
        if self._queue is None:
            yield
            return
        for name in names:
            self._event(name, "B", what)
        try:
            yield
        finally:
            for name in names:
                self._event(name, "E", "")

    def _event(self, name: str, phase: str, label: str, **more: Any) -> None:
        pid = self._pids.get(name)
        if pid is None:
            pid = self._pids[name] = len(self._pids) + 1
            self._put({"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}})
            self._put({"name": "process_sort_index", "ph": "M", "pid": pid, "args": {"sort_index": pid}})
        event: Event = {"ph": phase, "pid": pid, "tid": 0, "ts": _now_us(), **more}
        if label:
            event["name"] = label
        self._put(event)

    def _put(self, event: Event) -> None:
        waiting = self._queue
        if waiting is not None:
            waiting.put(event)


def _now_us() -> float:
    return time.perf_counter_ns() / 1000


def _write(file: IO[bytes], waiting: queue.SimpleQueue[Event | None]) -> None:
    """Append events; after each one the file ends with the closing bracket, which the next one overwrites."""
    with file:
        file.write(b"[\n]")
        file.flush()
        first = True
        while (event := waiting.get()) is not None:
            file.seek(-1, os.SEEK_END)
            file.write((("" if first else ",") + json.dumps(event) + "\n]").encode())
            file.flush()
            first = False
