"""The calculators with their sliders, and the three settings of each that stay where there is no kernel."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from workbench.common.text import count
from workbench.course.calculators import units
from workbench.course.calculators.lanes import lanes
from workbench.course.calculators.memory import MIXED, OPTIMIZERS, PRECISIONS, MemorySettings
from workbench.course.calculators.panel import Knob, choice, panel, slider, stops
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
    rates = {f"{units.nbytes(rate)}/s": 1 / rate for rate in units.series(1e7, 1e12)}
    buckets = stops([int(each) for each in units.series(1e4, 1e10)], units.nbytes)
    return [
        slider(training, "ranks", "ranks n", stops([1, *units.doubled(2, 512)], lambda n: count(n, "rank"))),
        slider(training, "compute_s", "computing alone", stops(units.series(1e-3, 10.0), units.seconds)),
        slider(training, "alpha_s", "latency α", stops([0.0, *units.series(1e-6, 1e-2)], units.seconds)),
        slider(training, "beta_s", "bandwidth 1/β", rates),
        slider(training, "gradient_bytes", "gradients", stops(units.series(1e5, 1e10), units.nbytes)),
        slider(training, "bucket_bytes", "a bucket, up to", {"none": 0, **buckets}),
        choice(training, "network", "network", NETWORKS),
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
    parameters = sorted({int(each) for each in (*units.series(1e5, 1e12), 7.5e9, 1.5e9, 2.5e7)})
    each = {"none": 0.0, **stops(units.series(1e3, 1e11), units.nbytes)}
    device = [float(gigabytes * 10**9) for gigabytes in (4, 8, 16, 24, 32, 40, 80, 141, 192)]
    return [
        slider(job, "parameters", "parameters Ψ", stops(parameters, units.count)),
        slider(job, "ranks", "ranks n", stops([1, *units.doubled(2, 1024)], lambda n: count(n, "rank"))),
        slider(job, "activation_bytes", "activations, a sample", each),
        slider(job, "batch", "batch of a rank", stops([1, *units.doubled(2, 1024)], lambda n: count(n, "sample"))),
        slider(job, "device_bytes", "memory of a rank", stops(device, units.nbytes)),
        choice(job, "optimizer", "optimizer", OPTIMIZERS),
        choice(job, "precision", "precision", PRECISIONS),
    ]
