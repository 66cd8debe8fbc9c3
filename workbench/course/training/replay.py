"""A training computed again in one process, from the batches that its ranks have taken; with a known mistake, too."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from workbench.course.training import behaviour
from workbench.course.training.behaviour import Array
from workbench.course.training.trial import TRAININGS


class TrainingReplay:
    """A training of ranks that take these batches, with a mistake or without.

    Args:
        training: of :data:`TRAININGS`.
        parts: by rank, of each step the numbers of its samples.
        digits: by rank, its data; everybody's if None.
        seed: of rank 0's weights.
        look: the steps whose gradients are kept.
        factor: of every gradient.
        means: the mean of the ranks' means, and not that over all samples.
        keep: gradients of earlier steps are added.
        momentum: is there any?
        whole: what a sum over a step's samples is divided by; their number if it is 0.

    Attributes:
        end: the weights.
        gradients: of each step kept and each rank, the sum over its own samples, by parameter.
    """

    def __init__(
        self,
        training: str,
        parts: Sequence[Sequence[Array]],
        digits: Sequence[Any] | None = None,
        seed: int = 0,
        look: Collection[int] = (),
        factor: float = 1.0,
        means: bool = False,
        keep: bool = False,
        momentum: bool = True,
        whole: int = 0,
    ) -> None:
        import torch
        import torch.nn.functional as F

        data = digits or [TRAININGS[training].data()] * len(parts)
        part = TRAININGS[training](seed, data[0], first=True)
        model, optimizer, params = part.model, part.optimizer, list(part.model.parameters())
        images, labels = [torch.from_numpy(one.train_x).double() for one in data], torch.from_numpy(data[0].train_y)
        for group in optimizer.param_groups:
            group["momentum"] *= momentum
        self.gradients: dict[tuple[int, int], list[Array]] = {}
        for step, batches in enumerate(zip(*parts, strict=False)):
            if not keep:
                optimizer.zero_grad()
            total = whole or max(1, sum(map(len, batches)))
            for rank, batch in enumerate(batches):
                loss: Any = F.cross_entropy(model(images[rank][batch]), labels[batch], reduction="sum")
                if step in look:
                    own = torch.autograd.grad(loss, params, retain_graph=True)
                    self.gradients[step, rank] = [gradient.numpy().reshape(-1) for gradient in own]
                (loss * factor / (len(parts) * max(1, len(batch)) if means else total)).backward()
            optimizer.step()
        self.end = behaviour.weights(model)


def led_to(training: str, batches: Sequence[Array]) -> Array:
    """The weights at the end of one process that takes these batches and trains as the exercise says.

    Args:
        training: of :data:`TRAININGS`.
        batches: of each step, the numbers of its samples.
    """
    return TrainingReplay(training, [batches]).end


def slip_of(training: str, ranks: Sequence[behaviour.Seen], batch: int, close: float) -> str:
    """The known mistake that leads to the weights at the end of these ranks, as the end of a sentence."""
    n, parts = len(ranks), [one.batches for one in ranks]
    known: list[tuple[str, dict[str, Any]]] = [
        ("zero_grad() is missing: gradients of earlier steps are added", {"keep": True}),
        ("the momentum of the text is missing", {"momentum": False}),
        ("the loss of a smaller, last step was divided by the full batch: divide by its own samples", {"whole": batch}),
    ]
    if n > 1:
        known += [
            ("that is the mean of the ranks' means, and in some steps one rank has more samples", {"means": True}),
            (
                f"each step is {n} times too long: the rate is multiplied by the number of ranks, or the gradients are "
                "added up and not averaged",
                {"factor": float(n)},
            ),
            (
                f"the ranks' means were added up, so each step is {n} times too long, and in some steps one rank has "
                "more samples",
                {"factor": float(n), "means": True},
            ),
            (
                f"each step is {n} times too short: the average over the ranks divides by their number, so multiply "
                "the sum of the losses by it",
                {"factor": 1 / n},
            ),
        ]
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # a small model is slower on several, most of all on a busy machine
    try:
        ends = ((why, TrainingReplay(training, parts, **how).end) for why, how in known)
        found = next((why for why, end in ends if behaviour.distance(end, ranks[0].end) <= close), "")
    finally:
        torch.set_num_threads(threads)
    return f". Look again: {found}" if found else ""
