"""Right answers of lesson 13 that are unlike the official one."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from workbench.data.sampler import epoch_order


def _accuracy(hvd, model, digits):
    mine = np.array_split(np.arange(len(digits.test_y)), hvd.size())[hvd.rank()]
    with torch.no_grad(): guesses = model(torch.from_numpy(digits.test_x[mine]).double()).argmax(dim=1)
    right = int((guesses == torch.from_numpy(digits.test_y[mine])).sum())
    return float(hvd.allreduce(torch.tensor(right), op=hvd.Sum)) / len(digits.test_y)
def _parts(hvd, n, batch, epoch):  # (this rank's samples, everybody's) of each step: every n-th of the batch.
    order = epoch_order(n, epoch=epoch)
    for start in range(0, n, batch):
        whole = order[start : start + batch]
        yield whole[hvd.rank() :: hvd.size()], len(whole)
def sums_not_means(hvd, model, digits, batch, epochs):
    """Gradients are summed over ranks; the loss is divided by all samples of the step."""
    hvd.init()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    images, labels = torch.from_numpy(digits.train_x).double(), torch.from_numpy(digits.train_y)
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9),
        named_parameters=model.named_parameters(),
        op=hvd.Sum,
    )
    for epoch in range(epochs):
        for mine, everybodys in _parts(hvd, len(images), batch, epoch):
            optimizer.zero_grad()
            (F.cross_entropy(model(images[mine]), labels[mine], reduction="sum") / everybodys).backward()
            optimizer.step()
    return _accuracy(hvd, model, digits)
def averages_by_hand(hvd, model, digits, batch, epochs):
    """Without DistributedOptimizer, each gradient by an allreduce of its own."""
    hvd.init()
    hvd.broadcast_parameters(dict(model.named_parameters()), root_rank=0)
    images, labels = torch.from_numpy(digits.train_x).double(), torch.from_numpy(digits.train_y)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    for epoch in range(epochs):
        for mine, everybodys in _parts(hvd, len(images), batch, epoch):
            optimizer.zero_grad()
            (F.cross_entropy(model(images[mine]), labels[mine], reduction="sum") / everybodys).backward()
            for name, parameter in model.named_parameters():
                parameter.grad = hvd.allreduce(parameter.grad, name=name, op=hvd.Sum)
            optimizer.step()
    return _accuracy(hvd, model, digits)
def weighed_batches(hvd, model, digits, batch, epochs):
    """Means of contiguous pieces, weighed so that a shorter piece counts less; all ranks test everything."""
    hvd.init()
    size, rank = hvd.size(), hvd.rank()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    train_x, train_y = torch.tensor(digits.train_x, dtype=torch.float64), torch.tensor(digits.train_y)
    for epoch in range(epochs):
        order = torch.randperm(len(train_x), generator=torch.Generator().manual_seed(epoch))
        for whole in order.split(batch):
            mine = whole.tensor_split(size)[rank]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(train_x[mine]), train_y[mine], reduction="none").sum()
            (loss * size / len(whole)).backward()
            optimizer.step()
    test_x = torch.tensor(digits.test_x, dtype=torch.float64)
    with torch.no_grad(): return float((model(test_x).argmax(1) == torch.tensor(digits.test_y)).double().mean())
def momentum_by_hand(hvd, model, digits, batch, epochs):
    """No optimizer: one flat vector of gradients, and the momentum written out."""
    hvd.init()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    parameters = list(model.parameters())
    moving = [torch.zeros_like(parameter) for parameter in parameters]
    x, y = torch.from_numpy(digits.train_x).double(), torch.from_numpy(digits.train_y)
    for epoch in range(epochs):
        order = np.random.default_rng([17, epoch]).permutation(len(x))
        for first in range(0, len(order), batch):
            whole = order[first : first + batch]
            mine = whole[hvd.rank() :: hvd.size()]
            loss = F.cross_entropy(model(x[mine]), y[mine], reduction="sum") / len(whole)
            flat = torch.cat([gradient.flatten() for gradient in torch.autograd.grad(loss, parameters)])
            flat = hvd.allreduce(flat, name="all", op=hvd.Sum)
            with torch.no_grad():
                pieces = flat.split([parameter.numel() for parameter in parameters])
                for parameter, speed, piece in zip(parameters, moving, pieces, strict=True):
                    speed.mul_(0.9).add_(piece.view_as(parameter))
                    parameter.sub_(0.2 * speed)
    mine = range(hvd.rank(), len(digits.test_y), hvd.size())
    with torch.no_grad(): guesses = model(torch.from_numpy(digits.test_x[list(mine)]).double()).argmax(dim=1).numpy()
    right = np.array([np.sum(guesses == digits.test_y[list(mine)]), len(mine)], dtype=float)
    right = hvd.allreduce(torch.from_numpy(right), name="right", op=hvd.Sum)
    return (right[0] / right[1]).item()
RIGHT = {
    "13.capstone": [sums_not_means, averages_by_hand, weighed_batches, momentum_by_hand],
}
