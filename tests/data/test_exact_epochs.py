"""Epochs in which each sample counts once: the training and the validation of one serial run."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import workbench as hvd_arrays
from workbench.data.sampler import ShardedSampler, Uneven

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.long

import workbench.torch as hvd  # noqa: E402 - where there is torch

EPOCHS = 2


def samples(n: int) -> Any:
    """Inputs and targets in float64, so that what remains is a mistake and not rounding."""
    random = torch.Generator().manual_seed(n)
    x = torch.randn(n, 5, generator=random, dtype=torch.float64)
    return torch.utils.data.TensorDataset(x, (x.sum(1) > 0.3).long())


def train(n: int, batch_size: int) -> tuple[list[list[float]], list[int]]:
    """Train as the docs say; this rank's weights in the end, and the samples that it has seen in one epoch."""
    data = samples(n)
    sampler = ShardedSampler(data, hvd.rank(), hvd.size(), uneven="keep")
    loader = torch.utils.data.DataLoader(data, batch_size, sampler=sampler)
    model = torch.nn.Linear(5, 2, dtype=torch.float64)
    torch.nn.init.zeros_(model.weight)
    torch.nn.init.zeros_(model.bias)
    sgd = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(sgd, model.named_parameters())
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for (x, y), weight in zip(loader, sampler.weights(batch_size), strict=True):
            optimizer.zero_grad()
            (torch.nn.functional.cross_entropy(model(x), y) * weight).backward()
            optimizer.step()
        last = hvd.join()
        hvd.broadcast_parameters(model.state_dict(), root_rank=last)
        hvd.broadcast_optimizer_state(optimizer, root_rank=last)
    return [each.flatten().tolist() for each in model.parameters()], list(sampler)


@pytest.mark.parametrize(
    ("size", "n"), [(2, 33), (2, 38), (3, 37), (3, 29), (4, 33), (4, 35), (4, 45), (4, 48), (4, 3), (3, 2)]
)
def test_an_epoch_equals_a_serial_one(size: int, n: int) -> None:
    """No sample twice, none lost, and the weights of one rank, whether or not a rank lacks the last batch or all."""
    batch_size = 4
    ranks = hvd_arrays.run_threads(size, lambda: train(n, batch_size))
    (serial, _), *_ = hvd_arrays.run_threads(1, lambda: train(n, batch_size * size))
    assert Counter(index for _, seen in ranks for index in seen) == Counter(range(n))
    for weights, _ in ranks:
        for found, expected in zip(weights, serial, strict=True):
            assert found == pytest.approx(expected, abs=1e-12)


def test_torchs_sampler_counts_samples_twice() -> None:
    """The bias: of 9 samples on 4 ranks 12 are seen, and the accuracy is another one. Sums over all are exact."""
    right = torch.tensor([1.0, 1, 1, 0, 0, 0, 0, 0, 0], dtype=torch.float64)
    padded = [list(torch.utils.data.DistributedSampler(right, 4, rank, shuffle=False)) for rank in range(4)]
    assert sum(map(len, padded)) == 12
    biased = float(sum(right[part].mean() for part in padded)) / 4

    def accuracy() -> float:
        mine = right[list(ShardedSampler(right, hvd.rank(), 4, shuffle=False, uneven="keep"))]
        total, n = hvd.allreduce(torch.tensor([mine.sum(), len(mine)], dtype=torch.float64), op=hvd.Sum)
        return float(total / n)

    assert biased == pytest.approx(6 / 12)
    assert hvd_arrays.run_threads(4, accuracy) == [pytest.approx(3 / 9)] * 4


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(1, 7), st.integers(1, 9), st.sampled_from(["pad", "drop", "keep"]))
def test_weights_make_each_sample_count_the_same(n: int, size: int, batch_size: int, uneven: Uneven) -> None:
    """In each step, weight / (size * batch) is one over the samples of all ranks' batches, on each rank."""
    samplers = [ShardedSampler(n, rank, size, uneven=uneven) for rank in range(size)]
    weights = [each.weights(batch_size) for each in samplers]
    for rank, sampler in enumerate(samplers):
        assert len(weights[rank]) == math.ceil(len(sampler) / batch_size)
    for step in range(max(map(len, weights))):
        parts = [len(list(each)[step * batch_size : (step + 1) * batch_size]) for each in samplers]
        for part, of_rank in zip(parts, weights, strict=True):
            if part:
                assert of_rank[step] / (size * part) == pytest.approx(1 / sum(parts))
