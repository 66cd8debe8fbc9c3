"""Sharding: disjoint, complete, reproducible, and the same as torch's where that is promised."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.data.sampler import ShardedSampler, Uneven, batches, epoch_order, shard_indices

unhurried = settings(deadline=None)  # a busy machine is no failure; pytest limits the time of a test

samples = st.integers(0, 120)
sizes = st.integers(1, 9)
numbers = st.integers(0, 2**40)
words: st.SearchStrategy[Uneven] = st.sampled_from(["pad", "drop", "keep"])
WORDS: list[Uneven] = ["pad", "drop", "keep"]


def shards(n: int, size: int, **options: Any) -> list[list[int]]:
    """The shards of all ranks."""
    return [shard_indices(n, rank, size, **options).tolist() for rank in range(size)]


def together(lists: list[list[int]]) -> Counter[int]:
    """How often each sample occurs in all of them."""
    return Counter(index for each in lists for index in each)


@unhurried
@given(samples, numbers, numbers)
def test_an_order_is_a_sort_by_the_raw_random_numbers(n: int, epoch: int, seed: int) -> None:
    """The shuffle visits every sample once, and depends on nothing but numpy's guaranteed raw stream."""
    raw = np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(epoch,)))
    keys = [int(raw.random_raw()) for _ in range(n)]
    assert epoch_order(n, epoch=epoch, seed=seed).tolist() == sorted(range(n), key=keys.__getitem__)


def test_every_order_is_equally_likely() -> None:
    """Over 6,000 epochs the 6 orders of 3 samples come up equally often (chi-squared, 5 degrees, p > 0.001)."""
    seen = Counter(tuple(epoch_order(3, epoch=epoch).tolist()) for epoch in range(6000))
    assert len(seen) == 6
    assert sum((count - 1000) ** 2 / 1000 for count in seen.values()) < 20.5


