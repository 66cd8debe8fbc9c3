"""The first calculator, held against a training on ranks of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import workbench
from workbench.calibration.contention import simulate_together
from workbench.calibration.links import reduction
from workbench.calibration.prediction import Measured
from workbench.course.calculators import units
from workbench.course.calculators.steps import Step, Training, step_of
from workbench.observe.table import RankTable
from workbench.simulate.steps import Policy

SIZES = (256, *[512] * 13, 10)
"""Of a network with 14 layers, twelve of which have 1 MiB of gradients each."""
BUCKETS = 0, 4 << 20, 64 << 20
"""Each layer by itself; four layers together; all of them."""
_DEADLINE_S = 120.0


@dataclass(frozen=True)
class Row:
    """One size of buckets.

    Args:
        step: as calculated.
        measured_s: the median of some steps, each of the slowest rank.
    """

    step: Step
    measured_s: float

    @property
    def error(self) -> float:
        """By which part the calculated step is too long."""
        return self.step.step_s / self.measured_s - 1


@dataclass(frozen=True, repr=False)
class Held:
    """Calculated beside measured.

    Args:
        found: the links, layers and contention that were measured, without a training step over the links.
        rows: by size of buckets.
    """

    found: Measured
    rows: Sequence[Row] = field(default_factory=tuple)

    @property
    def table(self) -> RankTable:
        """For reading."""
        lines = [
            (
                units.nbytes(row.step.training.bucket_bytes) if row.step.training.bucket_bytes else "none",
                str(row.step.messages),
                units.seconds(row.step.exposed_s),
                units.seconds(row.step.step_s),
                units.seconds(row.measured_s),
                f"{row.error:+.0%}",
            )
            for row in self.rows
        ]
        return RankTable(("buckets", "messages", "exposed", "calculated", "measured", "difference"), lines)

    def __repr__(self) -> str:
        return repr(self.table)

    def _repr_html_(self) -> str:
        return self.table._repr_html_()


def measured(
    ranks: int = 2, buckets: Sequence[int] = BUCKETS, sizes: Sequence[int] = SIZES, seconds: float = 3.0
) -> Held:
    """Measure α, β and the layers on ranks of this machine, calculate a step from them, then train.

    Each size of buckets is a job of its own, since ``WORKBENCH_BUCKET_BYTES`` is read when a job begins.

    Args:
        ranks: how many, at least two.
        buckets: sizes to be tried; 0: none.
        sizes: of the network's layers.
        seconds: how long the measurement takes, about.

    Raises:
        RankFailedError, PeerLostError, DeadlineError: a job has failed.
    """
    first, *others = buckets
    found, took = _job(ranks, first, sizes, seconds)
    assert found is not None
    times = [took, *(_job(ranks, each, sizes, 0.0)[1] for each in others)]
    rows = [Row(calculated(found, ranks, each), took) for each, took in zip(buckets, times, strict=True)]
    return Held(found, tuple(rows))


def calculated(found: Measured, ranks: int, bucket_bytes: int) -> Step:
    """A step from what was measured, with this job's way of sending: what is ready travels together.

    Computing and reducing share the cores here, so each slows the other down while both run, as measured.
    """
    machines = found.links.machines(ranks)
    wire, ring_s = machines.inside, reduction(machines)
    policy = Policy(bucket_bytes=bucket_bytes, announce_s=found.links.announce_s)
    compute_s = sum(layer.forward_s + layer.backward_s for layer in found.layers)
    nbytes = 4.0 * sum(layer.values for layer in found.layers)
    training = Training(ranks, wire.latency_s, wire.per_byte_s, nbytes, bucket_bytes, compute_s)
    return step_of(training, simulate_together(found.layers, ring_s, policy, found.contention), ring_s(0.0))


def _job(ranks: int, bucket_bytes: int, sizes: Sequence[int], seconds: float) -> tuple[Measured | None, float]:
    """Start it; what rank 0 has found, which is what all have."""
    variables = {"WORKBENCH_BUCKET_BYTES": str(bucket_bytes)}
    found = workbench.run(_on_a_rank, (tuple(sizes), seconds), np=ranks, env=variables, timeout_s=_DEADLINE_S)
    return found[0]


def _on_a_rank(sizes: tuple[int, ...], seconds: float) -> tuple[Measured | None, float]:
    """Measure for so many seconds, if any, and train."""
    import workbench.torch as hvd
    from workbench.course.training.own_ranks import batch, network, trained

    hvd.init()
    anything = float("inf")  # a busy machine is measured too: the reader sees by how much it misses
    found = workbench.measure(network(sizes), batch(sizes), seconds=seconds, doubt=anything) if seconds else None
    took = trained(sizes=sizes)
    hvd.shutdown()
    return found, took


__all__ = ["BUCKETS", "SIZES", "Held", "Row", "calculated", "measured"]
