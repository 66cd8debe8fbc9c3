"""One picture of an elastic job: what its ranks have recorded in all epochs, by the engines that they were.

A rank's number holds for one epoch, an engine's for its life. So each track is an engine. What an engine has recorded
that was lost is lost with it: its track says when it was gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import TypedDict

from workbench.runtime.trace.recorder import Collective, Recorder, Snapshot

_MOST = 10**9  # batches of an epoch
_KEPT = 8  # epochs


class Recorded(TypedDict):
    """What a process has recorded as a rank of an epoch."""

    epoch: int
    rank: int
    snapshot: Snapshot


_past: deque[tuple[int, int, Recorder]] = deque(maxlen=_KEPT)


def keep(epoch: int, rank: int, recorder: Recorder) -> None:
    """This process leaves an epoch; its records are kept."""
    _past.append((epoch, rank, recorder))


def past(last: int) -> list[Recorded]:
    """What this process has recorded in epochs that it has left, oldest first.

    Args:
        last: so many batches of each.
    """
    return [{"epoch": epoch, "rank": rank, "snapshot": found.snapshot(last)} for epoch, rank, found in _past]


def by_engine(found: Mapping[int, Sequence[Recorded]], engines: Sequence[int]) -> list[Snapshot]:
    """One snapshot for each engine, in which all epochs follow each other; ranks in it are places in ``engines``.

    Args:
        found: what the engines have recorded.
        engines: those that get a track, also ones that nothing was found of.

    Example:
        >>> empty = {"host": "a", "wall_ns": 7, "collectives": [], "answers": [("x", 1, 5)]}
        >>> first = [{"epoch": 1, "rank": 0, "snapshot": empty}]
        >>> second = [{"epoch": 1, "rank": 1, "snapshot": {**empty, "answers": []}}]
        >>> [one["answers"] for one in by_engine({4: first, 9: second}, [3, 4, 9])]
        [[('x', 2, 5)], [], []]
    """
    rows = {(one["epoch"], one["rank"]): row for row, each in enumerate(engines) for one in found.get(each, ())}
    clock = next((one["snapshot"] for each in found.values() for one in each), None)
    host, wall_ns = (clock["host"], clock["wall_ns"]) if clock else ("", 0)
    merged: list[Snapshot] = [{"host": host, "wall_ns": wall_ns, "collectives": [], "answers": []} for _ in engines]
    for row, each in enumerate(engines):
        for one in found.get(each, ()):
            epoch, snapshot = one["epoch"], one["snapshot"]
            merged[row]["collectives"] += [_numbered(batch, epoch) for batch in snapshot["collectives"]]
            answers = [answer for answer in snapshot["answers"] if (epoch, answer[1]) in rows]
            merged[0]["answers"] += [(name, rows[epoch, rank], when) for name, rank, when in answers]
    return merged


def _numbered(batch: Collective, epoch: int) -> Collective:
    """Batches of different epochs are different."""
    return {**batch, "index": batch["index"] + epoch * _MOST}
