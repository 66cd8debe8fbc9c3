"""Sparse gradients against the serial run: kept sparse or made dense, and on ranks that have none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from serial import MAKES, assert_equal, batches, distributed, mse, part, train_alike, twins
from thorough import diagonal, once_more
from torch import nn

import workbench.torch as hvd
from workbench.errors import MismatchError


class Words(nn.Module):
    """An embedding, whose gradient is sparse if asked for."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(10, 4, sparse=sparse), nn.Linear(4, 4)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.words((x[:, 0] * 7).long().abs() % 10))


def test_sparse_as_dense(n: int) -> None:
    """A sparse embedding equals the serial run with a dense one, momentum and weight decay included."""
    model, _ = twins(lambda: Words(sparse=True))
    serial = Words(sparse=False)
    serial.load_state_dict(model.state_dict())
    optimizer, reference = distributed(model, sparse_as_dense=True), MAKES["SGD"](serial.parameters())
    train_alike(model, optimizer, serial, reference, batches(n))


SILENT: dict[str, Callable[[int], bool]] = {
    "never": lambda step: False,
    "later": lambda step: step % 4 == 3,
    "at first": lambda step: step % 4 == 0,
    "always": lambda step: True,
}


@pytest.mark.parametrize(
    ("silent", "options"), diagonal(SILENT, [{"backward_passes_per_step": 2}, {}, {"num_groups": 1}], most=2)
)
def test_sparse_gradients(silent: str, options: dict[str, int], n: int) -> None:
    """Without sparse_as_dense the gradient stays sparse on every rank, and SGD equals the serial run.

    Each rank has its own words. In silent steps only the last rank has any: the others cannot know that the gradient is
    a sparse one, in the very first step least of all.
    """

    def make(params: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=0.1)

    model, serial = twins(lambda: Words(sparse=True))
    optimizer, reference = distributed(model, make, **options), make(serial.parameters())
    for step, (x, y) in enumerate(batches(n)):
        optimizer.zero_grad()
        reference.zero_grad()
        for _ in range(options.get("backward_passes_per_step", 1)):
            if not SILENT[silent](step):
                mse(model, part(x), part(y)).backward()
                mse(serial, x, y).backward()
            else:
                if hvd.rank() == n - 1:
                    mse(model, part(x), part(y)).backward()
                (mse(serial, x[n - 1 :: n], y[n - 1 :: n]) / n).backward()
        optimizer.step()
        reference.step()
        assert_equal(model, serial)
        assert model.words.weight.grad.is_sparse


@pytest.mark.parametrize(
    ("silent", "options"), diagonal(SILENT, [{"backward_passes_per_step": 2}, {}, {"num_groups": 1}], most=2)
)
def test_sparse_as_dense_for_an_optimizer_of_sparse_gradients(silent: str, options: dict[str, int], n: int) -> None:
    """SparseAdam, which takes no other, gets them back in sparse form on every rank, and equals the serial run."""
    model, serial = twins(lambda: nn.Embedding(10, 4, sparse=True).double())
    optimizer = distributed(model, torch.optim.SparseAdam, sparse_as_dense=True, **options)
    reference = torch.optim.SparseAdam(serial.parameters())
    generator = torch.Generator().manual_seed(3)
    for step in range(6):
        optimizer.zero_grad()
        reference.zero_grad()
        for _ in range(options.get("backward_passes_per_step", 1)):
            words = torch.randint(0, 10, (n, 4), generator=generator)
            for r in range(n):
                if r == n - 1 or not SILENT[silent](step):
                    (serial(words[r]).square().sum() / n).backward()
                    if r == hvd.rank():
                        model(words[r]).square().sum().backward()
        optimizer.step()
        reference.step()
        assert_equal(model, serial)
        assert model.weight.grad.is_sparse
        assert torch.allclose(model.weight.grad.to_dense(), serial.weight.grad.to_dense(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("sparse_as_dense", [False, once_more(True)])
def test_sparse_gradients_of_several_dimensions(sparse_as_dense: bool, n: int) -> None:
    """Gradients that are sparse in two dimensions, and an optimizer that takes no others; one rank lacks them."""
    model, serial = twins(lambda: nn.Linear(5, 4, bias=False).double())
    optimizer = distributed(model, torch.optim.SparseAdam, sparse_as_dense=sparse_as_dense)
    reference = torch.optim.SparseAdam(serial.parameters())
    generator = torch.Generator().manual_seed(1)
    for step in range(4):
        optimizer.zero_grad()
        reference.zero_grad()
        places = [torch.randint(0, 5, (4, 2), generator=generator) for _ in range(n)]
        for r in range(n):
            if n == 1 or r != step % n:
                (serial.weight.gather(1, places[r], sparse_grad=True).square().sum() / n).backward()
                if r == hvd.rank():
                    model.weight.gather(1, places[r], sparse_grad=True).square().sum().backward()
        optimizer.step()
        reference.step()
        assert_equal(model, serial)


@pytest.mark.ranks(2)
def test_sparse_here_and_dense_there(rank: int, n: int) -> None:
    """A gradient that is sparse on one rank and dense on the others cannot be reduced: the error says what to do."""
    weight = nn.Parameter(torch.ones(4, 2))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)])
    nn.functional.embedding(torch.tensor([1]), weight, sparse=rank == 0).sum().backward()
    if rank == 0:
        with pytest.raises(
            MismatchError, match=r"'weight' is sparse on rank 0, but dense on another rank\. Give .*sparse_as_dense"
        ):
            optimizer.step()
    else:
        optimizer.step()
