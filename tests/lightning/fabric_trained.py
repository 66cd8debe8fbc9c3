"""A training with Lightning's Fabric, alone or on several ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch.utils.data import DataLoader, TensorDataset

import workbench.torch.lightning  # noqa: F401 - registers the name

X = torch.randn(64, 8, generator=torch.Generator().manual_seed(1)).double()
Y = X.sum(1, keepdim=True)
BATCH = 16


def net(seed: int) -> Any:
    """Three layers, in float64."""
    torch.manual_seed(seed)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()


def loss_of(model: Any, batch: Any) -> Any:
    """The mean over this rank's rows."""
    x, y = batch
    return ((model(x) - y) ** 2).mean()


def weights(model: Any) -> list[Any]:
    """As numbers."""
    return [each.flatten().tolist() for each in model.state_dict().values()]


def trained_with_fabric(strategy: str, folder: Path) -> dict[str, Any]:
    """What came of four models; weights begin otherwise on each rank, and rank 0's have to win."""
    fabric = Fabric(accelerator="cpu", devices=1, strategy=strategy)
    fabric.launch()
    # In order, so that the batches of all ranks together are those of one process.
    loader = fabric.setup_dataloaders(DataLoader(TensorDataset(X, Y), BATCH // fabric.world_size, shuffle=False))
    found: dict[str, Any] = {"is_global_zero": fabric.is_global_zero, "world": fabric.world_size}

    # Two models, each with an optimizer; the first accumulates two batches, clips, and has a schedule.
    one, two = net(fabric.global_rank), net(fabric.global_rank)
    first, second = torch.optim.Adam(one.parameters(), 1e-2), torch.optim.SGD(two.parameters(), 0.05)
    schedule = torch.optim.lr_scheduler.StepLR(first, 1, 0.5)
    one, first = fabric.setup(one, first)
    two = fabric.setup_module(two)
    second = fabric.setup_optimizers(second)
    path = folder / "middle.ckpt"
    for epoch in range(3):
        for i, batch in enumerate(loader):
            last = i % 2 == 1
            with fabric.no_backward_sync(one, enabled=not last):
                fabric.backward(loss_of(one, batch) / 2)
            if last:
                fabric.clip_gradients(one, first, max_norm=0.5)
                first.step()
                first.zero_grad()
            fabric.backward(loss_of(two, batch))
            second.step()
            second.zero_grad()
        schedule.step()
        if epoch == 1:
            state = {"model": one, "optimizer": first, "epoch": epoch}
            fabric.save(path, state)
    found["trained"] = weights(one) + weights(two)
    found["rate"] = first.param_groups[0]["lr"]

    # What was saved, into a new model; one more epoch from there.
    again = net(fabric.global_rank)
    again, other = fabric.setup(again, torch.optim.Adam(again.parameters(), 1.0))
    state = {"model": again, "optimizer": other, "epoch": 0}
    fabric.load(path, state)
    for batch in loader:
        fabric.backward(loss_of(again, batch))
        other.step()
        other.zero_grad()
    found["resumed"] = [*weights(again), state["epoch"]]

    # An optimizer that Fabric does not know: the gradients are averaged all the same, as with DDP.
    plain = fabric.setup(net(fabric.global_rank))
    theirs = torch.optim.SGD(plain.parameters(), 0.05)
    for batch in loader:
        fabric.backward(loss_of(plain, batch))
        theirs.step()
        theirs.zero_grad()
    found["plain"] = weights(plain)

    rank, size = fabric.global_rank, fabric.world_size
    fabric.barrier()
    assert fabric.broadcast({"from": rank}) == {"from": 0}
    assert fabric.all_reduce(torch.tensor(float(rank))) == (size - 1) / 2
    assert fabric.all_reduce(torch.tensor(rank), reduce_op="sum") == size * (size - 1) / 2
    assert fabric.all_gather(torch.tensor([rank])).flatten().tolist() == list(range(size))
    everyone = fabric.all_gather(torch.cat([each.flatten() for each in [*one.parameters(), *plain.parameters()]]))
    everyone = everyone.reshape(size, -1)  # one process gets no new dimension
    assert (everyone == everyone[0]).all()
    return found
