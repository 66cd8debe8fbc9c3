"""A script that type checkers accept: training with torch, the verbs on numpy arrays, ranks for a notebook."""

import numpy as np
import torch
from numpy.typing import NDArray

import workbench
import workbench.torch as hvd
from workbench import cluster
from workbench.errors import CollectiveError


def train(model: torch.nn.Module, batches: list[tuple[torch.Tensor, torch.Tensor]]) -> float:
    """Average the gradients of a model, and its last loss."""
    hvd.init()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size()),
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16,
    )
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    loss = torch.zeros(())
    for x, y in batches:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
    return float(hvd.allreduce(loss, op=hvd.Average))


def verbs() -> NDArray[np.float64]:
    """At once, in place, and as a group by a handle."""
    workbench.init()
    values = np.arange(4.0) + workbench.rank()
    total: NDArray[np.float64] = workbench.allreduce(values, op=workbench.Sum, prescale_factor=0.5)
    rows, counts = workbench.alltoall(values, splits=[2, 2])
    workbench.broadcast_(values, root_rank=0)
    handle = workbench.grouped_allreduce_async([values, rows], name="both")
    both: list[NDArray[np.float64]] = workbench.synchronize(handle)
    try:
        workbench.barrier()
    except CollectiveError as error:
        print(error, counts, both)
    return total


def notebook() -> list[float]:
    """Ranks for cells, and for a function."""
    ranks = cluster.up(2, quiet=True)
    cluster.status()
    ranks.down()
    return workbench.run(train, args=(torch.nn.Linear(2, 2), []), np=2)
