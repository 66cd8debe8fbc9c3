"""The recorder: when the last collectives of this rank were submitted, agreed upon, moved and done; kept in memory.

The timeline's observers fill it, on every rank and all the time, for it costs less than 2 % of a training step
(``benchmarks/recording.py``). Two threads write, each into containers of its own::

    engine, every rank      a batch is done: when its tensors were submitted and announced, when its response was read,
                            what was done to it from when to when
    coordinator, rank 0     a rank's announcement completes tensors: it was the last one, and when

Batches are numbered in each process set from 0. All members execute the same ones in the same order, so one number
means one batch, whoever says it. ``workbench.timeline()`` makes a picture of what all ranks have recorded.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from math import prod
from time import perf_counter_ns, time_ns
from typing import NamedTuple, TypedDict

from workbench.collectives.reduction import wire_dtype
from workbench.core.fusion import Batch
from workbench.core.messages import Response
from workbench.core.pending import Entry
from workbench.machine import host_id

KEPT = 512  # batches
OWN = "workbench.timeline"  # name of the collective by which records travel
_NOT_SHOWN = ("", f"allgather.{OWN}")  # nor what rank 0 says about no tensor

Phase = tuple[str, int, int]
"""(activity, from, to)"""


class Collective(TypedDict):
    """One batch on one rank. Times are of ``perf_counter_ns()``; 0 where this rank had submitted nothing.

    Args:
        index: its number in its process set.
        names: of the tensors that travelled together.
        bytes: of all of them; where the ranks' parts differ, of all parts together.
        submitted: the first and the last of them.
        announced: the last of them.
        arrived: the engine read the response.
        begun: the engine took the batch up.
        error: class of the error that it ended with, or "".
    """

    index: int
    process_set: int
    kind: str
    names: list[str]
    bytes: int
    submitted: tuple[int, int]
    announced: int
    arrived: int
    begun: int
    phases: list[Phase]
    done: int
    error: str


Answer = tuple[str, int, int]
"""(tensor, rank that was the last to announce it, when rank 0 heard that)"""


class Snapshot(TypedDict):
    """What a rank has recorded, as plain data.

    Args:
        host: equal for ranks with one clock.
        wall_ns: what to add to a time to get nanoseconds since 1970.
        answers: from rank 0 only.
    """

    host: str
    wall_ns: int
    collectives: list[Collective]
    answers: list[Answer]


def label(process_set: int, name: str) -> str:
    """A tensor's name for observers: two sets may use one name at the same time.

    Example:
        >>> label(0, "allreduce.x"), label(2, "allreduce.x")
        ('allreduce.x', 'allreduce.x (process set 2)')
    """
    return name if process_set == 0 else f"{name} (process set {process_set})"


def label_of(response: Response) -> str:
    """A response's label."""
    return label(response.process_set, response.name)


def labels(batch: Sequence[Response]) -> list[str]:
    """The labels of responses of one process set."""
    if batch[0].process_set == 0:
        return [response.name for response in batch]
    return [label_of(response) for response in batch]


class Totals(NamedTuple):
    """How many batches, and bytes of their tensors."""

    batches: int
    bytes: int


class Recorder:
    """Keeps the last batches; the oldest make room.

    Args:
        on: record at all?
        kept: how many batches.

    Example:
        >>> from workbench.core.messages import Kind
        >>> recorder = Recorder()
        >>> recorder.begins()
        >>> recorder.ended([Response("allreduce.x", Kind.ALLREDUCE, "float32", (3,))], [None])
        >>> [(one["names"], one["bytes"]) for one in recorder.snapshot(20)["collectives"]]
        [(['allreduce.x'], 12)]
    """

    def __init__(self, on: bool = True, kept: int = KEPT) -> None:
        self.on = on
        self._done: deque[tuple[Batch, int, tuple[int, ...], list[Phase], int]] = deque(maxlen=kept)
        self._count = Counter[int]()
        self._arrived = self._begun = 0
        self._phases: list[Phase] = []
        self._completed: deque[tuple[int, int, list[Response]]] = deque(maxlen=4 * kept)
        self._moved = Totals(0, 0)
        self._counted_at = 0  # batches that ended until then are in it

    # --- rank 0's coordinator -----------------------------------------------------------------------

    def completed(self, rank: int, responses: list[Response]) -> None:
        """What ``rank`` has announced was all that was missing for these."""
        if self.on:
            self._completed.append((rank, perf_counter_ns(), responses))

    # --- this rank's engine -------------------------------------------------------------------------

    def announces(self, entries: Sequence[Entry]) -> None:
        if self.on:
            now = perf_counter_ns()
            for entry in entries:
                entry.announced = now

    def arrived(self) -> None:
        self._arrived = perf_counter_ns()

    def begins(self) -> None:
        self._begun, self._phases = perf_counter_ns(), []

    def did(self, what: str, begun: int) -> None:
        """``what`` was done to the batch, from ``begun`` until now."""
        self._phases.append((what, begun, perf_counter_ns()))

    def ended(self, batch: Batch, entries: Sequence[Entry | None]) -> None:
        index = self._count[batch[0].process_set]
        self._count[batch[0].process_set] = index + 1  # also while it is off, for ranks are not switched at one moment
        if self.on:
            submitted = [entry.submitted for entry in entries if entry is not None] or [0]
            announced = max((entry.announced for entry in entries if entry is not None), default=0)
            times = min(submitted), max(submitted), announced, self._arrived, self._begun
            self._done.append((batch, index, times, self._phases, perf_counter_ns()))

    # --- any thread ---------------------------------------------------------------------------------

    def totals(self) -> Totals:
        """What has been moved since the first call. Batches that came and went between two calls are not counted."""
        done = [one for one in list(self._done) if one[4] > self._counted_at and one[0][0].name not in _NOT_SHOWN]
        if done:
            self._counted_at = done[-1][4]
            moved = sum(_nbytes(response) for one in done for response in one[0])
            self._moved = Totals(self._moved.batches + len(done), self._moved.bytes + moved)
        return self._moved

    def snapshot(self, last: int) -> Snapshot:
        """The last batches, oldest first, and who came last since the first of them began."""
        done = [one for one in list(self._done) if one[0][0].name not in _NOT_SHOWN]
        collectives = [_plain(*one) for one in done[max(0, len(done) - last) :]]
        begins = [one["submitted"][0] or one["arrived"] for one in collectives]
        since = min(begins) if len(done) > len(begins) > 0 else 0
        completed = [one for one in list(self._completed) if one[1] >= since]
        return {
            "host": host_id(),
            "wall_ns": time_ns() - perf_counter_ns(),
            "collectives": collectives,
            "answers": [(name, rank, at) for rank, at, responses in completed for name in map(label_of, responses)],
        }


def _plain(batch: Batch, index: int, times: tuple[int, ...], phases: list[Phase], done: int) -> Collective:
    first = batch[0]
    return {
        "index": index,
        "process_set": first.process_set,
        "kind": first.kind.value,
        "names": labels(batch),
        "bytes": sum(map(_nbytes, batch)),
        "submitted": (times[0], times[1]),
        "announced": times[2],
        "arrived": times[3],
        "begun": times[4],
        "phases": phases,
        "done": done,
        "error": first.error[0] if first.error else "",
    }


def _nbytes(response: Response) -> int:
    """Bytes of one tensor, of all ranks' rows where these differ."""
    if not response.dtype or response.error or response.all_absent:
        return 0
    shape = (sum(response.rows), *response.shape[1:]) if response.rows else response.shape
    return prod(shape) * wire_dtype(response.dtype).itemsize