@unhurried
@given(samples, sizes, numbers, numbers, st.booleans())
def test_keep_is_disjoint_and_complete(n: int, size: int, epoch: int, seed: int, shuffle: bool) -> None:
    """Under keep, every sample is in exactly one shard; lengths differ by at most one."""
    parts = shards(n, size, epoch=epoch, seed=seed, shuffle=shuffle, uneven="keep")
    assert together(parts) == Counter(range(n))
    assert {len(part) for part in parts} <= {n // size, math.ceil(n / size)}


@unhurried
@given(samples, sizes, numbers, numbers, st.booleans())
def test_drop_is_disjoint_and_even(n: int, size: int, epoch: int, seed: int, shuffle: bool) -> None:
    """Under drop, shards are equally long, nobody shares a sample, and fewer than size samples are missing."""
    parts = shards(n, size, epoch=epoch, seed=seed, shuffle=shuffle, uneven="drop")
    assert {len(part) for part in parts} == {n // size}
    counts = together(parts)
    assert set(counts.values()) <= {1}
    assert n - len(counts) == n % size
    assert set(counts) <= set(range(n))


@unhurried
@given(st.integers(1, 120), sizes, numbers, numbers, st.booleans())
def test_pad_is_complete_and_even(n: int, size: int, epoch: int, seed: int, shuffle: bool) -> None:
    """Under pad, shards are equally long, no sample is missing, and fewer than size places are repeats."""
    parts = shards(n, size, epoch=epoch, seed=seed, shuffle=shuffle, uneven="pad")
    assert {len(part) for part in parts} == {math.ceil(n / size)}
    counts = together(parts)
    assert set(counts) == set(range(n))
    assert counts.total() - n == -n % size
    assert max(counts.values()) - min(counts.values()) <= 1, "the repeats are spread evenly"


@unhurried
@given(samples, sizes, words, st.booleans())
def test_torch_agrees_without_shuffle(n: int, size: int, uneven: Uneven, shuffle: bool) -> None:
    """DistributedSampler gives the same indices unshuffled, and the same lengths shuffled, for pad and drop."""
    torch_data = pytest.importorskip("torch.utils.data")
    for rank in range(size) if uneven != "keep" else []:
        oracle = torch_data.DistributedSampler(range(n), size, rank, shuffle=shuffle, drop_last=uneven == "drop")
        ours = ShardedSampler(n, rank, size, shuffle=shuffle, uneven=uneven)
        assert len(ours) == len(oracle) == len(list(ours))
        if not shuffle:
            assert list(ours) == list(oracle)


@unhurried
@given(st.integers(20, 120), sizes, words, numbers, numbers)
def test_same_seed_and_epoch_same_shard_else_another(n: int, size: int, uneven: Uneven, epoch: int, seed: int) -> None:
    """A shard can be computed again; the next epoch and the next seed have other orders (20! of them)."""
    first = shards(n, size, epoch=epoch, seed=seed, uneven=uneven)
    assert first == shards(n, size, epoch=epoch, seed=seed, uneven=uneven)
    assert first != shards(n, size, epoch=epoch + 1, seed=seed, uneven=uneven)
    assert first != shards(n, size, epoch=epoch, seed=seed + 1, uneven=uneven)


@unhurried
@given(st.integers(20, 120), st.integers(0, 2**70), st.integers(0, 2**70), st.integers(1, 2**70))
def test_seed_and_epoch_do_not_mix(n: int, epoch: int, seed: int, shift: int) -> None:
    """Moving an amount from the epoch to the seed gives another order: the two are not added up."""
    one, other = epoch_order(n, epoch=epoch + shift, seed=seed), epoch_order(n, epoch=epoch, seed=seed + shift)
    assert one.tolist() != other.tolist()


@unhurried
@given(samples, sizes, st.integers(1, 12), words, st.booleans(), numbers)
def test_steps_are_the_serial_runs_steps(
    n: int, size: int, local: int, uneven: Uneven, shuffle: bool, seed: int
) -> None:
    """Step k of all ranks together covers exactly the samples of step k of one rank, shared out evenly."""
    options: dict[str, Any] = {"epoch": 3, "seed": seed, "shuffle": shuffle, "uneven": uneven}
    serial = batches(n, 0, 1, local * size, **options)
    ranks = [batches(n, rank, size, local * size, **options) for rank in range(size)]
    assert {len(steps) for steps in ranks} == {len(serial)}
    for step, whole in enumerate(serial):
        parts = [steps[step].tolist() for steps in ranks]
        assert together(parts) == Counter(whole.tolist())
        lengths = {len(part) for part in parts}
        assert lengths == {local} if uneven != "keep" else max(lengths) - min(lengths) <= 1


@unhurried
@given(samples, sizes, st.integers(1, 40), numbers)
def test_keep_shares_any_global_batch(n: int, size: int, global_batch: int, seed: int) -> None:
    """Under keep, any global batch will do: one epoch's steps still use every sample exactly once."""
    ranks = [batches(n, rank, size, global_batch, seed=seed, uneven="keep") for rank in range(size)]
    assert {len(steps) for steps in ranks} == {math.ceil(n / global_batch)}
    assert together([part.tolist() for steps in ranks for part in steps]) == Counter(range(n))


@unhurried
@given(st.integers(0, 20), sizes, st.integers(1, 6), words, numbers, st.integers(0, 30))
def test_batches_are_the_shard_in_slices(
    steps: int, size: int, local: int, uneven: Uneven, seed: int, rest: int
) -> None:
    """The parts one after the other are the shard: always under keep, else where global_batch divides n."""
    n = steps * local * size + (rest if uneven == "keep" else 0)
    for rank in range(size):
        parts = batches(n, rank, size, local * size, seed=seed, uneven=uneven)
        shard = shard_indices(n, rank, size, seed=seed, uneven=uneven)
        assert [i for part in parts for i in part.tolist()] == shard.tolist()


@pytest.mark.parametrize("uneven", WORDS)
@pytest.mark.parametrize("size", [2, 3, 4])
def test_mean_gradient_is_the_serial_gradient(size: int, uneven: Uneven) -> None:
    """Averaging the ranks' mean gradients, weighted by samples, gives the serial gradient at every step."""
    random = np.random.default_rng(1)
    x, y, w = random.normal(size=(145, 5)), random.normal(size=145), random.normal(size=5)

    def gradient(rows: np.ndarray) -> np.ndarray:
        return x[rows].T @ (x[rows] @ w - y[rows]) / max(len(rows), 1)

    ranks = [batches(145, rank, size, 12, uneven=uneven) for rank in range(size)]
    for step, whole in enumerate(batches(145, 0, 1, 12, uneven=uneven)):
        parts = [steps[step] for steps in ranks]
        mean = sum(gradient(part) * len(part) for part in parts) / sum(map(len, parts))
        np.testing.assert_allclose(mean, gradient(whole), rtol=1e-12, atol=1e-12)


def test_145_samples_on_3_ranks() -> None:
    """The course's case: one rank has a sample, and with batch size 1 a step, more than the others."""
    lengths = {word: [len(shard) for shard in shards(145, 3, uneven=word)] for word in WORDS}
    assert lengths == {"keep": [49, 48, 48], "pad": [49, 49, 49], "drop": [48, 48, 48]}


@pytest.mark.parametrize("workers", [0, 1])
def test_dataloader_takes_both(workers: int) -> None:
    """A DataLoader with the sampler, and one with the batches as batch_sampler, visit the same samples."""
    torch_data = pytest.importorskip("torch.utils.data")
    data = torch_data.TensorDataset(pytest.importorskip("torch").arange(24))
    for rank in range(3):
        sampler = ShardedSampler(data, rank, 3, seed=5)
        one = torch_data.DataLoader(data, batch_size=4, sampler=sampler, num_workers=workers)
        for epoch in range(2):
            sampler.set_epoch(epoch)
            parts = batches(24, rank, 3, 12, seed=5, epoch=epoch)
            two = torch_data.DataLoader(data, batch_sampler=parts, num_workers=workers)
            found = [[x.tolist() for (x,) in loader] for loader in (one, two)]
            assert found[0] == found[1] == [part.tolist() for part in parts]
            assert len(one) == len(two) == 2


@unhurried
@given(samples, sizes, words, st.integers(0, 1000), numbers)
def test_sampler_is_shard_indices(n: int, size: int, uneven: Uneven, epoch: int, seed: int) -> None:
    """The sampler yields shard_indices of its epoch as plain ints; len() is right without counting."""
    for rank in range(size):
        sampler = ShardedSampler(range(n), rank, size, seed=seed, uneven=uneven)
        sampler.set_epoch(epoch)
        found = list(sampler)
        assert found == shard_indices(n, rank, size, epoch=epoch, seed=seed, uneven=uneven).tolist()
        assert len(sampler) == len(found)
        assert all(type(index) is int for index in found)
        assert list(sampler) == found, "iterating does not change the epoch"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"n": -1}, "n=-1 must be a whole number of at least 0"),
        ({"n": 2.5}, "n=2.5 must be a whole number"),
        ({"rank": 3}, "rank=3 does not exist among size=3 ranks: they are numbered 0 to 2"),
        ({"rank": -1}, "rank=-1 must be"),
        ({"size": 0}, "size=0 must be a whole number of at least 1"),
        ({"epoch": -1}, "epoch=-1 must be"),
        ({"seed": -1}, "seed=-1 must be"),
        ({"uneven": "cut"}, "uneven='cut' is unknown. Choose one of 'pad', 'drop', 'keep'"),
    ],
)
def test_wrong_arguments_are_named(change: dict[str, Any], complaint: str) -> None:
    """Each wrong argument gives a ValueError with its name, its value and the range."""
    for function, more in ((shard_indices, {}), (batches, {"global_batch": 6})):
        with pytest.raises(ValueError, match=complaint):
            function(**{"n": 10, "rank": 1, "size": 3, **more, **change})


