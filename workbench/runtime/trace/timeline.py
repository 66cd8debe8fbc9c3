"""The timeline: what happened to each tensor, as a Chrome trace (chrome://tracing, Perfetto).

Each tensor is a "process" of the trace. Its life has two phases::

    NEGOTIATE_ALLREDUCE      from the first rank's announcement to the response, with a tick for every rank
    ALLREDUCE                from the response to the result
      QUEUE                    it waits for what stands before it in the engine
      INIT_FUSION_BUFFER       the memory for tensors that travel together; ALLOCATE_OUTPUT for allgather and its like
      MEMCPY_IN_FUSION_BUFFER  packing; not for a tensor that travels alone
      MPI_ALLREDUCE            the bytes move; TCP_ALLGATHER, THREADS_BCAST … by backend and verb
      MEMCPY_OUT_FUSION_BUFFER

Names and layout are those of Horovod's timeline, so its readers know them. Rank 0 writes. The threads that are watched
only put an event into a queue; a thread of its own writes the file, which is valid JSON from ``open()`` on, whatever
happens to the process. What the observers see goes to the recorder as well, on every rank (``recorder.py``).
"""

from __future__ import annotations

import json
import logging
import os
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from workbench.common.chrome_trace import named, sorted_at
from workbench.config import Settings
from workbench.core.fusion import Batch
from workbench.core.messages import Decision, Request, Response
from workbench.core.pending import Entry
from workbench.core.protocols import Observer
from workbench.errors import LaunchError
from workbench.runtime.trace.recorder import Recorder, label, label_of, labels

log = logging.getLogger("workbench")

_MOST = 25  # events per write

_ROOM = 1 << 20  # bytes of blanks
_MORE = {"X": ', "dur": 0', "i": ', "s": "g"'}  # what belongs to events of a phase

Event = tuple[str, str, str, float]  # tensor, phase, label, time in µs


class Timeline(Observer):
    """Writes while it is open, and tells the recorder; tensors of process sets other than 0 have their set in the name.

    Args:
        recorder: is told everything, too.

    Example:
        >>> import tempfile, os
        >>> path = os.path.join(tempfile.mkdtemp(), "timeline.json")
        >>> timeline = Timeline()
        >>> timeline.open(path)
        >>> from workbench.core.messages import Kind
        >>> response = Response("allreduce.x", Kind.ALLREDUCE)
        >>> timeline.announced(0, [Request("allreduce.x", Kind.ALLREDUCE)])
        >>> timeline.responded(Decision(1, [response]))
        >>> with timeline.activity([response], "ALLREDUCE"):
        ...     pass
        >>> timeline.close()
        >>> [(e["ph"], e.get("name", "")) for e in json.loads(Path(path).read_text()) if e["ph"] != "M"][:5]
        [('B', 'NEGOTIATE_ALLREDUCE'), ('X', '0'), ('E', ''), ('B', 'ALLREDUCE'), ('B', 'QUEUE')]
    """

    def __init__(self, recorder: Recorder | None = None) -> None:
        self.recorder = recorder or Recorder(on=False)
        self._writer: Writer | None = None
        self._negotiating: set[str] = set()
        self._ready: dict[str, float] = {}  # responded, not begun yet: since when
        self._mark_cycles = False

    @property
    def on(self) -> bool:
        return self._writer is not None

    def open(self, path: str, mark_cycles: bool = False) -> None:
        """Begin a new file; one that is open is ended.

        Raises:
            OSError: it cannot be written.
        """
        self.close()
        writer = Writer(path)
        self._mark_cycles, self._negotiating, self._ready = mark_cycles, set(), {}
        writer.start()
        self._writer = writer

    def close(self) -> None:
        """End the file; nothing if none is open."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.end()

    def announced(self, rank: int, requests: Sequence[Request | Response]) -> None:
        writer = self._writer
        if writer is None:
            return
        for request in requests:
            name = label(request.process_set, request.name)
            if name not in self._negotiating:
                self._negotiating.add(name)
                writer.put(name, "B", f"NEGOTIATE_{request.kind.value.upper()}")
            writer.put(name, "X", str(rank))

    def responded(self, decision: Decision) -> None:
        """All ranks are ready with these, or they failed."""
        writer = self._writer
        for name in map(label_of, _responses(decision)):
            if writer is not None and name in self._negotiating:
                self._negotiating.discard(name)
                self._ready[name] = writer.put(name, "E")

    def completed(self, rank: int, decision: Decision) -> None:
        """``rank`` was the last that was missing for these."""
        self.recorder.completed(rank, _responses(decision))

    def announces(self, entries: Sequence[Entry]) -> None:
        self.recorder.announces(entries)

    def cycle(self) -> None:
        self.recorder.arrived()
        writer = self._writer
        if writer is not None and self._mark_cycles:
            writer.put("", "i", "CYCLE_START")

    @contextmanager
    def activity(self, batch: Batch, what: str) -> Iterator[None]:
        """``what`` is done to these tensors within the block; the first one after the response is the verb itself."""
        names = labels(batch) if self._writer else []
        writer, begun = self._begin(names, what), time.perf_counter_ns()
        try:
            yield
        finally:
            self.recorder.did(what, begun)
            _end(writer, names)

    @contextmanager
    def batch(self, batch: Batch, entries: Sequence[Entry | None]) -> Iterator[None]:
        """These responses are executed within the block, for this rank's entries."""
        names = labels(batch) if self._writer else []
        writer = self._begin(names, batch[0].kind.value.upper())
        self.recorder.begins()
        try:
            yield
        finally:
            self.recorder.ended(batch, entries)
            _end(writer, names)

    def _begin(self, names: Sequence[str], what: str) -> Writer | None:
        writer = self._writer
        if writer is None:
            return None
        for name in names:
            ready = self._ready.pop(name, None)
            writer.put(name, "B", what, ready)
            if ready is not None:
                writer.put(name, "B", "QUEUE", ready)
                writer.put(name, "E")
        return writer


