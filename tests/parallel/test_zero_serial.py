"""ZeRO 2 and 3 compute what the serial run computes, on any number of ranks: these few tests run on 2 and on 4."""

from __future__ import annotations

import copy
import io
from typing import Any

import pytest
import torch
from thorough import diagonal, quick
from torch import nn
from zero import OPTIMIZERS, STAGES, Mixed, Twins, net

import workbench.torch as hvd


@pytest.mark.parametrize(("stage", "make"), diagonal(STAGES, OPTIMIZERS))
def test_equals_serial(stage: str, make: str, n: int) -> None:
    """After each step weights and, at the end, the state of all ranks together are the serial run's to 1e-12."""
    twins = Twins(stage, net, OPTIMIZERS[make])
    twins.go_on(range(6))
    twins.check_state()


@pytest.mark.parametrize("stage", quick(STAGES, "gradients"))
def test_what_a_model_may_have(stage: str, n: int) -> None:
    """Frozen, unused, tied, and empty parameters, two dtypes, an attention; a layer that one rank alone uses."""
    twins = Twins(stage, Mixed, OPTIMIZERS["Adam"])
    twins.go_on(range(5))
    twins.check_state()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("stage", quick(STAGES, "parameters"))
def test_a_checkpoint_for_fewer_ranks(stage: str, rank: int, n: int) -> None:
    """What all ranks have saved goes on among all but the last, and in the last alone, as the serial run does."""
    twins = Twins(stage, Mixed, OPTIMIZERS["Adam"])
    twins.go_on(range(3))
    file = io.BytesIO()
    torch.save((hvd.full_state_dict(twins.model), twins.optimizer.state_dict()), file)
    file.seek(0)
    weights, state = torch.load(file)
    few = list(range(n - 1))
    members, others = hvd.add_process_set(few), [n - 1]
    again = Twins(stage, Mixed, OPTIMIZERS["Adam"], few if rank in few else others, members)
    hvd.load_full_state_dict(again.model, weights)
    again.optimizer.load_state_dict(state)
    again.twin.load_state_dict(weights)
    again.reference.load_state_dict(copy.deepcopy(state))
    again.go_on(range(3, 6))
    again.check_state()
    hvd.remove_process_set(members)


class Transformer(nn.Module):
    """Attention, normalization, and one matrix for the first and the last layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.place = nn.Embedding(23, 8), nn.Parameter(torch.randn(6, 8) * 0.02)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(8, 23, bias=False)
        self.head.weight = self.embedding.weight
        self.double()

    def forward(self, step: int, ranks: Any, n: int) -> torch.Tensor:
        """The loss of the samples of some ranks."""
        x = torch.randint(0, 23, (n, 3, 7), generator=torch.Generator().manual_seed(step))[list(ranks)].flatten(0, 1)
        hidden = self.embedding(x[:, :-1]) + self.place
        for block in self.blocks:
            hidden = block(hidden)
        return nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), x[:, 1:].flatten())


@pytest.mark.parametrize("stage", quick(STAGES, "parameters"))
def test_a_tied_transformer(stage: str, rank: int, n: int) -> None:
    """AdamW and clipping: as the serial run, of which a rounding error is enlarged where a gradient ought to be 0.

    The softmax of an attention does not depend on its keys' bias. So this has gradients of about 1e-19, which AdamW
    divides by their own size plus eps: with eps=1e-8 two serial runs that sum up in another order are 1e-13 apart after
    one step. With eps=1e-3 rounding stays rounding.
    """

    def optimizer(params: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(params, lr=3e-3, weight_decay=0.1, eps=1e-3)

    twins = Twins(stage, Transformer, optimizer)

    def run(twins: Twins, steps: range) -> None:
        for step in steps:
            for model, its, ranks in twins.both():
                its.zero_grad()
                model(step, ranks, n).backward()
            twins.optimizer.clip_grad_norm_(0.5)
            assert nn.utils.clip_grad_norm_(twins.twin.parameters(), 0.5) > 0.5
            twins.both_step()
            twins.check()

    run(twins, range(4))
    again = Twins(stage, Transformer, optimizer)
    hvd.load_full_state_dict(again.model, hvd.full_state_dict(twins.model))
    again.optimizer.load_state_dict(copy.deepcopy(twins.optimizer.state_dict()))  # on one rank its own tensors
    again.twin = copy.deepcopy(twins.twin)
    again.reference = optimizer(again.twin.parameters())
    again.reference.load_state_dict(copy.deepcopy(twins.reference.state_dict()))
    run(twins, range(4, 8))
    run(again, range(4, 8))
    one, other = hvd.full_state_dict(twins.model), hvd.full_state_dict(again.model)
    assert all(torch.equal(one[key], other[key]) for key in one)  # a reload adds nothing
