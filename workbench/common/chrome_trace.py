"""Events of the Chrome trace format, which Perfetto and chrome://tracing open. Times are in microseconds."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

TraceEvent = dict[str, Any]


def named(what: str, process: int, name: str, thread: int = 0) -> TraceEvent:
    """The name of a ``process`` or ``thread``.

    Example:
        >>> named("process", 1, "rank 1")
        {'ph': 'M', 'name': 'process_name', 'pid': 1, 'tid': 0, 'args': {'name': 'rank 1'}}
    """
    return {"ph": "M", "name": f"{what}_name", "pid": process, "tid": thread, "args": {"name": name}}


def sorted_at(process: int, place: int) -> TraceEvent:
    """Where a process stands among the others."""
    return {"ph": "M", "name": "process_sort_index", "pid": process, "args": {"sort_index": place}}


def complete(
    process: int, thread: int, name: str, category: str, begin_us: float, end_us: float, **args: Any
) -> TraceEvent:
    """Something with a begin and an end."""
    where = {"ph": "X", "pid": process, "tid": thread, "name": name, "cat": category}
    times = {"ts": round(begin_us, 3), "dur": round(end_us - begin_us, 3)}
    return where | times | ({"args": args} if args else {})


def trace(events: Iterable[TraceEvent]) -> dict[str, Any]:
    """A trace in the JSON object format."""
    return {"traceEvents": list(events), "displayTimeUnit": "ms"}


def write(path: str | Path, content: dict[str, Any]) -> None:
    """Write a :func:`trace` to a file.

    Raises:
        OSError: it cannot be written.
    """
    Path(path).write_text(json.dumps(content), encoding="utf-8")