def test_sampler_refuses_wrong_arguments_when_made() -> None:
    """A wrong rank or word shows in the constructor, a wrong epoch in set_epoch; not in the first epoch."""
    with pytest.raises(ValueError, match="rank=2 does not exist"):
        ShardedSampler(10, 2, 2)
    with pytest.raises(ValueError, match="uneven='none' is unknown"):
        ShardedSampler(10, 0, 2, uneven="none")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="epoch=-1"):
        ShardedSampler(10, 0, 2).set_epoch(-1)


@pytest.mark.parametrize("uneven", ["pad", "drop"])
def test_global_batch_must_divide(uneven: Uneven) -> None:
    """Equal local batches are promised under pad and drop, so an indivisible global batch is refused."""
    with pytest.raises(ValueError, match=r"(?s)global_batch=10 cannot be shared out evenly over size=4.*multiple of 4"):
        batches(100, 0, 4, 10, uneven=uneven)
    with pytest.raises(ValueError, match="global_batch=0 must be"):
        batches(100, 0, 4, 0, uneven=uneven)


def test_numpy_integers_are_whole_numbers() -> None:
    """Numbers that come out of arrays are as good as ints."""
    one, three = np.int64(1), np.int32(3)
    assert shard_indices(np.int64(10), one, three, seed=one).tolist() == shard_indices(10, 1, 3, seed=1).tolist()
