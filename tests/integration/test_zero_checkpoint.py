"""A checkpoint of ZeRO 2 or 3 in jobs that each have another number of ranks."""

from __future__ import annotations

import copy
import functools
from pathlib import Path
from typing import Any

import pytest

import workbench

pytest.importorskip("torch")


def tied() -> Any:
    """A model with sizes that few numbers divide, tied weights, and one parameter that nobody uses."""
    import torch
    from torch import nn

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.hidden = nn.Embedding(11, 5), nn.Linear(5, 5)
            self.unused, self.out = nn.Linear(2, 1), nn.Linear(5, 11, bias=False)
            self.out.weight = self.embedding.weight
            self.double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.out(torch.tanh(self.hidden(self.embedding(x))))

    torch.manual_seed(0)
    return Tied()


def train(new: Any, stage: str, first: int, last: int, file: Path) -> None:
    """On all samples of a step, of which a rank takes every n-th of twelve: any number of ranks computes the same."""
    import torch
    from torch import nn

    import workbench.torch as hvd

    model = copy.deepcopy(new)
    if stage == "parameters":
        hvd.shard_parameters(model)
    rest = [model.out.weight, *model.unused.parameters()]
    adam = torch.optim.Adam([{"params": [*model.hidden.parameters()], "lr": 0.03}, {"params": rest}], lr=0.01)
    optimizer = hvd.DistributedOptimizer(adam, model.named_parameters(), sharded=stage)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=20)
    if first:
        stored = torch.load(file)
        hvd.load_full_state_dict(model, stored["model"])
        optimizer.load_state_dict(stored["optimizer"])
        scheduler.load_state_dict(stored["scheduler"])
    for step in range(first, last):
        chain = torch.randint(0, 11, (12, 2), generator=torch.Generator().manual_seed(step))[hvd.rank() :: hvd.size()]
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(chain[:, 0]), chain[:, 1]).backward()
        optimizer.step()
        scheduler.step()
    found = {"model": hvd.full_state_dict(model), "optimizer": optimizer.state_dict()}
    hvd.barrier()  # all have read the old one
    if hvd.rank() == 0:
        torch.save(found | {"scheduler": scheduler.state_dict()}, file)


def trained(stage: str, legs: list[tuple[int, int, int]], file: Path) -> Any:
    """The checkpoint after jobs of (ranks, first step, last step)."""
    import torch

    for n, first, last in legs:
        workbench.run_threads(n, functools.partial(train, tied(), stage, first, last, file))
    return torch.load(file)


@pytest.mark.parametrize("stages", [("parameters", "gradients"), ("gradients", "parameters")], ids="-".join)
def test_another_number_of_ranks(tmp_path: Path, stages: tuple[str, ...]) -> None:
    """Two ranks, then three, at another stage: weights and state of a run on one rank from beginning to end."""
    import torch

    expected = trained("gradients", [(1, 0, 6)], tmp_path / "one.pt")
    legs = [(2, 0, 3), (3, 3, 6)]
    for stage, leg in zip(stages, legs, strict=True):
        found = trained(stage, [leg], tmp_path / "many.pt")
    assert found["scheduler"]["last_epoch"] == 6
    assert found["model"].keys() == expected["model"].keys()
    for key, value in expected["model"].items():
        assert torch.allclose(found["model"][key], value, rtol=0, atol=1e-12), key
    assert found["optimizer"]["param_groups"] == expected["optimizer"]["param_groups"]
    assert found["optimizer"]["state"].keys() == expected["optimizer"]["state"].keys()
    for number, state in expected["optimizer"]["state"].items():
        for key, value in state.items():
            assert torch.allclose(found["optimizer"]["state"][number][key], value, rtol=0, atol=1e-12), (number, key)
