"""The first calculator, held against a training on ranks of this machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import workbench
from workbench.common.table import RankTable, ShownAsTable
from workbench.course.calculators import units
from workbench.course.calculators.steps import StepTimes, Training, step_of
from workbench.simulate.measured.contention import simulate_together
from workbench.simulate.measured.links import reduction
from workbench.simulate.measured.prediction import Measured
from workbench.simulate.steps import Policy

SIZES = (256, *[512] * 13, 10)
"""Of a network with 14 layers, twelve of which have 1 MiB of gradients each."""
BUCKETS = 0, 4 << 20, 64 << 20
"""Each layer by itself; four layers together; all of them."""
_DEADLINE_S = 120.0


@dataclass(frozen=True)
class BucketRow:
    """One size of buckets.

    Args:
        found: links, layers and contention, measured without a training step over the links, in the same job.
        step: as calculated from them.
        measured_s: the median of some steps, each of the slowest rank.
    """

    found: Measured
    step: StepTimes
    measured_s: float

    @property
    def error(self) -> float:
        """By which part the calculated step is too long."""
        return self.step.step_s / self.measured_s - 1


@dataclass(frozen=True, repr=False)
class StepComparison(ShownAsTable):
    """Calculated beside measured.

    Args:
        rows: by size of buckets.
    """

    rows: Sequence[BucketRow]

    @property
    def table(self) -> RankTable:
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


def measured(
    ranks: int = 2, buckets: Sequence[int] = BUCKETS, sizes: Sequence[int] = SIZES, seconds: float = 1.5
) -> StepComparison:
    """Measure α, β and the layers on ranks of this machine, calculate a step from them, then train.

    Each size of buckets is a job of its own, since ``WORKBENCH_BUCKET_BYTES`` is read when a job begins. Each measures
    anew, right before it trains: what else keeps the machine busy may have changed between two jobs.

    Args:
        ranks: how many, at least two.
        buckets: sizes to be tried; 0: none.
        sizes: of the network's layers.
        seconds: how long a measurement takes, about.

    Raises:
        RankFailedError, PeerLostError, DeadlineError: a job has failed.
    """
    return StepComparison([_row(ranks, each, sizes, seconds) for each in buckets])


def _row(ranks: int, bucket_bytes: int, sizes: Sequence[int], seconds: float) -> BucketRow:
    """One job; what rank 0 has found, which is what all have."""
    variables = {"WORKBENCH_BUCKET_BYTES": str(bucket_bytes)}
    done = workbench.run(_on_a_rank, (tuple(sizes), seconds), np=ranks, env=variables, timeout_s=_DEADLINE_S)
    found, measured_s = done[0]
    return BucketRow(found, calculated(found, ranks, bucket_bytes), measured_s)


def calculated(found: Measured, ranks: int, bucket_bytes: int) -> StepTimes:
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


def _on_a_rank(sizes: tuple[int, ...], seconds: float) -> tuple[Measured, float]:
    import workbench.torch as hvd
    from workbench.course.training.own_ranks import batch, network, trained

    hvd.init()
    anything = float("inf")  # a busy machine is measured too: the reader sees by how much it misses
    found = workbench.measure(network(sizes), batch(sizes), seconds=seconds, doubt=anything)
    took = trained(sizes=sizes)
    hvd.shutdown()
    return found, took
