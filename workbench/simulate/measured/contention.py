"""A simulated step in which computing and reducing slow each other down, as measured on the same cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from workbench.simulate.steps import Policy, Result, Span, TimedEvent, simulate

_CLOSE = 1e-3
_TIMES = 50


@dataclass(frozen=True)
class Contention:
    """How many times as long it takes while the other runs, at least 1.

    Args:
        compute: a computation, while the network reduces.
        reduce: a reduction, while the ranks compute.
    """

    compute: float = 1.0
    reduce: float = 1.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (np.isfinite(value) and value >= 1):
                raise ValueError(f"{name} is {value}: a finite number of times, 1 at least, is needed.")


def simulate_together(
    layers: Sequence[Span], reduce_s: Callable[[float], float], policy: Policy, contention: Contention
) -> Result:
    """As :func:`workbench.simulate.steps.simulate`, with slower computing and reducing while both run.

    Each takes longer by the time in which both run, and that depends on how long each takes. So the step is simulated
    again, with what overlapped last time, until its length stays.
    """
    spans, factor, found = list(layers), 1.0, simulate(layers, reduce_s, policy)
    lost, delayed = 1 - 1 / contention.compute, 1 - 1 / contention.reduce
    for _ in range(_TIMES if lost or delayed else 0):
        reductions = [event for event in found.events if event.what == "reduce"]
        both = {
            (event.what, event.names[0]): sum(_both_s(event, one) for one in reductions)
            for event in found.events if event.what != "reduce"
        }  # fmt: skip
        spans = [
            replace(
                layer,
                forward_s=layer.forward_s + lost * both["forward", layer.name],
                backward_s=layer.backward_s + lost * both["backward", layer.name],
            )
            for layer in layers
        ]
        busy = sum(event.end_s - event.begin_s for event in reductions)
        before = found.step_s, factor
        factor = 1 + delayed * factor * sum(both.values()) / busy if busy else 1.0
        found = simulate(spans, _times_as_long(reduce_s, factor), policy)
        if np.allclose((found.step_s, factor), before, rtol=_CLOSE):
            break
    return found


def _times_as_long(reduce_s: Callable[[float], float], factor: float) -> Callable[[float], float]:
    return lambda nbytes: factor * reduce_s(nbytes)


def _both_s(one: TimedEvent, other: TimedEvent) -> float:
    return max(0.0, min(one.end_s, other.end_s) - max(one.begin_s, other.begin_s))
