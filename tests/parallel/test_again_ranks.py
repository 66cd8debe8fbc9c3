"""Calls like earlier ones: a known name is begun in fewer steps, and is right however the tensor has changed."""

from __future__ import annotations

import random
from contextlib import nullcontext

import pytest
import torch

import workbench.torch as hvd
from workbench.errors import MismatchError, UnsupportedTensorError
from workbench.job.context import HOLDER
from workbench.torch import again


def values(step: int, length: int, rank: int) -> torch.Tensor:
    """A rank's."""
    return torch.arange(length, dtype=torch.float64) * (rank + 1) + step


def sums(step: int, length: int, n: int) -> torch.Tensor:
    """Of all ranks."""
    return sum((values(step, length, rank) for rank in range(n)), torch.zeros(length, dtype=torch.float64))


ROUNDS = 8


def test_random_orders(n: int) -> None:
    """100 tensors, small and large, singly and in groups, round after round in another order on every rank."""
    rank, lengths = hvd.rank(), [3 if i % 3 else 4000 for i in range(100)]
    dice = random.Random(rank)
    for step in range(ROUNDS):
        tensors = [values(step, length, rank) for length in lengths]
        order = list(range(80))
        dice.shuffle(order)
        handles = {i: hvd.allreduce_async_(tensors[i], name=f"order.{i}", op=hvd.Sum) for i in order}
        group = hvd.grouped_allreduce_async_(tensors[80:], name="order.group", op=hvd.Sum)
        for handle in handles.values():
            hvd.synchronize(handle)
        hvd.synchronize(group)
        for tensor, length in zip(tensors, lengths, strict=True):
            assert torch.equal(tensor, sums(step, length, n))


@pytest.mark.processes("counts the calls of one rank")
def test_the_second_call_takes_the_short_way(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the same name and a tensor of the same kind; one of another kind is checked as the first was."""
    taken: list[bool] = []
    begin = again.begin_again

    def seen(*args: object) -> object:
        found = begin(*args)  # type: ignore[arg-type]
        taken.append(found is not None)
        return found

    monkeypatch.setattr("workbench.torch.ops.begin_again", seen)
    kinds = [*(torch.ones(4) for _ in range(3)), torch.ones(5), torch.ones(5, dtype=torch.int32), torch.ones(4)]
    for tensor in kinds:
        hvd.allreduce_(tensor, name="kinds", op=hvd.Sum)
        assert (tensor == n).all()
    assert taken == [False, True, True, False, False, False]


def test_what_cannot_be_sent_is_still_refused(n: int) -> None:
    """A known name excuses no sparse tensor, no gaps and no ranks that differ; shared memory is not taken for other."""
    x = torch.ones(4, 4)
    for _ in range(2):
        hvd.allreduce_(x, name="refused", op=hvd.Sum)
    with pytest.raises(UnsupportedTensorError):
        hvd.allreduce_(torch.ones(4, 4).t()[:, :2], name="refused", op=hvd.Sum)
    with pytest.raises(UnsupportedTensorError, match="to_dense"):
        hvd.allreduce_(torch.ones(4, 4).to_sparse(), name="refused", op=hvd.Sum)
    with pytest.raises(MismatchError) if n > 1 else nullcontext():
        hvd.allreduce_(torch.ones(4 + hvd.rank(), 4), name="refused", op=hvd.Sum)
    shared = torch.from_numpy(HOLDER.get().sets.everybody.shared.allocate(64).view("float32")).reshape(4, 4)
    for tensor in (shared, torch.ones(4, 4), shared):
        tensor.fill_(1.0)
        hvd.allreduce_(tensor, name="refused", op=hvd.Sum)
        assert (tensor == n).all()
