"""What autotune may expect: the simulator's bytes per second for a choice, from what ``measure()`` has saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from workbench.errors import LaunchError, WorkbenchError
from workbench.simulate.delays import Negotiation
from workbench.simulate.measured.prediction import Measured, predict
from workbench.simulate.steps import Policy


class Choice(Protocol):
    """What the tuner chooses; see :class:`workbench.runtime.steady.tuner.Choice`."""

    @property
    def fusion_threshold_bytes(self) -> int:
        """How much is fused at most."""

    @property
    def fusion_window_s(self) -> float:
        """How long is waited for more."""

    @property
    def bucket_bytes(self) -> int:
        """How large a bucket of gradients may be."""


@dataclass(frozen=True)
class _First:
    """A choice to try the file with."""

    fusion_threshold_bytes: int = 64 << 20
    fusion_window_s: float = 0.001
    bucket_bytes: int = 16 << 20


def expectation(path: str, ranks: int, hosts: int) -> Callable[[Choice], float]:
    """A function: choice → bytes reduced per second.

    Args:
        path: of a file of :meth:`~workbench.simulate.measured.prediction.Measured.save`, measured with a model.
        ranks, hosts: of the job.

    Raises:
        LaunchError: the file cannot be read, or does not say what the job needs.
    """
    try:
        rate = rates(Measured.load(path), ranks, hosts)
        rate(_First())
    except (OSError, WorkbenchError, ValueError) as error:
        raise LaunchError(
            f"WORKBENCH_AUTOTUNE_START={path!r} cannot be used on rank 0: {error} "
            "Name a file that workbench.measure(model, batch).save(path) has written, or unset the variable."
        ) from None
    return rate


def rates(measured: Measured, ranks: int, hosts: int) -> Callable[[Choice], float]:
    """As :func:`expectation`, of a measurement.

    Example:
        >>> from workbench.simulate.measured.prediction import Links, Span
        >>> from workbench.simulate.measured.fit import Constant, Fit
        >>> from workbench.runtime.steady.tuner import Choice
        >>> way = Fit(Constant(1e-3, 1e-3, 1e-3), Constant(1e-9, 1e-9, 1e-9), doubt=0)
        >>> layers = tuple(Span(f"layer {i}", 1e-6, 1e-6, values=1000) for i in range(50))
        >>> rate = rates(Measured(Links(1, 2, way, None, announce_s=1e-4), layers, bucket_bytes=0), ranks=2, hosts=1)
        >>> rate(Choice(1 << 20, 0.001)) > 5 * rate(Choice(8000, 0.001))  # latency is paid 25 times
        True
    """
    links, value_bytes = measured.links, 4 if measured.links.wire == "float32" else 2
    nbytes = value_bytes * sum(layer.values for layer in measured.layers)

    def rate(choice: Choice) -> float:
        star = Negotiation(latency_s=links.announce_s / 2, window_s=choice.fusion_window_s)
        buckets = choice.bucket_bytes if measured.bucket_bytes else 0
        policy = Policy(
            fusion_bytes=choice.fusion_threshold_bytes, bucket_bytes=buckets, value_bytes=value_bytes,
            negotiation=star,
        )  # fmt: skip
        return nbytes / predict(measured, [ranks], hosts, policy=policy).rows[0].step_s

    return rate
