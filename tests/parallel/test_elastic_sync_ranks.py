"""What TorchState and ElasticSampler make equal on all ranks, at the first sync and after a failure."""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from typing import Any

import pytest
import torch
import torch._dynamo  # torch does it with the first optimizer, which would take up to 20 s of that test's minute
from thorough import quick
from with_extra import WithExtra

import workbench.torch as hvd
from workbench.errors import CollectiveError
from workbench.torch import elastic

OPTIMIZERS = sorted(
    {kind for kind in vars(torch.optim).values() if inspect.isclass(kind) and issubclass(kind, torch.optim.Optimizer)}
    - {torch.optim.Optimizer, torch.optim.SparseAdam},
    key=lambda kind: kind.__name__,
)


@pytest.mark.parametrize(
    "kind", quick(OPTIMIZERS, torch.optim.SGD, torch.optim.ASGD, torch.optim.LBFGS), ids=lambda kind: kind.__name__
)
def test_every_optimizer_is_synced_within_a_distributed_one(kind: Any, rank: int) -> None:
    """Ranks with other weights, hyperparameters and counts of steps: all have rank 0's, and step alike from then on."""
    torch.manual_seed(rank)
    model = torch.nn.Linear(3, 2, bias=False)
    inner = kind(model.parameters(), lr=0.01 * (rank + 1))

    def local_step() -> None:
        def closure() -> torch.Tensor:
            model.weight.grad = None
            loss = model(torch.ones(2, 3)).square().sum()
            (model.weight.grad,) = torch.autograd.grad(loss, [model.weight])
            return loss

        inner.step(closure)

    for _ in range(rank):
        local_step()
    optimizer = hvd.DistributedOptimizer(inner, named_parameters=model.named_parameters())
    state = elastic.TorchState(model, optimizer, rank=rank)
    state.sync()
    assert state.rank == 0
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)
    for _ in range(2):
        model.weight.grad = torch.full((2, 3), float(rank))
        optimizer.step((lambda: torch.tensor(0.0)) if kind is torch.optim.LBFGS else None)
    for everyone in hvd.allgather_object((model.weight.detach(), optimizer.state_dict())):
        assert repr(everyone) == repr((model.weight.detach(), optimizer.state_dict()))


def test_everything_else_is_synced_and_saved(rank: int) -> None:
    """Buffers, extra state, schedulers, several models and plain objects: rank 0's everywhere, and then restored."""
    one, two = torch.nn.Sequential(WithExtra(2, 2), torch.nn.BatchNorm1d(2)), torch.nn.Linear(1, 1)
    one[0].said = f"rank {rank}"
    one(torch.full((2, 2), float(rank)) * torch.tensor([[1.0], [2.0]]))
    optimizer = torch.optim.SGD(one.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for _ in range(rank):
        optimizer.step()
        scheduler.step()
    state = elastic.TorchState(one, optimizer, two=two, scheduler=scheduler, notes=[rank])

    def seen() -> Any:
        models = copy.deepcopy((one.state_dict(), two.state_dict()))
        return [models, scheduler.last_epoch, optimizer.param_groups[0]["lr"], list(state.notes)]

    state.sync()
    mine = seen()
    assert mine[1:] == [0, 1.0, [0]]
    assert one[0].said == "rank 0"
    assert all(repr(each) == repr(mine) for each in hvd.allgather_object(mine))
    two.load_state_dict({"weight": torch.ones(1, 1), "bias": torch.ones(1)})
    one[0].said = "later"
    state.notes.append(1)
    optimizer.step()
    scheduler.step()
    state.restore()
    assert repr(seen()) == repr(mine)


# --- the sampler --------------------------------------------------------------------------------------


@pytest.mark.processes("shutdown() and init() are of the whole process")
@pytest.mark.parametrize("uncommitted", [0, 1])
def test_an_epoch_with_a_failure_has_every_sample_once(uncommitted: int, n: int, rank: int) -> None:
    """Two epochs through a DataLoader, each broken off once: what the commits count is each sample once per epoch."""
    size = 12 * n
    data = torch.utils.data.TensorDataset(torch.arange(size))
    sampler = elastic.ElasticSampler(data, seed=3)
    state = elastic.TorchState(sampler=sampler, epoch=0, taken=[])
    failures = {0, 1} if rank == n - 1 else set()

    @elastic.run
    def train(state: Any) -> None:
        while state.epoch < 2:
            loader = torch.utils.data.DataLoader(data, batch_size=2, sampler=sampler)
            for number, (x,) in enumerate(loader):
                everyone = hvd.allgather(x)
                state.taken = [*state.taken, *((state.epoch, i) for i in everyone.tolist())]
                sampler.record_batch(number, len(x))
                if number % (uncommitted + 1) == uncommitted:
                    state.commit()
                if number == 2 and state.epoch in failures:
                    failures.remove(state.epoch)
                    raise CollectiveError("it failed")
            state.epoch += 1
            sampler.set_epoch(state.epoch)
            state.commit()

    train(state)
    assert Counter(state.taken) == Counter((epoch, i) for epoch in range(2) for i in range(size))
    assert [i for epoch, i in state.taken if epoch == 0] != [i for epoch, i in state.taken if epoch == 1]
