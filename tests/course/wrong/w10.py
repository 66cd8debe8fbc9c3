"""Wrong solutions of lesson 10, each with what the check must say."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from wrong_answers import Answers

from workbench.course.tasks.t10_conversion import checkpoint_hangs
from workbench.course.training.trial import train_alone
from workbench.data.sampler import ShardedSampler

wrong = Answers()


def _trained(hvd, job, without = "", **options):
    """The nine steps without one of them."""
    if without != "init": hvd.init()
    if without != "pin": job.pin(options.get("device", hvd.local_rank)())
    sampler = ShardedSampler(job.train_set, hvd.rank(), hvd.size())
    train_loader = DataLoader(job.train_set, batch_size=job.batch // hvd.size(), sampler=sampler)
    if without == "shard": train_loader = DataLoader(job.train_set, batch_size=job.batch // hvd.size(), shuffle=True)
    if without == "batch": train_loader = DataLoader(job.train_set, batch_size=job.batch, sampler=sampler)
    if without != "weights": hvd.broadcast_parameters(job.model.state_dict(), root_rank=0)
    if without != "state": hvd.broadcast_optimizer_state(job.optimizer, root_rank=0)
    optimizer = job.optimizer
    if without != "gradients":
        names = job.model.named_parameters()
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=names, op=options.get("op", hvd.Average))
    for epoch in range(job.epochs):
        if without != "set_epoch": sampler.set_epoch(epoch)
        for images, labels in train_loader:
            optimizer.zero_grad()
            F.cross_entropy(job.model(images), labels).backward()
            optimizer.step()
    return optimizer
def _accuracy(hvd, job, how = "sum"):
    test_set = ShardedSampler(job.test_set, hvd.rank(), hvd.size(), shuffle=False, uneven="keep")
    right, seen = 0, 0
    with torch.no_grad():
        for images, labels in DataLoader(job.test_set, batch_size=job.batch, sampler=test_set):
            right += (job.model(images).argmax(dim=1) == labels).sum().item()
            seen += len(labels)
    if how == "own": return right / seen
    if how == "mean": return float(hvd.allreduce(torch.tensor(right / seen, dtype=torch.float64)))
    right, seen = hvd.allreduce(torch.tensor([right, seen]), op=hvd.Sum).tolist()
    return right / seen
def _saved(hvd, job, accuracy):
    if hvd.rank() == 0:
        job.save()
        job.log(f"{accuracy:.1%}")
    return accuracy
def _solved(hvd, job, without = "", **options):
    _trained(hvd, job, without, **options)
    return _saved(hvd, job, _accuracy(hvd, job))
@wrong("10.convert", "✗ The ranks know each other: rank 0 of 2 is rank 0 of 1 to itself")
def takes_no_step(hvd, job): return train_alone(job)
@wrong(
    "10.convert", "✗ It runs, alone and together: on one rank: NotInitializedError: hvd.local_rank() before hvd.init()"
)
def forgets_init(hvd, job):
    return _solved(hvd, job, "init")
@wrong("10.convert", "✗ Each rank has the device of its local rank: rank 0 took no device")
def forgets_to_pin(hvd, job):
    return _solved(hvd, job, "pin")
@wrong("10.convert", "rank 1 took GPU 1, but its machine has only GPU 0")
def pins_by_rank(hvd, job):
    return _solved(hvd, job, device=lambda: hvd.rank())
@wrong("10.convert", "✗ Each sample once per epoch, in a new order: epoch 0: sample ")
def forgets_to_shard(hvd, job):
    return _solved(hvd, job, "shard")
@wrong("10.convert", "epoch 1 has the order of epoch 0")
def forgets_set_epoch(hvd, job):
    return _solved(hvd, job, "set_epoch")
@wrong("10.convert", "step 0 takes 48 samples on all ranks, 24 in one process")
def keeps_the_batch_per_rank(hvd, job):
    return _solved(hvd, job, "batch")
@wrong("10.convert", "✗ The ranks begin with the same weights: rank 1 begins with other weights than rank 0")
def forgets_the_weights(hvd, job):
    return _solved(hvd, job, "weights")
@wrong("10.convert", "rank 1 begins with another optimizer state (momentum) than rank 0")
def forgets_the_state(hvd, job):
    return _solved(hvd, job, "state")
@wrong("10.convert", "rank 1 makes its first step with another gradient than rank 0")
def forgets_the_optimizer(hvd, job):
    return _solved(hvd, job, "gradients")
@wrong("10.convert", "the first gradient is 2 times that of one process: a sum, not an average")
def sums_the_gradients(hvd, job):
    return _solved(hvd, job, op=hvd.Sum)
@wrong("10.convert", "✗ All ranks report the accuracy on all test data: rank 0 reports 0.")
def reports_its_own_shard(hvd, job):
    _trained(hvd, job)
    return _saved(hvd, job, _accuracy(hvd, job, "own"))
@wrong("10.convert", "✗ Rank 0 saves and prints, and nobody else: ranks 0 and 1 save; rank 0 alone should")
def everybody_saves(hvd, job):
    _trained(hvd, job)
    accuracy = _accuracy(hvd, job)
    job.save()
    job.log(f"{accuracy:.1%}")
    return accuracy
@wrong("10.convert", "ranks 0 and 1 print; rank 0 alone should")
def prints_on_all(hvd, job):
    _trained(hvd, job)
    accuracy = _accuracy(hvd, job)
    job.log(f"{accuracy:.1%}")
    if hvd.rank() == 0: job.save()
    return accuracy
@wrong("10.convert", "Rank 1 has left the job")
def evaluates_on_rank_zero(hvd, job):
    _trained(hvd, job)
    return _saved(hvd, job, _accuracy(hvd, job)) if hvd.rank() == 0 else None
@wrong("10.convert", "✗ The weights at the end are those of one process: rank 0: a weight differs by")
def scales_the_rate(hvd, job):
    hvd.init()
    for group in job.optimizer.param_groups: group["lr"] *= hvd.size()
    return _solved(hvd, job)
@wrong("10.convert", "✗ Each step is one of the job's own optimizer, on the mean loss of its samples: one ")
def takes_another_rate(hvd, job):
    for group in job.optimizer.param_groups: group["lr"] *= 0.5
    return _solved(hvd, job)
@wrong("10.convert", "rank 0 reports None, not a number")
def returns_nothing(hvd, job):
    _trained(hvd, job)
    _saved(hvd, job, _accuracy(hvd, job))
# --- 10.rank_zero -----------------------------------------------------------------------------------------
@wrong("10.rank_zero", "rank 0 waits in allreduce() for rank 1")
def returns_early(comm, step, loss, count, weights):
    if comm.rank != 0: return None
    total, samples = comm.allreduce(np.array([loss * count, count]))
    return total / samples, [step, total / samples, weights]
@wrong("10.rank_zero", "that is the mean of the ranks' means: a rank with more samples counts for more")
def without_counts(comm, step, loss, count, weights):
    mean = comm.allreduce(loss) / comm.size
    return mean, [step, mean, weights] if comm.rank == 0 else None
@wrong("10.rank_zero", "divided by all samples: a mean times its count is a sum")
def counts_once(comm, step, loss, count, weights):
    total, samples = comm.allreduce(np.array([loss, count]))
    return total / samples, [step, total / samples, weights] if comm.rank == 0 else None
@wrong("10.rank_zero", "what is saved: your result is None")
def the_last_rank_saves(comm, step, loss, count, weights):
    total, samples = comm.allreduce(np.array([loss * count, count]))
    mean = float(total / samples)
    return mean, [step, mean, weights] if comm.rank == comm.size - 1 else None
@wrong("10.rank_zero", "bytes; the limit is 1,200, the best possible 96")
def gathers_the_weights(comm, step, loss, count, weights):
    everything = comm.gather((loss, count, weights))
    mean = None
    if comm.rank == 0: mean = sum(a * b for a, b, _ in everything) / sum(b for _, b, _ in everything)
    mean = comm.bcast(mean)
    return mean, [step, mean, weights] if comm.rank == 0 else None
wrong("10.rank_zero", "what is saved is returned alone, without the mean")(checkpoint_hangs)
