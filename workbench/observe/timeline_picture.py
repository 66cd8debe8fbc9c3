"""The timeline as a picture in the notebook: what the last collectives did on every rank, and who was waited for.

::

    %%px
    for images, labels in batches: step(...)

    workbench.timeline()            # in the kernel: asks the engines; last=20 batches
    workbench.timeline().save("steps.svg")
    workbench.timeline().chrome_trace("steps.json")     # for https://ui.perfetto.dev or chrome://tracing
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from workbench.common import chrome_trace
from workbench.job import api
from workbench.job.context import HOLDER
from workbench.observe.drawing import caption, describe, svg, uncrowded
from workbench.observe.figure import Figure
from workbench.observe.tracks import Bar, Mark, Track, begins_ns, named, tracks, waited_s
from workbench.runtime.trace.epochs import Recorded, past
from workbench.runtime.trace.recorder import OWN, Snapshot


class Picture(Figure):
    """The last collectives of all ranks. A notebook shows it; hovering over a phase tells its tensors and bytes.

    Args:
        snapshots: what the ranks have recorded, by rank.
        last: how many batches to show.
        engines: of an elastic job, whose tracks are engines.
        changes: (nanoseconds since 1970, what has happened, to which engine; -1 for all).

    Attributes:
        tracks: the same as data, see :mod:`workbench.observe.tracks`.
        marks: what happened to an elastic job meanwhile.

    Example:
        >>> Picture([{"host": "a", "wall_ns": 0, "collectives": [], "answers": []}], last=20)
        Timeline: nothing recorded on 1 rank
    """

    def __init__(
        self,
        snapshots: Sequence[Snapshot],
        last: int,
        engines: Sequence[int] = (),
        changes: Sequence[tuple[int, str, int]] = (),
    ) -> None:
        self.tracks, self.marks, noun = tracks(snapshots, last), list[Mark](), "engine" if engines else "rank"
        if engines:
            self.tracks = [named(track, engines) for track in self.tracks]
            begin = begins_ns(snapshots, last)
            marks = [Mark((when - begin) / 1000, text, engine) for when, text, engine in changes if when > begin]
            self.marks = uncrowded(marks, self.tracks)
        super().__init__(svg(self.tracks, marks=self.marks, noun=noun), describe(self.tracks, noun))

    def _repr_html_(self) -> str:
        """The same. Jupyter puts an SVG into an ``<img>``, where there are no tooltips."""
        return self.svg

    @property
    def waited_s(self) -> dict[int, float]:
        """For each rank how long the others waited for it, in seconds."""
        return waited_s(self.tracks)

    def save(self, path: str | Path) -> None:
        """Write the SVG."""
        Path(path).write_text(self.svg, encoding="utf-8")

    def chrome_trace(self, path: str | Path) -> None:
        """Write the events as JSON that Perfetto and chrome://tracing open: a process per rank, a thread per row."""
        chrome_trace.write(path, chrome_trace.trace(trace_events(self.tracks)))


def recorded(last: int) -> Snapshot | None:
    """What this rank has recorded, with some batches more than are asked for, to see what it did before them."""
    if not api.is_initialized():
        return None
    return HOLDER.get().timeline.recorder.snapshot(2 * last)


def all_recorded(last: int) -> list[Recorded]:
    """The same, and what this process has recorded in epochs that it has left."""
    context = HOLDER.find()
    now = recorded(last)
    epoch = getattr(context.bootstrap, "epoch", 0) if context else 0
    return past(2 * last) + ([{"epoch": epoch, "rank": api.rank(), "snapshot": now}] if now else [])


def trace_events(shown: Sequence[Track]) -> Iterator[dict[str, Any]]:
    """The tracks as Chrome trace events; phases lie within their batch, and a category is a phase."""
    for track in shown:
        yield chrome_trace.named("process", track.rank, f"rank {track.rank}")
        yield chrome_trace.sorted_at(track.rank, track.rank)
        yield chrome_trace.named("thread", track.rank, "compute")
        for row in sorted({bar.row for bar in track.bars}):
            yield chrome_trace.named("thread", track.rank, f"collectives {row + 1}", row + 1)
        for span in track.compute:
            yield chrome_trace.complete(track.rank, 0, span.phase, span.phase, span.begin, span.end)
        for bar in track.bars:
            yield from _batch_events(track.rank, bar)


def _batch_events(rank: int, bar: Bar) -> Iterator[dict[str, Any]]:
    if not bar.spans:
        return
    tensors = {"tensors": list(bar.names), "bytes": bar.nbytes, "last": bar.last, "error": bar.error}
    begin, end = bar.spans[0].begin, bar.spans[-1].end
    yield chrome_trace.complete(rank, bar.row + 1, bar.names[0], bar.kind, begin, end, **tensors)
    for span in bar.spans:
        yield chrome_trace.complete(rank, bar.row + 1, caption(span, bar), span.phase, span.begin, span.end)


def gathered(last: int) -> list[Snapshot]:
    """Everybody's records, to everybody, by an allgather that is not recorded itself."""
    mine = json.dumps(HOLDER.get().timeline.recorder.snapshot(2 * last)).encode() + b"\n"
    lines = api.allgather(np.frombuffer(mine, np.uint8), name=OWN).tobytes().splitlines()
    return [json.loads(line) for line in lines]
