"""Recorders' snapshots to read: made up, so that each trap is in them, and recorded from ranks that have run."""

from __future__ import annotations

import time
from functools import cache
from random import Random

import numpy as np

from workbench.job import api
from workbench.observe.timeline_picture import recorded
from workbench.runtime.trace.recorder import Answer, Collective, Snapshot

_HASTE = 900  # ns between two events, at most, where nobody waits
_RANKS, _STEPS, _LATE_S = 3, 3, 0.004


def made_up(n: int, steps: int, seed: int = 0) -> list[Snapshot]:
    """Snapshots of n ranks after some steps: in each, two tensors travel together, and another one alone.

    Ranks take turns in being late. Rank r has forgotten its first r collectives, if two are left. Rank 0 has heard of
    the next step already, though it has not begun.

    Example:
        >>> one, two = made_up(2, 2)
        >>> [each["index"] for each in one["collectives"]], [each["index"] for each in two["collectives"]]
        ([0, 1, 2, 3], [1, 2, 3])
    """
    random, now = Random(f"{n} {steps} {seed}"), 1_000_000
    kept: list[list[Collective]] = [[] for _ in range(n)]
    answers: list[Answer] = []
    batches = [["allreduce.head.weight", "allreduce.head.bias"], ["allreduce.conv.weight"]]
    for index in range(len(batches) * steps):
        names, late = batches[index % len(batches)], (index + seed) % n
        submitted = [now + random.randrange(1, _HASTE) + (_HASTE * 7 if rank == late else 0) for rank in range(n)]
        announced = [at + random.randrange(20, _HASTE) for at in submitted]
        complete = max(announced) + random.randrange(20, _HASTE)
        answers += [(name, announced.index(max(announced)), complete) for name in names]
        for rank in range(n):
            arrived = complete + random.randrange(20, _HASTE)
            begun, done = arrived + random.randrange(1, 20), arrived + random.randrange(2_000, 3_000)
            times = submitted[rank], announced[rank], arrived, begun, done
            kept[rank].append(_collective(index, names, times))
            now = max(now, done)
        now += 10_000
    answers += [(name, n - 1, now) for name in batches[-1]]
    return [
        {
            "host": "here",
            "wall_ns": 0,
            "collectives": mine[min(rank, len(mine) - 2) :],
            "answers": [] if rank else answers,
        }
        for rank, mine in enumerate(kept)
    ]


def _collective(index: int, names: list[str], times: tuple[int, int, int, int, int]) -> Collective:
    submitted, announced, arrived, begun, done = times
    return {
        "index": index,
        "process_set": 0,
        "kind": "allreduce",
        "names": names,
        "bytes": 4096 * len(names),
        "submitted": (submitted, announced - 1 if len(names) > 1 else submitted),
        "announced": announced,
        "arrived": arrived,
        "begun": begun,
        "phases": [("SHM_ALLREDUCE", begun + 10, done - 10)],
        "done": done,
        "error": "",
    }


@cache
def from_ranks() -> list[Snapshot]:
    """Snapshots of three ranks that have just run, as threads of this process; in each step another one is late."""

    def job() -> Snapshot | None:
        for step in range(_STEPS):
            if (api.rank() + step) % _RANKS == 0:
                time.sleep(_LATE_S)
            for name in ("head.weight", "conv.weight"):
                api.allreduce(np.ones(4096), name=name)
        return recorded(4 * _STEPS)

    return [snapshot for snapshot in api.run_threads(_RANKS, job) if snapshot is not None]
