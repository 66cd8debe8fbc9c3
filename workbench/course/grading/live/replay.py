"""The judge's own run of a training: what the weights are at the end, if each rank has done what it says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.course.grading.live.start import Start
from workbench.course.training import behaviour
from workbench.course.training.behaviour import Seen
from workbench.course.training.trial import TRAININGS


def replayed(starts: Sequence[Start], ranks: Sequence[Seen]) -> Any:
    """The weights after these batches, from rank 0's start; each step takes the mean over the samples of all ranks.

    Args:
        starts: of the ranks. Each has images of its own, so a batch of rank 1 has rank 1's gradient.
        ranks: what they have trained on.
    """
    import torch
    import torch.nn.functional as F

    part = TRAININGS[starts[0].training](starts[0].weights, starts[0].digits(), first=True)
    model, optimizer = part.model, part.optimizer
    data = [one.digits() for one in starts]
    images = [torch.from_numpy(one.train_x).double() for one in data]
    labels = torch.from_numpy(data[0].train_y)
    for batches in zip(*(one.batches for one in ranks), strict=False):
        total = sum(map(len, batches))
        optimizer.zero_grad()
        for mine, batch in zip(images, batches, strict=True):
            if len(batch):
                loss: Any = F.cross_entropy(model(mine[batch]), labels[batch], reduction="sum") / total
                loss.backward()
        optimizer.step()
    return behaviour.weights(model)
