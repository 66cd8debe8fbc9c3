"""What this rank is at, for who looks at the job while it runs: what it waits for, and what it has moved."""

from __future__ import annotations

import time
from typing import Any, TypedDict

from workbench.core.backend.process_sets import SetTable
from workbench.core.engine import Engine
from workbench.core.messages import Key
from workbench.runtime.faults.blocked_threads import BlockedThreads
from workbench.runtime.trace.recorder import Recorder

_MOST_NAMES = 200


class Wait(TypedDict):
    """What a thread of this rank waits for.

    Args:
        name: of the tensor.
        process_set: its number.
        members: the ranks of the set.
        line: where in the user's code.
        since_s: how long ago the tensor was submitted.
    """

    name: str
    process_set: int
    members: list[int]
    line: str
    since_s: float


def rank_state(engine: Engine, waits: BlockedThreads, sets: SetTable, recorder: Recorder) -> dict[str, Any]:
    """Plain data, from any thread.

    Returns:
        ``waits``: a :class:`Wait` for each thread that waits; ``pending``: what is in flight, as (process set, name);
        ``batches`` and ``bytes``: how much was moved since somebody first asked.

    Example:
        >>> from workbench.job import api
        >>> from workbench.job.context import HOLDER
        >>> sorted(api.run_threads(1, lambda: HOLDER.get().state())[0])
        ['batches', 'bytes', 'pending', 'rank', 'size', 'waits']
    """
    pending, moved = engine.submitted(), recorder.totals()
    return {
        "waits": [_wait(sets, pending, *each) for each in waits.now()],
        "pending": [list(key) for key in list(pending)[:_MOST_NAMES]],
        "batches": moved.batches,
        "bytes": moved.bytes,
    }


def _wait(sets: SetTable, pending: dict[Key, int], process_set: int, name: str, line: str) -> Wait:
    submitted, backend = pending.get((process_set, name)), sets.backend(process_set)
    return {
        "name": name,
        "process_set": process_set,
        "members": list(backend.ranks) if backend is not None else [],
        "line": line,
        "since_s": (time.perf_counter_ns() - submitted) / 1e9 if submitted else 0.0,
    }
