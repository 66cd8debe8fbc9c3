"""Lesson 16, first half: the constants of a link from two timings, and the time of a step from its layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Any

import numpy as np

from workbench.course.judging.task import PlainTask
from workbench.simulate.machines import Wire
from workbench.simulate.steps import Policy, Span, simulate

_CLOSE = 0.03
Network = Callable[[float], float]


def fit_link(ranks: Any, short: Any, long: Any) -> Any:
    """Return (latency_s, per_byte_s) of a link, from allreduces of two sizes.

    short, long: each (bytes of the array, [seconds of each repetition]). Other programs
    disturb a few of the repetitions.
    A ring takes 2 (ranks - 1) steps. In each step a rank sends bytes / ranks, which takes
    latency_s + per_byte_s * bytes / ranks seconds.
    No constant is negative: on a busy machine the short array may seem to take longer
    than the long one. A constant that comes out below 0 is 0.
    """
    ### BEGIN SOLUTION
    steps = 2 * (ranks - 1)
    (few, quick), (many, slow) = (short[0], median(short[1])), (long[0], median(long[1]))
    per_byte_s = max(0.0, (slow - quick) / (many - few)) * ranks / steps
    return max(0.0, quick / steps - per_byte_s * few / ranks), per_byte_s
    ### END SOLUTION


def _ring(ranks: int, nbytes: float, wire: Wire) -> float:
    return 2 * (ranks - 1) * (wire.latency_s + wire.per_byte_s * nbytes / ranks)


_LINKS = [
    (2, Wire(0.0, 1e-9)),
    (2, Wire(1e-4, 1e-9)),
    (4, Wire(2e-5, 4e-10)),
    (3, Wire(0.0, 2e-8)),
    (16, Wire(5e-4, 0.0)),
]
_SIZES = 4_000, 16_000_000


def _answer(function: Callable[..., Any], ranks: int, short: Any, long: Any) -> tuple[float, float]:
    """The learner's two numbers.

    Raises:
        TypeError: they are something else.
    """
    found = function(ranks, short, long)
    if found is None:
        raise TypeError("fit_link(…) is None. Is there a return?")
    if not isinstance(found, (tuple, list)) or len(found) != 2:
        raise TypeError(f"fit_link(…) is {found!r}, and no pair (latency_s, per_byte_s)")
    return float(found[0]), float(found[1])


def _links_exact(function: Callable[..., Any]) -> str:
    """From exact times it finds both constants, on 2 to 16 ranks."""
    for ranks, wire in _LINKS:
        yours, wanted = _answer(function, ranks, *_exact(ranks, wire)), (wire.latency_s, wire.per_byte_s)
        if not _alike(yours, wanted):
            times = " and ".join(f"{nbytes:,} bytes in {took[0]:.4g} s" for nbytes, took in _exact(ranks, wire))
            return (
                f"{ranks} ranks, {times}: your result is {yours[0]:.3g}, {yours[1]:.3g}, expected {wanted[0]:.3g}, "
                f"{wanted[1]:.3g}"
            )
    return ""


def _exact(ranks: int, wire: Wire) -> list[tuple[int, list[float]]]:
    return [(nbytes, [_ring(ranks, nbytes, wire)] * 5) for nbytes in _SIZES]


def _alike(yours: Sequence[float], wanted: Sequence[float]) -> bool:
    return bool(np.allclose(yours, wanted, rtol=_CLOSE, atol=1e-13))


def _links_disturbed(function: Callable[..., Any]) -> str:
    """Three slow repetitions of fifteen change nothing."""
    chance = np.random.default_rng(16)
    for ranks, wire in _LINKS[:3]:
        pair = []
        for nbytes in _SIZES:
            times = _ring(ranks, nbytes, wire) * np.ones(15)
            slow = [0, 14, int(chance.integers(1, 14))]  # so that neither the first nor the last one will do
            times[slow] *= chance.uniform(3, 20, 3)
            pair.append((nbytes, times.tolist()))
        yours, wanted = _answer(function, ranks, *pair), (wire.latency_s, wire.per_byte_s)
        if not _alike(yours, wanted):
            return (
                f"{ranks} ranks, 3 of 15 repetitions disturbed: your result is {yours[0]:.3g}, {yours[1]:.3g}, "
                f"expected {wanted[0]:.3g}, {wanted[1]:.3g}. Every slow repetition changes a mean; what does it not "
                "change?"
            )
    return ""


def _links_positive(function: Callable[..., Any]) -> str:
    """No constant is negative, however busy the machine was."""
    for quick_s, slow_s, which in ((0.010, 0.008, 1), (1e-6, 1.0, 0)):
        short, long = (_SIZES[0], [quick_s] * 5), (_SIZES[1], [slow_s] * 5)
        yours, about = _answer(function, 2, short, long), f"short {quick_s} s, long {slow_s} s"
        if min(yours) < 0:
            return f"{about}: your result is {yours}. Latency and time per byte cannot be negative: return 0 instead"
        if yours[which] > 1e-15:
            name = ("latency_s", "per_byte_s")[which]
            return (
                f"{about}: your {name} is {yours[which]:.3g}. The times give less than 0 here, and the least that it "
                "can be is 0: max(0, …), not abs(…)"
            )
    return ""


def step_time(layers: Any, reduce_s: Any) -> Any:
    """Return how many seconds a training step takes, with communication.

    layers: in forward order; each has forward_s, backward_s, and values, the number of its
    gradients (4 bytes each).
    reduce_s(nbytes): how long an allreduce of so many bytes takes.
    First all layers run forward, then all run backward, the last layer first. When a
    layer's backward ends, its gradients are ready. The network carries one layer's
    gradients at a time, in the order in which they are ready. A layer without gradients
    sends nothing. The next step begins when backward is over and all gradients are
    reduced.
    """
    ### BEGIN SOLUTION
    now, free = sum(layer.forward_s for layer in layers), 0.0
    for layer in reversed(layers):
        now += layer.backward_s
        if layer.values:
            free = max(free, now) + reduce_s(4 * layer.values)
    return max(now, free)
    ### END SOLUTION


def line(latency_s: float, per_byte_s: float) -> Network:
    """A network whose messages pay a latency, and the same for each byte."""
    return lambda nbytes: latency_s + per_byte_s * nbytes


def models() -> Iterator[tuple[str, list[Span], Network]]:
    """(words, layers, network); the smallest first."""
    yield "one layer", [Span("a", 1.0, 2.0, 25)], line(0.0, 0.01)
    two = [Span("a", 1.0, 2.5, 30), Span("b", 0.5, 1.25, 90)]
    yield "two layers, a slow network", two, line(0.25, 0.01)
    yield "two layers, a fast network", two, line(0.001, 0.001)
    yield "the layer in front has no gradients", [Span("update", 0.5, 0.25, 0), *two], line(0.25, 0.001)
    yield "the same on a fast network", [Span("update", 0.5, 0.25, 0), *two], line(0.001, 0.001)
    three = [Span("a", 1.0, 2.0, 100), Span("b", 1.5, 3.0, 10), Span("c", 0.5, 1.0, 220)]
    yield "three layers", three, line(0.125, 0.01)
    chance = np.random.default_rng(61)
    for number in range(100):
        layers = [
            Span(f"{i}", float(chance.uniform(0.1, 2)), float(chance.uniform(0.1, 2)), int(chance.integers(0, 200)))
            for i in range(3 + number // 20)
        ]
        if any(layer.values for layer in layers):
            yield f"{len(layers)} layers", layers, line(float(chance.uniform(0, 1)), float(chance.uniform(0, 0.01)))


def number(function: Callable[..., Any], layers: list[Span], reduce_s: Network) -> float:
    """The learner's number.

    Raises:
        TypeError: it is none.
    """
    found = function(list(layers), reduce_s)
    if found is None:
        raise TypeError(f"{function.__name__}(…) is None. Is there a return?")
    if isinstance(found, bool) or not isinstance(found, (int, float, np.number)):
        raise TypeError(f"{function.__name__}(…) is {found!r}, and no number of seconds")
    return float(found)


def shown(layers: Sequence[Span], reduce_s: Network) -> str:
    """Layers and network in one line."""
    told = ", ".join(f"({one.forward_s:.3g}, {one.backward_s:.3g}, {one.values})" for one in layers)
    network = f"reduce_s(0) = {reduce_s(0.0):.3g}, reduce_s(400) = {reduce_s(400.0):.3g}"
    return f"(forward_s, backward_s, values) = {told}, {network}"


def _simulated(function: Callable[..., Any]) -> str:
    """It is what the simulator says, for 100 models."""
    for words, layers, reduce_s in models():
        yours, wanted = number(function, layers, reduce_s), simulate(layers, reduce_s, Policy(fusion_bytes=0)).step_s
        if not np.isclose(yours, wanted, rtol=1e-6):
            return f"{words}, {shown(layers, reduce_s)}: your result is {yours:.4g}, expected {wanted:.4g}"
    return ""


_PROBES = [(ranks, *_exact(ranks, wire)) for ranks, wire in _LINKS] + [
    (ranks, *((nbytes, [times[0] * 5, *times, times[0] * 9]) for nbytes, times in _exact(ranks, wire)))
    for ranks, wire in _LINKS[1:3]
]

TASKS = [
    PlainTask(
        "16.fit_link",
        "latency and bandwidth of a link, from two sizes",
        fit_link,
        probes=lambda: _PROBES,
        properties=[_links_exact, _links_disturbed, _links_positive],
        points=2,
    ),
    PlainTask(
        "16.step_time",
        "a training step, from its layers and a network",
        step_time,
        probes=lambda: [(layers, reduce_s) for _, layers, reduce_s in list(models())[:10]],
        properties=[_simulated],
        points=2,
    ),
]
