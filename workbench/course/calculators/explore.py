"""The calculators with their sliders, and the three settings of each that stay where there is no kernel."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from workbench.course.calculators import units
from workbench.course.calculators.lanes import described, lanes
from workbench.course.calculators.panel import Knob, nearest, panel, stops
from workbench.course.calculators.steps import NETWORKS, Training
from workbench.observe.figure import Figure

STEPS: Mapping[str, Training] = MappingProxyType(
    {
        "α = 200 µs, 10 GB/s, no buckets": Training(alpha_s=200e-6, bucket_bytes=0),
        "α = 200 µs, 10 GB/s, buckets of 10 MB": Training(alpha_s=200e-6, bucket_bytes=10_000_000),
        "α = 200 µs, 1 GB/s, buckets of 10 MB": Training(alpha_s=200e-6, beta_s=1e-9, bucket_bytes=10_000_000),
    }
)
"""Latency-bound, hidden, bandwidth-bound: 8 ranks, 100 MB of gradients, 100 ms of computing."""
_BUCKETS = "α = 200 µs, 10 GB/s, buckets of 10 MB"


def step(training: Training = STEPS[_BUCKETS]) -> Any:
    """Sliders for the time of a step; a page without a kernel shows :data:`STEPS`.

    Args:
        training: where they begin, each at the stop nearest to it.

    Example:
        >>> sliders = step()
        >>> sliders.knobs["ranks"].value = 64
        >>> sliders.knobs["ranks"].label
        '64 ranks'
    """
    return panel(step_knobs(training), lambda told: lanes({described(one := Training(**told)): one}), three_steps())


def three_steps() -> Figure:
    """The picture of :data:`STEPS`."""
    return lanes(STEPS, "100 MB of gradients on 8 ranks")


def step_knobs(training: Training) -> list[Knob]:
    """What a training consists of."""
    ranks = stops([1, *units.doubled(2, 512)], lambda n: f"{n} rank" + "s" * (n != 1))
    latency = stops([0.0, *units.series(1e-6, 1e-2)], units.seconds)
    speed = {f"{units.nbytes(rate)}/s": 1 / rate for rate in units.series(1e7, 1e12)}
    total, bucket = (
        stops(units.series(1e5, 1e10), units.nbytes),
        stops([int(each) for each in units.series(1e4, 1e10)], units.nbytes),
    )
    compute = stops(units.series(1e-3, 10.0), units.seconds)
    return [
        Knob("ranks", "ranks n", ranks, nearest(ranks, training.ranks)),
        Knob("compute_s", "computing alone", compute, nearest(compute, training.compute_s)),
        Knob("alpha_s", "latency α", latency, nearest(latency, training.alpha_s)),
        Knob("beta_s", "bandwidth 1/β", speed, nearest(speed, training.beta_s)),
        Knob("gradient_bytes", "gradients", total, nearest(total, training.gradient_bytes)),
        Knob(
            "bucket_bytes",
            "a bucket, up to",
            {"none": 0, **bucket},
            nearest({"none": 0, **bucket}, training.bucket_bytes),
        ),
        Knob("network", "network", {name: name for name in NETWORKS}, training.network, slides=False),
    ]


__all__ = ["STEPS", "step", "step_knobs", "three_steps"]
