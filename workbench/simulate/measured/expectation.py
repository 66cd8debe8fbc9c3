"""What autotune may expect: the simulator's bytes per second for a choice, from what ``measure()`` has saved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from workbench.errors import LaunchError, WorkbenchError
from workbench.simulate.delays import Negotiation
from workbench.simulate.measured.prediction import Measured, predict
from workbench.simulate.steps import Policy


def expectation(path: str, ranks: int, hosts: int) -> Callable[[Any], float]:
    """A function: a :class:`~workbench.runtime.steady.tuner.Choice` → bytes reduced per second.

    Args:
        path: of a file of :meth:`~workbench.simulate.measured.prediction.Measured.save`, measured with a model.
        ranks, hosts: of the job.

    Raises:
        LaunchError: the file cannot be read, or does not say what the job needs.
    """
    try:
        measured = Measured.load(path)
        predict(measured, [ranks], hosts)
    except (OSError, WorkbenchError, ValueError) as error:
        raise LaunchError(
            f"WORKBENCH_AUTOTUNE_START={path!r} cannot be used on rank 0: {error} "
            "Name a file that workbench.measure(model, batch).save(path) has written, or unset the variable."
        ) from None
    return rates(measured, ranks, hosts)


def rates(measured: Measured, ranks: int, hosts: int) -> Callable[[Any], float]:
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

    def rate(choice: Any) -> float:
        star = Negotiation(latency_s=links.announce_s / 2, window_s=choice.fusion_window_s)
        buckets = choice.bucket_bytes if measured.bucket_bytes else 0
        policy = Policy(
            fusion_bytes=choice.fusion_threshold_bytes, bucket_bytes=buckets, value_bytes=value_bytes,
            negotiation=star,
        )  # fmt: skip
        return nbytes / predict(measured, [ranks], hosts, policy=policy).rows[0].step_s

    return rate
