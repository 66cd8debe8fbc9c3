"""Lesson 13, the capstone: a whole training on all ranks, judged by what it does."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workbench.course.judging.task import PlainTask
from workbench.course.training import behaviour
from workbench.course.training.behaviour import Seen
from workbench.course.training.replay import led_to, slip_of
from workbench.course.training.trial import Trial
from workbench.data.sampler import batches

ACCURACY = 0.85  # in an unlucky order of the samples it is 88 %
_EQUAL = 1e-6


def capstone(hvd: Any, model: Any, digits: Any, batch: Any, epochs: Any) -> Any:
    """Train on all ranks together; every rank returns the accuracy on all test digits.

    model: for float64 images, with weights of its own on each rank. digits: train_x, train_y, test_x, test_y.
    batch: samples per step on all ranks together; it need not divide the number of images, so the last is shorter.
    Each sample once per epoch, in a new order; the result is that of one process. SGD, lr 0.2, momentum 0.9.
    """
    import torch
    import torch.nn.functional as F

    ### BEGIN SOLUTION
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    images, labels = torch.from_numpy(digits.train_x).double(), torch.from_numpy(digits.train_y)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for epoch in range(epochs):
        for step, mine in enumerate(batches(len(images), rank, size, batch, epoch=epoch, uneven="keep")):
            everybodys = min(batch, len(images) - step * batch)
            optimizer.zero_grad()
            loss = F.cross_entropy(model(images[mine]), labels[mine], reduction="sum")
            (loss * size / everybodys).backward()  # the average over ranks is then that over all samples
            optimizer.step()
    with torch.no_grad():
        guesses = model(torch.from_numpy(digits.test_x[rank::size]).double()).argmax(dim=1)
    right = (guesses == torch.from_numpy(digits.test_y[rank::size])).sum()
    return hvd.allreduce(right, op=hvd.Sum).item() / len(digits.test_y)
    ### END SOLUTION


def full_batches(alone: Seen, ranks: Sequence[Seen]) -> str:
    """Each step takes a whole batch, the last what is left."""
    whole = ranks[0].samples // _BATCH
    wanted = [*[_BATCH] * whole, ranks[0].samples - whole * _BATCH] * ranks[0].epochs
    for who, several in (("one rank", [alone]), ("all ranks", ranks)):
        found = [sum(map(len, parts)) for parts in zip(*(one.batches for one in several), strict=False)]
        for step, (mine, right) in enumerate(zip(found, wanted, strict=False)):
            if mine != right:
                return (
                    f"step {step} takes {mine} samples on {who}, and not {right}: batch is that of all ranks together"
                )
        if len(found) != len(wanted):
            return f"{len(found)} steps on {who}, and not {len(wanted)}: each step takes a batch, the last what is left"
    return ""


def even_work(alone: Seen, ranks: Sequence[Seen]) -> str:
    """No rank has more to do than another: an efficiency of 97 % is possible."""
    for step, parts in enumerate(zip(*(one.batches for one in ranks), strict=True)):
        sizes = list(map(len, parts))
        if max(sizes) - min(sizes) > 1:
            most, least = sizes.index(max(sizes)), sizes.index(min(sizes))
            return f"step {step}: rank {most} has {sizes[most]} samples, rank {least} {sizes[least]}"
    total = [sum(map(len, one.batches)) for one in ranks]
    possible = sum(total) / len(ranks) / max(total)
    return "" if possible >= 0.97 else f"at most {possible:.0%}: a rank has {max(total)} of {sum(total)} samples"


def same_end(alone: Seen, ranks: Sequence[Seen]) -> str:
    """The weights are the same on all ranks."""
    for i, one in enumerate(ranks):
        if (far := behaviour.distance(one.end, ranks[0].end)) > 0:
            return f"rank {i} ends with other weights than rank 0; they differ by {far:.1g} of the largest"
    return ""


def equal_to_one(alone: Seen, ranks: Sequence[Seen]) -> str:
    """The weights are those of one process, within 1e-6."""
    far = behaviour.distance(ranks[0].end, alone.end)
    if far <= _EQUAL:
        return ""
    return f"a weight differs by {far:.1g} of the largest{slip_of('capstone', ranks, _BATCH, _EQUAL)}"


def good_enough(alone: Seen, ranks: Sequence[Seen]) -> str:
    """At least 85 % of the unseen digits are read right."""
    if ranks[0].measured >= ACCURACY:
        return ""
    return f"{ranks[0].measured:.1%} are; does every step move the weights, by lr 0.2 with momentum 0.9?"


def as_asked(alone: Seen, ranks: Sequence[Seen]) -> str:
    """Each step is one of SGD with lr 0.2 and momentum 0.9, on the mean loss of its samples."""
    far = behaviour.distance(alone.end, led_to("capstone", alone.batches))
    if far <= _EQUAL:
        return ""
    told = f"one process alone ends {far:.1g} of the largest weight away from where that leads"
    return f"{told}{slip_of('capstone', [alone], _BATCH, _EQUAL) or ': is it another optimizer, or another rate?'}"


_BATCH = 72
_TRIAL = Trial("capstone", (2, 3))
_LIGHTS = (
    behaviour.they_know_each_other,
    behaviour.each_sample_once,
    full_batches,
    even_work,
    behaviour.same_start,
    same_end,
    equal_to_one,
    behaviour.same_accuracy,
    as_asked,
    good_enough,
)

TASKS = [
    PlainTask(
        "13.capstone",
        "a training, converted completely",
        capstone,
        live=True,  # models and optimizers
        properties=[_TRIAL.runs, *map(_TRIAL.sees, _LIGHTS)],
        points=8,
    )
]
