"""The calculators with their sliders, and the three settings of each that stay where there is no kernel."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from workbench.course.calculators import units
from workbench.course.calculators.lanes import lanes
from workbench.course.calculators.memory import MIXED, OPTIMIZERS, PRECISIONS, MemorySettings
from workbench.course.calculators.panel import Knob, nearest, panel, stops
from workbench.course.calculators.stacks import stacks
from workbench.course.calculators.steps import NETWORKS, Training

STEPS: Mapping[str, Training] = MappingProxyType(
    {
        "α = 200 µs, 10 GB/s, no buckets": Training(alpha_s=200e-6, bucket_bytes=0),
        "α = 200 µs, 10 GB/s, buckets of 10 MB": Training(alpha_s=200e-6, bucket_bytes=10_000_000),
        "α = 200 µs, 1 GB/s, buckets of 10 MB": Training(alpha_s=200e-6, beta_s=1e-9, bucket_bytes=10_000_000),
    }
)
"""Latency-bound, hidden, bandwidth-bound: 8 ranks, 100 MB of gradients, 100 ms of computing."""
_EIGHT = "100 MB of gradients on 8 ranks"
_BUCKETS = "α = 200 µs, 10 GB/s, buckets of 10 MB"


def step(
    training: Training = STEPS[_BUCKETS],
    settings: Mapping[str, Training] = STEPS,
    title: str = _EIGHT,
) -> Any:
    """Sliders for the time of a step.

    Args:
        training: where they begin, each at the stop nearest to it.
        settings: what a page without a kernel shows.
        title: what these have in common.

    Example:
        >>> sliders = step()
        >>> sliders.knobs["ranks"].value = 64
        >>> sliders.knobs["ranks"].label
        '64 ranks'
    """
    still = lanes(settings, title)
    return panel(step_knobs(training), lambda told: lanes({"": Training(**told)}), still)


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


JOBS: Mapping[str, MemorySettings] = MappingProxyType(
    {
        "mostly activations": MemorySettings(25_000_000, 8, "SGD with momentum", "float32", 100e6, 64, 16e9),
        "mostly the optimizer's state": MemorySettings(1_500_000_000, 8, "Adam", MIXED, 500e6, 4, 16e9),
        "too much of everything": MemorySettings(7_500_000_000, 64, "Adam", MIXED, 0.0, 1, 16e9),
    }
)
"""Sharding saves nothing; the optimizer's state alone is enough; only all three are. Activations are assumed."""
_STATE = "mostly the optimizer's state"


def memory(job: MemorySettings = JOBS[_STATE]) -> Any:
    """Sliders for the memory of a rank; a page without a kernel shows :data:`JOBS`.

    Args:
        job: where they begin, each at the stop nearest to it.

    Example:
        >>> sliders = memory()
        >>> sliders.knobs["optimizer"].value = "SGD"
        >>> "SGD" in sliders.shown.value
        True
    """
    return panel(memory_knobs(job), lambda told: stacks({"": MemorySettings(**told)}), stacks(JOBS))


def memory_knobs(job: MemorySettings) -> list[Knob]:
    """What a job consists of."""
    parameters = stops([int(each) for each in (*units.series(1e5, 1e12), 7.5e9, 1.5e9, 2.5e7)], units.count)
    parameters = dict(sorted(parameters.items(), key=lambda one: one[1]))
    ranks = stops([1, *units.doubled(2, 1024)], lambda n: f"{n} rank" + "s" * (n != 1))
    each = {"none": 0.0, **stops(units.series(1e3, 1e11), units.nbytes)}
    batch = stops([1, *units.doubled(2, 1024)], lambda n: f"{n} sample" + "s" * (n != 1))
    device = stops([float(gigabytes * 10**9) for gigabytes in (4, 8, 16, 24, 32, 40, 80, 141, 192)], units.nbytes)
    return [
        Knob("parameters", "parameters Ψ", parameters, nearest(parameters, job.parameters)),
        Knob("ranks", "ranks n", ranks, nearest(ranks, job.ranks)),
        Knob("activation_bytes", "activations, a sample", each, nearest(each, job.activation_bytes)),
        Knob("batch", "batch of a rank", batch, nearest(batch, job.batch)),
        Knob("device_bytes", "memory of a rank", device, nearest(device, job.device_bytes)),
        Knob("optimizer", "optimizer", {name: name for name in OPTIMIZERS}, job.optimizer, slides=False),
        Knob("precision", "precision", {name: name for name in PRECISIONS}, job.precision, slides=False),
    ]


__all__ = ["JOBS", "STEPS", "memory", "memory_knobs", "step", "step_knobs"]
