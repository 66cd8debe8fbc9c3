"""What one rank does alone: its weights drift from the others', and no collective fails.

A step that a rank skips, a learning rate that it decides by a loss of its own, a checkpoint that it alone loads: the
gradients are averages still, but of gradients of different models. So the ranks compare now and then, with the
gradients of a step, how many steps they have made, the optimizer's numbers, and a sample of the weights; see
:meth:`workbench.job.requests.OrderOfUse.note_round`. ``WORKBENCH_COMPARE_STEPS=0`` switches it off.

Who knows where an epoch begins calls :func:`compare_learning_rates` there.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from workbench.core.messages import Progress
from workbench.errors import MismatchError
from workbench.job import api
from workbench.job.context import HOLDER

SAMPLE = 256
"""So many elements of each tensor of weights, at most two times as many, are looked at."""


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


def hyperparameters(groups: Iterable[Mapping[str, Any]], known: Container[str] | None = None) -> Progress:
    """The different numbers of an optimizer's groups by name, in ascending order; of a tuple each by itself.

    Ranks may have their groups in another order, or divided in another way. What is no number is left out.

    Args:
        groups: torch's ``param_groups``; a number may be a tensor that has ``item()``. A variable of Keras is left out.
        known: names of what the optimizer computes with; a user may keep others in a group. By default all.

    Example:
        >>> hyperparameters([{"lr": 0.1, "betas": (0.9, 0.999)}, {"lr": np.float32(0.5), "foreach": None}, {"lr": 0.1}])
        (('betas[0]', 0.9), ('betas[1]', 0.999), ('lr', 0.1), ('lr', 0.5))
    """
    names = [(group, name) for group in groups for name in group if known is None or name in known]
    return tuple(sorted({found for group, name in names for found in _numbers(name, group[name])}))


def _numbers(name: str, value: Any) -> Iterator[tuple[str, float]]:
    if name in _NO_MATTER:
        return
    if isinstance(value, tuple):
        for i, each in enumerate(value):
            yield from _numbers(f"{name}[{i}]", each)
        return
    number = value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value
    if isinstance(number, (int, float)) and number == number:
        yield name, float(number)


_NO_MATTER = frozenset({"foreach", "fused", "capturable", "differentiable", "initial_lr"})
"""How torch computes it, and what a schedule began with: the results are the same."""


def weights(sample: Any) -> Progress:
    """What is compared of weights: two sums, equal on ranks that have made the same steps.

    Each element counts with a factor of its place, or the ranks would not see changes that cancel out, as those of a
    softmax's bias do. And the sums are those of positive and of negative elements, so that rounding is small beside
    both. What is not a number counts as 0.

    Args:
        sample: see :func:`stride`.

    Example:
        >>> weights(np.array([1.0, -1.0, 0.5]))
        (('weights', 2.0), ('weights', 2.5))
    """
    factors = np.arange(len(sample)) % 7 + 1.0
    each = np.nan_to_num(np.asarray(sample, np.float64), posinf=np.inf, neginf=-np.inf) * factors
    return tuple(("weights", float(abs(part.sum()))) for part in (each[each < 0], each[each > 0]))


def stride(elements: int) -> int:
    """The sample of a tensor is each so many-th of its elements: odd, for rows often have an even length.

    Example:
        >>> stride(10), stride(256 * 1000)
        (1, 1001)
    """
    return max(1, elements // SAMPLE) | 1


def comparing() -> bool:
    """Do the ranks of this job compare their progress?"""
    context = HOLDER.find()
    return context is not None and context.world.size > 1 and context.settings.compare_steps > 0
