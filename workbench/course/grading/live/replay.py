"""The judge's own run of a training: what the weights are at the end, if each rank has done what it says."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from workbench.course.grading.live.start import Start
from workbench.course.training import behaviour
from workbench.course.training.behaviour import Array, Seen
from workbench.course.training.trial import TRAININGS

_EQUAL = 1e-6


class TrainingReplay:
    """A training, from the start of rank 0, with the batches that the ranks say they have taken.

    Args:
        starts: of the ranks. Each has images of its own, so a batch of rank 1 has rank 1's gradient.
        ranks: what they have trained on.
        keep: the steps whose gradients are kept.

    Attributes:
        end: the weights.
        gradients: of each step kept and each rank, the sum over its own samples, by parameter.
    """

    def __init__(self, starts: Sequence[Start], ranks: Sequence[Seen], keep: Collection[int] = ()) -> None:
        import torch

        part = TRAININGS[starts[0].training](starts[0].weights, starts[0].digits(), first=True)
        self._model, optimizer = part.model, part.optimizer
        data = [one.digits() for one in starts]
        self._images = [torch.from_numpy(one.train_x).double() for one in data]
        self._labels = torch.from_numpy(data[0].train_y)
        self.gradients: dict[tuple[int, int], list[Array]] = {}
        for step, batches in enumerate(zip(*(one.batches for one in ranks), strict=False)):
            own = [self._gradient(rank, batch) for rank, batch in enumerate(batches)]
            if step in keep:
                self.gradients |= {(step, rank): [g.numpy().reshape(-1) for g in one] for rank, one in enumerate(own)}
            total = sum(map(len, batches))
            for param, *grads in zip(self._model.parameters(), *own, strict=True):
                param.grad = sum(grads) / max(total, 1)
            optimizer.step()
        self.end = behaviour.weights(self._model)

    def _gradient(self, rank: int, batch: Array) -> Sequence[Any]:
        """Of the sum of the losses of a rank's samples; each step takes the mean over those of all ranks."""
        import torch
        import torch.nn.functional as F

        loss = F.cross_entropy(self._model(self._images[rank][batch]), self._labels[batch], reduction="sum")
        return torch.autograd.grad(loss, list(self._model.parameters()))


def holds(sent: Sequence[Array], gradient: Sequence[Array]) -> bool:
    """Is a gradient among what was sent: each parameter's somewhere, all of them times one factor?

    Example:
        >>> gradient = [np.array([1.0, 2.0, 3.0]), np.array([4.0])]
        >>> holds([np.array([9.0, 2.0, 4.0, 6.0, 8.0])], gradient), holds([np.array([2.0, 4.0, 6.0, 7.0])], gradient)
        (True, False)
    """
    moving = [one for one in gradient if np.abs(one).max(initial=0.0) > 0]
    if not moving:
        return True
    longest = max(moving, key=len)
    factors = (factor for array in sent for factor in _factors(array, longest))
    return any(all(_somewhere(sent, one, factor) for one in moving) for factor in factors)


def _factors(array: Array, part: Array) -> Sequence[float]:
    """By which a part of the array is so many times this one."""
    if len(array) < len(part):
        return ()
    windows, place = sliding_window_view(array, len(part)), int(np.abs(part).argmax())
    factors = windows[:, place] / part[place]
    off = np.abs(windows - factors[:, None] * part).max(axis=1)
    found: list[float] = factors[(off <= _EQUAL * np.abs(factors * part[place])) & (factors != 0)].tolist()
    return found


def _somewhere(sent: Sequence[Array], part: Array, factor: float) -> bool:
    return any(np.isclose(_factors(array, part), factor, rtol=_EQUAL, atol=0.0).any() for array in sent)
