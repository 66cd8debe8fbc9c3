"""A simulated step as a Chrome trace: load it in chrome://tracing or Perfetto, beside a timeline of real ranks.

One process with two threads, as in :mod:`workbench.simulate.steps`: ``compute`` and ``network``. Each event is complete
("X"), with its begin and its length in microseconds; a reduction's bytes stand in ``args``.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from workbench.common.chrome_trace import TraceEvent, complete, named, trace, write
from workbench.simulate.steps import Policy, Result, Span, TimedEvent

_THREADS = {"forward": 0, "backward": 0, "reduce": 1}


def chrome_trace(result: Result, layers: Sequence[Span], policy: Policy | None = None) -> dict[str, Any]:
    """The last step of a simulation.

    Args:
        result: of :func:`workbench.simulate.steps.simulate`.
        layers: that were simulated.
        policy: with which they were.

    Returns:
        A trace in the JSON object format. Its first event begins at 0.

    Raises:
        ValueError: there are no events, or one of a layer that is not among ``layers``.

    Example:
        >>> from workbench.simulate.steps import simulate
        >>> one = [Span("fc", forward_s=1e-3, backward_s=2e-3, values=1000)]
        >>> trace = chrome_trace(simulate(one, lambda nbytes: 5e-4), one)
        >>> [(e["name"], e["ts"], e["dur"]) for e in trace["traceEvents"] if e["ph"] == "X"]
        [('forward fc', 0.0, 1000.0), ('backward fc', 1000.0, 2000.0), ('reduce fc', 3000.0, 500.0)]
    """
    values = {layer.name: layer.values for layer in layers}
    unknown = sorted({name for event in result.events for name in event.names} - values.keys())
    if unknown or not result.events:
        of = ", ".join(unknown) or "no layer"
        raise ValueError(f"Events of {of}: give the result and the layers of one simulate().")
    value_bytes = (policy or Policy()).value_bytes
    start = min(event.begin_s for event in result.events)
    names = [named("process", 0, "a simulated step"), named("thread", 0, "compute"), named("thread", 0, "network", 1)]
    return trace([*names, *(_complete(event, start, value_bytes * event.values) for event in result.events)])


def write_chrome_trace(path: str | Path, result: Result, layers: Sequence[Span], policy: Policy | None = None) -> None:
    """Write :func:`chrome_trace` to a file.

    Raises:
        OSError: it cannot be written.
        ValueError: as there.
    """
    write(path, chrome_trace(result, layers, policy))


def _complete(event: TimedEvent, start_s: float, nbytes: int) -> TraceEvent:
    name, thread = f"{event.what} {', '.join(event.names)}", _THREADS[event.what]
    args = {"bytes": nbytes} if event.what == "reduce" else {}
    begin_us, end_us = 1e6 * (event.begin_s - start_s), 1e6 * (event.end_s - start_s)
    return complete(0, thread, name, event.what, begin_us, end_us, **args)
