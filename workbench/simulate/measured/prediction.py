"""``workbench.measure()`` on the ranks that run, and ``workbench.predict()`` for others.

::

    %%px
    found = workbench.measure(model, (images, labels))      # all ranks: links, layers, contention
    workbench.predict(found, ranks=[4, 8, 16], hosts=2)

What is predicted is what the package does: its planners decide what travels together, and its algorithms' own messages
are timed (:mod:`workbench.simulate`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from workbench.common.table import RankTable, ShownAsTable
from workbench.errors import WorkbenchError
from workbench.simulate.machines import Wire
from workbench.simulate.measured.contention import Contention, simulate_together
from workbench.simulate.measured.fit import Constant, Fit
from workbench.simulate.measured.links import Links, gather, reduce_scatter, reduction
from workbench.simulate.steps import Policy, Span, TimedEvent


@dataclass(frozen=True)
class Measured:
    """What was measured, the same on all ranks.

    Args:
        links: the ways between ranks.
        layers: a training step of each rank alone, all at once; of the slowest rank. Empty without a model.
        contention: computing and reducing at the same time.
        bucket_bytes: of the job.
        machines: each rank's, by its host name; empty where it is not known.
        steps_s: of trainings that were tried on these ranks: as it is, and with ``overlap_forward``; empty where not.
    """

    links: Links
    layers: tuple[Span, ...] = ()
    contention: Contention = field(default_factory=Contention)
    bucket_bytes: int = 16 << 20
    machines: tuple[str, ...] = ()
    steps_s: tuple[float, ...] = ()

    def save(self, path: str | Path) -> None:
        Path(path).write_text(json.dumps(asdict(self), indent=1) + "\n")

    @staticmethod
    def load(path: str | Path) -> Measured:
        """What :meth:`save` has written.

        Raises:
            WorkbenchError: the file is cut off, or something else.
        """
        try:
            return Measured.of(json.loads(Path(path).read_text()))
        except (ValueError, KeyError, TypeError) as error:
            raise WorkbenchError(
                f"{path} is no measurement, or is cut off ({type(error).__name__}: {error}). Measure again."
            ) from None

    @staticmethod
    def of(found: dict[str, Any]) -> Measured:
        """Of what ``dataclasses.asdict()`` makes of one."""
        links = found["links"]
        ways = {name: _fit(links[name]) if links[name] else None for name in ("inside", "between")}
        layers = tuple(Span(**layer) for layer in found["layers"])
        lists = (tuple(found.get(name, ())) for name in ("machines", "steps_s"))
        return Measured(Links(**links | ways), layers, Contention(**found["contention"]), found["bucket_bytes"], *lists)

    def __str__(self) -> str:
        if not self.layers:
            return str(self.links)
        step_s = sum(layer.forward_s + layer.backward_s for layer in self.layers)
        values = sum(layer.values for layer in self.layers)
        return (
            f"{self.links}\nstep alone:    {step_s * 1e3:.1f} ms, {values:,} numbers in {len(self.layers) - 2} layers\n"
            f"at once:       computing {self.contention.compute:.2f} ×, reducing {self.contention.reduce:.2f} × as long"
        )


def _fit(found: dict[str, Any]) -> Fit:
    return Fit(Constant(**found["latency_s"]), Constant(**found["per_byte_s"]), found["doubt"])


@dataclass(frozen=True)
class PredictionRow:
    """One number of ranks.

    Args:
        ranks, hosts: how many.
        step_s: of a training step.
        alone_s: … without the others.
        sent_s: how long the network is busy for it.
        events: of one step.
    """

    ranks: int
    hosts: int
    step_s: float
    alone_s: float
    sent_s: float
    events: tuple[TimedEvent, ...] = ()

    @property
    def efficiency(self) -> float:
        """Samples per second of all ranks, by those of one rank alone times their number."""
        return self.alone_s / self.step_s


@dataclass(frozen=True, repr=False)
class Prediction(ShownAsTable):
    """A training step on other numbers of ranks.

    Args:
        rows: by number of ranks, as asked.
    """

    rows: tuple[PredictionRow, ...]

    @property
    def table(self) -> RankTable:
        lines = [
            (str(row.ranks), str(row.hosts), f"{row.step_s * 1e3:.1f}", f"{row.alone_s * 1e3:.1f}",
             f"{row.sent_s * 1e3:.1f}", f"{row.efficiency:.0%}")
            for row in self.rows
        ]  # fmt: skip
        return RankTable(("ranks", "hosts", "step ms", "computing ms", "network ms", "efficiency"), lines)


def predict(
    model: Measured | Sequence[Span],
    ranks: Sequence[int],
    hosts: int | None = None,
    link: Wire | None = None,
    batch: float = 1.0,
    links: Links | None = None,
    policy: Policy | None = None,
    sharded: bool = False,
) -> Prediction:
    """How long a step takes on other numbers of ranks, links, batches and policies.

    Args:
        model: what :func:`measure` has returned, or layers.
        ranks: the numbers of ranks.
        hosts: on so many hosts each; as many as were measured if None.
        link: between hosts, instead of what was measured.
        batch: so many times the samples of the measured step. Computing takes as much longer.
        links: for layers that come without.
        policy: how gradients travel; as the job sends them if None.
        sharded: with a sharded optimizer.

    Raises:
        ValueError: no layers, no parameters, ranks that do not fill the hosts, or a way that was not measured.

    Example:
        >>> layers = [Span("front", 0.01, 0.02, values=10**6), Span("back", 0.01, 0.02, values=10**6)]
        >>> fast = Fit(*[Constant(0, 0, 0)] * 2, doubt=0)
        >>> known = Links(hosts=1, per_host=2, inside=fast, between=None, announce_s=0)
        >>> predict(layers, ranks=[2, 8], hosts=2, link=Wire(latency_s=0, per_byte_s=1e-8), links=known)
        ranks  hosts  step ms  computing ms  network ms  efficiency
            2  2      140.0    60.0          80.0        43%
            8  2      140.0    60.0          80.0        43%
    """
    measured = model if isinstance(model, Measured) else Measured(_known(links), tuple(model))
    layers = [replace(s, forward_s=s.forward_s * batch, backward_s=s.backward_s * batch) for s in measured.layers]
    if not any(layer.values for layer in layers):
        raise ValueError("There are no layers with parameters. Measure with a model: measure(model, batch).")
    if not (np.isfinite(batch) and batch > 0):
        raise ValueError(f"batch is {batch}: a positive number of times the measured one is needed.")
    policy = policy or _as_the_job(measured)
    hosts = hosts or measured.links.hosts
    rows = [_row(layers, measured, each, hosts, link, policy, sharded) for each in ranks]
    return Prediction(tuple(rows))


def _as_the_job(measured: Measured) -> Policy:
    """In buckets, as they are or cast to 16 bits; what casting takes is part of the layers' times."""
    links = measured.links
    value_bytes = 4 if links.wire == "float32" else 2
    return Policy(bucket_bytes=measured.bucket_bytes, value_bytes=value_bytes, announce_s=links.announce_s)


def _known(links: Links | None) -> Links:
    if links is None:
        raise ValueError(
            "The layers do not say how fast the links between ranks are: give links=, from measure() or your own."
        )
    return links


def _row(
    layers: Sequence[Span], measured: Measured, ranks: int, hosts: int, link: Wire | None, policy: Policy, sharded: bool
) -> PredictionRow:
    alone_s = sum(layer.forward_s + layer.backward_s for layer in layers)
    if ranks == 1:
        return PredictionRow(1, 1, alone_s, alone_s, 0.0)
    machines = measured.links.machines(ranks, hosts, link)
    reduce_s = (reduce_scatter if sharded else reduction)(machines)
    if sharded:  # each rank updates a part; then the parts are gathered
        nbytes = float(policy.value_bytes * sum(layer.values for layer in layers))
        update = layers[0]
        layers = [replace(update, forward_s=update.forward_s / ranks + gather(machines)(nbytes)), *layers[1:]]
    found = simulate_together(layers, reduce_s, policy, measured.contention)
    sent_s = sum(event.end_s - event.begin_s for event in found.events if event.what == "reduce")
    return PredictionRow(ranks, hosts, found.step_s, alone_s, sent_s, tuple(found.events))
