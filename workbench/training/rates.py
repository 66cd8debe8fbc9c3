"""Learning rates that a rank decides by numbers of its own drift apart, and the weights with them.

Who knows where an epoch begins calls :func:`compare_learning_rates` there. An optimizer that knows of steps alone tells
them with its gradients, see :meth:`workbench.job.requests.OrderOfUse.note_step`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from workbench.errors import MismatchError
from workbench.job import api


def compare_learning_rates(rates: Sequence[float], when: str, cure: str) -> None:
    """Make sure that they are equal on all ranks, which all call this.

    Args:
        rates: this rank's; equally many on each.
        when: for the error: "before epoch 3".
        cure: what to do, a sentence.

    Raises:
        MismatchError: they differ; on every rank, with the first that does.

    Example:
        >>> from workbench.job.joining import run_threads
        >>> run_threads(2, lambda: compare_learning_rates([0.1 + api.rank()], "now", "Set one."))
        Traceback (most recent call last):
        workbench.errors.MismatchError: The ranks' learning rates differ now (rank 0: 0.1; rank 1: 1.1). Set one.
    """
    by_rank = api.allgather(np.array([rates], np.float64), "learning rates")
    for each in by_rank.T:
        if len(np.unique(each)) > 1:
            found = "; ".join(f"rank {rank}: {rate:g}" for rank, rate in enumerate(each))
            raise MismatchError(f"The ranks' learning rates differ {when} ({found}). {cure}")


def rates_of(groups: Iterable[Mapping[str, Any]]) -> tuple[float, ...]:
    """The different learning rates of an optimizer's groups, in ascending order.

    Ranks may have their groups in another order, or divided in another way. What is no number is left out.

    Args:
        groups: torch's ``param_groups``; a rate may be a tensor.

    Example:
        >>> rates_of([{"lr": 0.1}, {"lr": np.float32(0.5)}, {"lr": 0.1}, {"lr": None}, {}])
        (0.1, 0.5)
    """
    rates: Iterable[Any] = (group.get("lr") for group in groups)
    numbers = {rate.item() if hasattr(rate, "item") else rate for rate in rates}
    return tuple(sorted(float(one) for one in numbers if isinstance(one, (int, float)) and one == one))


__all__ = ["compare_learning_rates", "rates_of"]