def _responses(decision: Decision) -> list[Response]:
    """All of rank 0's: it knows what ids stand for."""
    return [item for item in decision.items if isinstance(item, Response)]


def _end(writer: Writer | None, names: Sequence[str]) -> None:
    if writer is not None:
        for name in names:
            writer.put(name, "E")


class Writer(threading.Thread):
    """Writes one file. After each write it ends with the closing bracket, which the next write replaces.

    Args:
        path: of the file; what it held is gone.

    Raises:
        OSError: it cannot be written.
    """

    def __init__(self, path: str) -> None:
        super().__init__(name="workbench-timeline", daemon=True)
        self._queue: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._heads = {"": '"pid": 0, "tid": 0'}  # what belongs to events of a tensor
        self._open: dict[str, int] = {}  # activities that have begun and not ended
        self._start = time.perf_counter_ns()
        self._room, self._place = 3, 2  # where the blanks after the bracket end, and where the bracket stands
        since = {"start_time_since_epoch_in_micros": time.time_ns() // 1000}
        self._file = Path(path).open("wb", buffering=0)  # noqa: SIM115 - the thread closes it
        try:
            self._file.write(b"[\n]")
            self._append([json.dumps({"ph": "M", "name": "process_name", "pid": 0, "args": since})])
        except OSError:
            self._file.close()
            raise

    # --- any thread ---------------------------------------------------------------------------------

    def put(self, name: str, phase: str, label: str = "", ts: float | None = None) -> float:
        """Add an event to what is written about a tensor; return its time, in µs since the file was begun."""
        ts = self._now() if ts is None else ts
        self._queue.put((name, phase, label, ts))
        return ts

    def end(self) -> None:
        """Write what is left, and close the file."""
        self._queue.put(None)
        self.join(10.0)

    def _now(self) -> float:
        return (time.perf_counter_ns() - self._start) / 1000

    # --- this thread --------------------------------------------------------------------------------

    def run(self) -> None:
        with self._file:
            ended = False
            while not ended:
                items = self._drain()
                ended = items[-1] is None
                lines = [line for item in items if item is not None for line in self._lines(*item)]
                try:
                    self._append(lines + (self._ends() if ended else []))
                    if ended:
                        self._file.truncate(self._place + 2)
                except OSError as error:
                    log.warning("The timeline stops here, because its file cannot be written: %s", error)
                    while not ended and self._queue.get() is not None:
                        pass
                    return

    def _drain(self) -> list[Event | None]:
        """What has come, one item at least, up to the end."""
        items = [self._queue.get()]
        while items[-1] is not None and len(items) < _MOST and not self._queue.empty():
            items.append(self._queue.get())
        return items

    def _lines(self, name: str, phase: str, label: str, ts: float) -> list[str]:
        """The event as it is written, after what introduces its tensor; by hand, for json.dumps() is much slower."""
        lines = []
        if name not in self._heads:
            pid = len(self._heads)
            self._heads[name] = f'"pid": {pid}, "tid": 0'
            lines += [json.dumps(named("process", pid, name)), json.dumps(sorted_at(pid, pid))]
        self._open[name] = self._open.get(name, 0) + (phase == "B") - (phase == "E")
        what = f', "name": "{label}"' if label else ""
        return [*lines, f'{{"ph": "{phase}", {self._heads[name]}, "ts": {ts:.3f}{what}{_MORE.get(phase, "")}}}']

    def _ends(self) -> list[str]:
        """Ends for all that is still going on."""
        going_on = [name for name, count in self._open.items() for _ in range(count)]
        return [line for name in going_on for line in self._lines(name, "E", "", self._now())]

    def _append(self, lines: list[str]) -> None:
        """One write, so that the file is not left without its bracket."""
        if not lines:
            return
        # A kill can cut a write where the file gets a new page, so blanks are laid out ahead of it in large blocks.
        while self._place + sum(map(len, lines)) + _ROOM // 2 > self._room:
            self._room += os.pwrite(self._file.fileno(), b" " * _ROOM, self._room)
        text = (",\n" if self._place > 2 else "") + ",\n".join(lines)
        os.pwrite(self._file.fileno(), f"{text}\n]".encode(), self._place)
        self._place += len(text)


def begin_timeline(timeline: Timeline, settings: Settings, rank: int) -> None:
    """The one that the settings ask for.

    Raises:
        LaunchError: it cannot be written.
    """
    if rank or settings.timeline.lower() in ("", "dynamic"):
        return
    try:
        timeline.open(settings.timeline, bool(settings.timeline_mark_cycles))
    except OSError as error:
        raise LaunchError(
            f"The timeline {settings.timeline} cannot be written: {error.strerror or error}. Give a file in an "
            "existing folder: HOROVOD_TIMELINE, WORKBENCH_TIMELINE or --timeline-filename."
        ) from None
