"""Which way of sending gradients is the quickest, from what ``measure()`` has found: for ``plan="auto"``.

Where steps are short enough, ``measure()`` has tried each way; what differs by less than a fiftieth is the same.
Otherwise each way is simulated as the runtime does it. A prediction has an error, so another way than the plain one is
chosen only if it is predicted to be quicker by more than that. The errors are those of trainings that were held out:

====================  =====  ==========================================================================================
way                   error  source
====================  =====  ==========================================================================================
``compression``       6 %    ``benchmarks/results/prediction.json``: median of 24 trainings with float16
``overlap_forward``   13 %   ``benchmarks/results/plan.json``: the worst of 10 trainings, by the times of the plain way
both                  19 %   the sum of the two
====================  =====  ==========================================================================================
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from workbench.common.table import RankTable, ShownAsTable
from workbench.errors import WorkbenchError
from workbench.simulate.measured.prediction import Measured, predict
from workbench.simulate.steps import MIB, Overlap, Policy

ERRORS = {"compression": 0.06, "overlap_forward": 0.13, "both": 0.19}
TRIED = 0.02
"""What the medians of two equal trainings differ by."""
COMPRESSIONS = {"fp16": "float16", "bf16": "bfloat16"}
"""By its name, the dtype on the wire."""
BY_WIRE = {dtype: name for name, dtype in COMPRESSIONS.items()}
_PLAIN = "as it is"


@dataclass(frozen=True)
class SendMode:
    """One way of sending gradients.

    Args:
        name: of it.
        compression: ``none``, or a name of :data:`COMPRESSIONS`.
        overlap_forward: as the DistributedOptimizer's argument.
        step_s: tried or predicted; 0 where nothing was.
        error: how much shorter than the plain way's it has to be.
    """

    name: str = _PLAIN
    compression: str = "none"
    overlap_forward: bool = False
    step_s: float = 0.0
    error: float = 0.0


@dataclass(frozen=True, repr=False)
class Plan(ShownAsTable):
    """How gradients are sent, and why.

    Args:
        way: that is chosen.
        why: in a sentence.
        ways: all that were tried or predicted, the plain one first.
    """

    way: SendMode
    why: str
    ways: tuple[SendMode, ...] = ()

    @property
    def table(self) -> RankTable:
        lines = [
            (way.name, f"{way.step_s * 1e3:.1f}", f"{way.step_s / self.ways[0].step_s - 1:+.0%}", f"{way.error:.0%}",
             "chosen" if way == self.way else "")
            for way in self.ways
        ]  # fmt: skip
        return RankTable(("way", "step ms", "change", "error", ""), lines, foot=(self.why,))

    def __repr__(self) -> str:
        return repr(self.table) if self.ways else self.why


def choose(
    measured: Measured, shorter: Measured | None = None, *, cannot_defer: str = "", piece_bytes: int = 2 * MIB
) -> Plan:
    """The quickest way for the ranks that were measured.

    Args:
        measured: with a model, and float32 on the wire.
        shorter: … with float16 or bfloat16, if that may be chosen: it rounds each gradient.
        cannot_defer: why ``overlap_forward`` cannot be chosen; "" if it can.
        piece_bytes: of the job: in which gradients then travel.

    Raises:
        WorkbenchError: one of both is of no model, of another wire, or both are of different models or ranks.

    Example:
        >>> from workbench.simulate.measured.prediction import Links, Span
        >>> from workbench.simulate.measured.fit import Constant, Fit
        >>> slow = Fit(Constant(0, 0, 0), Constant(1.5e-8, 1.5e-8, 1.5e-8), doubt=0)
        >>> layers = tuple(Span(f"layer {i}", 0.01, 0.02, values=5 * 10**5) for i in range(8))
        >>> plan = choose(Measured(Links(2, 1, None, slow, announce_s=1e-4), layers))
        >>> plan.way.overlap_forward, plan.way.compression
        (True, 'none')
        >>> print(plan.why.partition(",")[0])
        overlap_forward: 290.1 ms a step instead of 480.1 ms
    """
    _check(measured, shorter)
    plain, *others = _ways(measured, shorter, not cannot_defer, piece_bytes)
    best = min([plain, *others], key=lambda way: way.step_s / (1 - way.error))
    return Plan(best, " ".join(filter(None, [_why(best, plain, others), cannot_defer])), (plain, *others))


def _check(measured: Measured, shorter: Measured | None) -> None:
    if measured.links.wire != "float32":
        raise WorkbenchError(
            f"The measurement is one with {measured.links.wire} on the wire, and one with float32 is needed to compare "
            "with: call workbench.measure(model, batch) without wire=."
        )
    for found in (measured, *filter(None, [shorter])):
        if not values(found):
            raise WorkbenchError(
                "The measurement is of the links alone, without a model. Measure with the model that is trained: "
                "workbench.measure(model, (inputs, targets))."
            )
    if shorter and (values(shorter), _ranks(shorter)) != (values(measured), _ranks(measured)):
        raise WorkbenchError(
            f"The measurement with {shorter.links.wire} on the wire is of {values(shorter):,} numbers on "
            f"{_ranks(shorter)} ranks, the one with float32 of {values(measured):,} on {_ranks(measured)}. Measure "
            f'both with the same model: workbench.measure(model, batch, wire="{shorter.links.wire}").'
        )


def values(measured: Measured) -> int:
    """How many numbers its gradients have."""
    return sum(layer.values for layer in measured.layers)


def _ranks(measured: Measured) -> int:
    return measured.links.hosts * measured.links.per_host


def _ways(measured: Measured, shorter: Measured | None, defer: bool, piece_bytes: int) -> Iterator[SendMode]:
    """The plain one first."""

    def way(name: str, compression: str, later: bool, policy: Policy | None, error: str) -> SendMode:
        found = shorter if shorter and compression != "none" else measured
        if tried:
            return SendMode(name, compression, later, found.steps_s[later], TRIED)
        seconds = predict(found, [_ranks(found)], policy=policy).rows[0].step_s
        return SendMode(name, compression, later, seconds, ERRORS[error])

    tried, size = min(len(found.steps_s) for found in (measured, shorter or measured)), measured.bucket_bytes
    deferred = Policy(
        Overlap.FORWARD, fusion_bytes=0, bucket_bytes=min(size, piece_bytes or size), priority=True,
        piece_bytes=piece_bytes, announce_s=measured.links.announce_s,
    )  # fmt: skip
    defer = defer and size > 0 and tried != 1  # without buckets nothing is deferred, nor what could not be tried
    yield replace(way(_PLAIN, "none", False, None, "compression"), error=0.0)
    if defer:
        yield way("overlap_forward", "none", True, deferred, "overlap_forward")
    if shorter:
        name = BY_WIRE[shorter.links.wire]
        yield way(f"compression {name}", name, False, None, "compression")
        if defer:
            yield way(f"overlap_forward, compression {name}", name, True, replace(deferred, value_bytes=2), "both")


def _why(best: SendMode, plain: SendMode, others: list[SendMode]) -> str:
    source = "tried" if others and others[0].error == TRIED else "predicted"
    if best is plain:
        nearest = min(others, key=lambda way: way.step_s, default=plain)
        rest = f" The quickest, {nearest.name}, takes {_ms(nearest)} instead of {_ms(plain)}, as {source}."
        return f"As it is: no other way is quicker by more than the error.{rest if others else ''}"
    return (
        f"{best.name}: {_ms(best)} a step instead of {_ms(plain)}, as {source}, which is "
        f"{1 - best.step_s / plain.step_s:.0%} less; the error is {best.error:.0%}."
    )


def _ms(way: SendMode) -> str:
    return f"{way.step_s * 1e3:.1f} ms"
