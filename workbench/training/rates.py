"""Learning rates that a rank decides by numbers of its own drift apart, and the weights with them."""

from __future__ import annotations

from collections.abc import Sequence

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


__all__ = ["compare_learning_rates"]
