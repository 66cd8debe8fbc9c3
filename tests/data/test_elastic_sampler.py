"""ElasticSampler at simulated sizes of the world: no sample is lost or taken twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")
hvd = pytest.importorskip("workbench.torch")
elastic = pytest.importorskip("workbench.torch.elastic")

unhurried = settings(deadline=None, max_examples=200)  # a busy machine is no failure


@pytest.fixture
def world() -> Iterator[None]:
    """A job of this process alone."""
    hvd.init()
    yield
    hvd.shutdown()


phases = st.lists(
    st.tuples(st.integers(1, 6), st.integers(1, 4), st.integers(0, 5), st.integers(0, 2)), min_size=0, max_size=5
)


def samplers(n: int, size: int, state: dict[str, int] | None, **options: Any) -> list[Any]:
    """The samplers of all ranks of a job of ``size``."""
    found = []
    for rank in range(size):
        place = SimpleNamespace(rank=lambda rank=rank: rank, size=lambda: size)
        with mock.patch("workbench.torch.elastic.sampler.api", place):
            sampler = elastic.ElasticSampler(range(n), **options)
            if state is not None:
                sampler.load_state_dict(state)
        found.append(sampler)
    return found


def steps_of(ranks: list[Any], batch: int) -> list[list[list[int]]]:
    """What each rank takes in each step, with a DataLoader's short last batch."""
    parts = [list(sampler) for sampler in ranks]
    lengths = {len(part) for part in parts} | {len(sampler) for sampler in ranks}
    assert len(lengths) == 1, "the ranks would make different numbers of steps"
    return [[part[i : i + batch] for part in parts] for i in range(0, lengths.pop(), batch)]


@unhurried
@given(st.integers(0, 60), phases, st.integers(1, 6), st.integers(1, 4), st.booleans(), st.integers(0, 9))
def test_an_epoch_over_changing_worlds(
    n: int, before: list[tuple[int, int, int, int]], last_size: int, batch: int, shuffle: bool, seed: int
) -> None:
    """No sample is lost or taken twice, whatever the sizes; only to come out even, fewer than the last size are."""
    options = {"shuffle": shuffle, "seed": seed}
    state = samplers(n, 1, None, **options)[0].state_dict()
    state["epoch"] = 3
    taken: Counter[int] = Counter()
    for size, local, steps, lost in before:
        ranks = samplers(n, size, state, **options)
        for parts in steps_of(ranks, local)[:steps]:
            taken.update(index for part in parts for index in part)
            for sampler, part in zip(ranks, parts, strict=True):
                sampler.record_batch(0, len(part))
        states = [sampler.state_dict() for sampler in ranks]
        assert states == [states[0]] * size, "all ranks must know the same"
        for sampler in ranks:  # steps after the commit: a failure takes them back
            for _ in range(lost):
                sampler.record_batch(0, local)
        state = states[0]
        assert set(taken) <= ranks[0].processed_indices
        if set(taken) == set(range(n)):
            break
        assert set(taken.values()) <= {1}
    else:
        ranks = samplers(n, last_size, state, **options)
        rest = Counter(index for parts in steps_of(ranks, batch) for part in parts for index in part)
        assert not set(rest) & set(taken)
        assert rest.total() - len(rest) < last_size
        taken += rest
    assert set(taken) == set(range(n))


@unhurried
@given(st.integers(1, 60), st.integers(1, 6), st.integers(0, 3))
def test_a_new_epoch_has_all_samples_in_another_order(n: int, size: int, epoch: int) -> None:
    """set_epoch forgets what was processed; order depends on the epoch, and on nothing else."""
    for rank, sampler in enumerate(samplers(n, size, {"epoch": epoch, "processed_num": n // 2})):
        place = SimpleNamespace(rank=lambda rank=rank: rank, size=lambda: size)
        with mock.patch("workbench.torch.elastic.sampler.api", place):
            sampler.set_epoch(epoch + 1)
        assert sampler.state_dict() == {"epoch": epoch + 1, "processed_num": 0}
        assert sorted(sampler.remaining_indices) == list(range(n))
        assert (
            sampler.remaining_indices == samplers(n, 1, {"epoch": epoch + 1, "processed_num": 0})[0].remaining_indices
        )
        assert sampler.processed_indices == set()


def test_processed_and_remaining_are_the_two_parts(world: None) -> None:
    """What is processed and what remains after a reset are disjoint and complete; recording alone moves no border."""
    sampler = elastic.ElasticSampler(range(10), seed=4)
    order = list(sampler)
    sampler.record_batch(0, 3)
    assert list(sampler) == order, "a loader that begins anew before a reset sees the same"
    sampler.record_batch(1, 3)
    sampler.reset()
    assert sampler.processed_indices == set(order[:6])
    assert list(sampler) == sampler.remaining_indices == order[6:]
    assert (len(sampler), sampler.num_samples, sampler.total_size) == (4, 4, 4)


def test_a_state_keeps_the_sampler(world: None) -> None:
    """Restore and sync deal the rest out anew, and so does a reset that skips the sync; a DataLoader goes by it."""
    data = torch.utils.data.TensorDataset(torch.arange(10))
    sampler = elastic.ElasticSampler(data, shuffle=False)
    loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler)
    state = elastic.TorchState(sampler=sampler)
    sampler.record_batch(0, 4)
    state.commit()
    sampler.record_batch(1, 4)
    state.restore()
    assert [x.tolist() for (x,) in loader] == [[4, 5, 6, 7], [8, 9]]
    assert len(loader) == 2
    sampler.record_batch(1, 4)
    assert len(sampler) == 6
    state.on_reset()
    assert list(sampler) == [8, 9]
    sampler.record_batch(2, 1)
    state.sync()
    assert list(sampler) == [9]
