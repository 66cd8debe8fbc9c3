"""Right answers of lesson 10 that are unlike the official ones."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

from workbench.data.sampler import ShardedSampler


def two_numbers(comm, step, loss, count, weights):  # Two reductions of plain numbers; rank 0 leaves last.
    mean = float(comm.allreduce(loss * count) / comm.allreduce(count))
    if comm.rank != 0: return mean, None
    return mean, [step, mean, weights]
def gathered(comm, step, loss, count, weights):  # Everybody gets everybody's two numbers, and computes the mean.
    pairs = comm.allgather((float(loss), int(count)))
    mean = sum(one * many for one, many in pairs) / sum(many for _, many in pairs)
    return mean, None if comm.rank else [step, mean, weights]
def _test(hvd, job):
    mine = range(hvd.rank(), len(job.test_set), hvd.size())
    right = 0
    with torch.no_grad():
        for images, labels in DataLoader(torch.utils.data.Subset(job.test_set, list(mine)), batch_size=job.batch):
            right += int((job.model(images).argmax(dim=1) == labels).sum())
    return hvd.allreduce(torch.tensor(right), op=hvd.Sum).item() / len(job.test_set)
def _loader(hvd, job):
    sampler = ShardedSampler(job.train_set, hvd.rank(), hvd.size())
    return sampler, DataLoader(job.train_set, sampler=sampler, batch_size=job.batch // hvd.size())
def state_after_wrapping(hvd, job):
    """Broadcasts come after the optimizer is wrapped; the test set is dealt out by hand."""
    hvd.init()
    job.pin(hvd.local_rank())
    optimizer = hvd.DistributedOptimizer(job.optimizer, named_parameters=job.model.named_parameters())
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    hvd.broadcast_parameters(job.model.named_parameters(), root_rank=0)
    sampler, loader = _loader(hvd, job)
    for epoch in range(job.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = F.cross_entropy(job.model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    accuracy = _test(hvd, job)
    if not hvd.rank():
        job.log(f"{accuracy:.1%} of the test digits are read right")
        job.save()
    return accuracy
def averages_by_hand(hvd, job):  # Without DistributedOptimizer: each gradient is averaged by an allreduce.
    hvd.init()
    job.pin(hvd.local_rank())
    hvd.broadcast_parameters(job.model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(job.optimizer, root_rank=0)
    sampler, loader = _loader(hvd, job)
    for epoch in range(job.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            job.optimizer.zero_grad()
            F.cross_entropy(job.model(images), labels).backward()
            for name, parameter in job.model.named_parameters():
                parameter.grad.copy_(hvd.allreduce(parameter.grad, name=name))
            job.optimizer.step()
    accuracy = _test(hvd, job)
    if hvd.rank() == 0:
        job.save()
        job.log(f"{accuracy:.1%} of the test digits are read right")
    return accuracy
def on_rank_0_and_back(comm, step, loss, count, weights):
    """One reduction of both numbers to rank 0, which hands the mean on."""
    both = comm.reduce(np.array([loss * count, count], dtype=float))
    mean = comm.bcast(both[0] / both[1] if comm.rank == 0 else None)
    saved = None
    if comm.rank == 0:
        saved = [step, mean]
        saved.append(weights)
    return mean, saved
def by_numpys_average(comm, step, loss, count, weights):
    """np.average of what was gathered; a list of the two, and no tuple."""
    losses, counts = np.array(comm.allgather([loss, count])).transpose()
    result = [np.average(losses, weights=counts), None]
    if not comm.rank: result[1] = [step, result[0], weights.copy()]
    return result
def without_loaders(hvd, job):
    """No DataLoader and no sampler: the order of an epoch by the epoch's number, dealt out by slices."""
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    job.pin(hvd.local_rank())
    model, optimizer = job.model, job.optimizer
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for epoch in range(job.epochs):
        order = np.random.default_rng(epoch).permutation(len(job.train_set))
        for start in range(0, len(order), job.batch):
            mine = [job.train_set[int(i)] for i in order[start : start + job.batch][rank::size]]
            images = torch.stack([torch.as_tensor(image) for image, _ in mine])
            labels = torch.tensor([int(label) for _, label in mine])
            optimizer.zero_grad()
            F.cross_entropy(model(images), labels).backward()
            optimizer.step()
    if rank == 0: job.save()
    right = total = 0
    with torch.no_grad():
        for i in range(rank, len(job.test_set), size):
            image, label = job.test_set[i]
            right += int(model(torch.as_tensor(image)[None]).argmax()) == int(label)
            total += 1
    counts = hvd.allreduce(torch.tensor([right, total]), op=hvd.Sum, name="right")
    accuracy = counts[0].item() / counts[1].item()
    if rank == 0: job.log(f"{accuracy:.1%} of the test digits are read right")
    return accuracy
def with_torchs_sampler(hvd, job):
    """torch's own DistributedSampler; every rank tests all digits, because all have the same weights."""
    from torch.utils.data import DataLoader
    from torch.utils.data.distributed import DistributedSampler
    hvd.init()
    job.pin(hvd.local_rank())
    sampler = DistributedSampler(job.train_set, num_replicas=hvd.size(), rank=hvd.rank())
    loader = DataLoader(job.train_set, batch_size=job.batch // hvd.size(), sampler=sampler)
    hvd.broadcast_parameters(job.model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(job.optimizer, root_rank=0)
    optimizer = hvd.DistributedOptimizer(job.optimizer, named_parameters=job.model.named_parameters())
    for epoch in range(job.epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(job.model(images), labels)
            loss.backward()
            optimizer.step()
    right = 0
    with torch.no_grad():
        for images, labels in DataLoader(job.test_set, batch_size=job.batch):
            right += (job.model(images).argmax(dim=1) == labels).sum().item()
    accuracy = right / len(job.test_set)
    if hvd.rank() == 0:
        job.log(f"{accuracy:.1%} of the test digits are read right")
        job.save()
    return accuracy
RIGHT = {
    "10.rank_zero": [two_numbers, gathered, on_rank_0_and_back, by_numpys_average],
    "10.convert": [state_after_wrapping, averages_by_hand, without_loaders, with_torchs_sampler],
}
