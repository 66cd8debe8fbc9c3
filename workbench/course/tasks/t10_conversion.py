"""Lesson 10, convert a script in nine steps: the whole conversion, and what belongs to rank 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.course.judging.task import Bound, Case, CommTask, PlainTask
from workbench.course.simulator import Run
from workbench.course.training import behaviour
from workbench.course.training.replay import led_to
from workbench.course.training.trial import Trial
from workbench.data.sampler import ShardedSampler


def convert(hvd: Any, job: Any) -> Any:
    """Train on all ranks of hvd together; every rank returns the accuracy on all test digits.

    Copy the lines of train_alone here and take the nine steps. Use the hvd that is given: its ranks stand for two
    machines with one GPU each.
    """
    import torch
    from torch.utils.data import DataLoader

    ### BEGIN SOLUTION
    hvd.init()
    job.pin(hvd.local_rank())
    train_sampler = ShardedSampler(job.train_set, hvd.rank(), hvd.size())
    test_sampler = ShardedSampler(job.test_set, hvd.rank(), hvd.size(), shuffle=False, uneven="keep")
    train_loader = DataLoader(job.train_set, batch_size=job.batch // hvd.size(), sampler=train_sampler)
    test_loader = DataLoader(job.test_set, batch_size=job.batch, sampler=test_sampler)
    hvd.broadcast_parameters(job.model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(job.optimizer, root_rank=0)
    loss = torch.nn.CrossEntropyLoss()
    optimizer = hvd.DistributedOptimizer(job.optimizer, named_parameters=job.model.named_parameters())
    for epoch in range(job.epochs):
        train_sampler.set_epoch(epoch)
        for images, labels in train_loader:
            optimizer.zero_grad()
            loss(job.model(images), labels).backward()
            optimizer.step()
    right, seen = 0, 0
    with torch.no_grad():
        for images, labels in test_loader:
            right += (job.model(images).argmax(dim=1) == labels).sum().item()
            seen += len(labels)
    right, seen = hvd.allreduce(torch.tensor([right, seen]), op=hvd.Sum).tolist()
    accuracy = right / seen
    if hvd.rank() == 0:
        job.save()
        job.log(f"{accuracy:.1%} of the test digits are read right")
    return accuracy
    ### END SOLUTION


def as_asked(alone: behaviour.Seen, ranks: Sequence[behaviour.Seen]) -> str:
    """Each step is one of the job's own optimizer, on the mean loss of its samples."""
    far = behaviour.distance(alone.end, led_to("job", alone.batches))
    if far <= _EQUAL:
        return ""
    return f"one process alone ends {far:.1g} of the largest weight away from where train_alone does"


_EQUAL = 1e-6
_TRIAL = Trial("job", (2,))
_OWN = tuple(behaviour.own_device if one is behaviour.threads_fit else one for one in behaviour.LIGHTS)
_LIGHTS = (*_OWN, as_asked)


# --- what belongs to rank 0 -------------------------------------------------------------------------------


def checkpoint_hangs(comm: Any, step: Any, loss: Any, count: Any, weights: Any) -> Any:
    """A usual first version. It hangs: only rank 0 calls the reduction."""
    saved = None
    if comm.rank == 0:
        mean = comm.allreduce(loss) / comm.size
        saved = [step, mean, weights]
    return saved


def rank_zero(comm: Any, step: Any, loss: Any, count: Any, weights: Any) -> Any:
    """Return the pair (mean, saved): the mean loss over the samples of all ranks; what rank 0 saves, None elsewhere.

    loss is this rank's mean over its count samples. Rank 0 saves the list [step, mean, weights]; all ranks have the
    same weights, so nobody need send them.
    """
    ### BEGIN SOLUTION
    total, samples = comm.allreduce(np.array([loss * count, count]))
    mean = float(total / samples)
    saved = [step, mean, weights] if comm.rank == 0 else None
    return mean, saved
    ### END SOLUTION


def _checkpoint(n: int, length: int) -> Case:
    weights = np.arange(length) / 8
    counts = [4 + 3 * rank if n < 4 else 5 * rank for rank in range(n)]
    return Case(n, f"{length:,} weights", [(7, 0.5 + rank, counts[rank], weights) for rank in range(n)])


def _saved(case: Case) -> Sequence[Any]:
    samples = sum(count for _, _, count, _ in case.inputs)
    mean = sum(loss * count for _, loss, count, _ in case.inputs) / samples
    step, _, _, weights = case.inputs[0]
    return [(mean, [step, mean, weights] if rank == 0 else None) for rank in range(case.n)]


def _few_bytes(case: Case, run: Run) -> Sequence[Bound]:
    best = 2 * (case.n - 1)
    return [
        Bound("messages", len(run.messages), best, 2 * best, "One allreduce of two numbers is enough"),
        Bound(
            "bytes",
            sum(one.nbytes for one in run.messages),
            best * 16,
            best * 200,
            "All ranks have the same weights: they need not be sent",
        ),
    ]


TASKS = [
    CommTask(
        "10.rank_zero",
        "what only rank 0 may do",
        rank_zero,
        cases=lambda: [_checkpoint(n, length) for length in (3, 1000) for n in (1, 2, 3, 4, 7)],
        expected=_saved,
        names=("the mean loss", "what is saved"),
        bounds=_few_bytes,
        scored=_checkpoint(4, 100_000),
        shown=_checkpoint(4, 1000),
    ),
    PlainTask(
        "10.convert",
        "a serial training becomes a distributed one",
        convert,
        live=True,  # models and optimizers
        properties=[_TRIAL.runs, *map(_TRIAL.sees, _LIGHTS)],
        points=5,
    ),
]
