"""Logical shards without ranks: who owns which, which samples they take, which commit is taken after a death."""

from __future__ import annotations

import copy
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest

from workbench import elastic
from workbench.elastic.exact import ShardBatches, newest, owners, reduce_shards
from workbench.job import api
from workbench.job.objects import broadcast_object


def test_every_shard_has_one_owner() -> None:
    """In rank order, contiguous, none more than one above another; for any number of ranks."""
    for shards in range(1, 20):
        for size in range(1, 25):
            owned = owners(shards, size)
            assert [shard for block in owned for shard in block] == list(range(shards))
            assert len(owned) == size
            assert max(map(len, owned)) - min(map(len, owned)) <= 1
    with pytest.raises(ValueError, match="at least 1 logical shard"):
        owners(0, 2)


@pytest.mark.parametrize("seed", range(30))
def test_each_sample_once_in_an_epoch_over_any_sequence_of_sizes(seed: int) -> None:
    """The ranks change between the steps, and a step that failed is done again by others."""
    choose = random.Random(seed)
    n, shards, batch = choose.randint(1, 200), choose.randint(1, 9), choose.randint(1, 7)
    samples = ShardBatches(n, shards, batch, seed=seed)
    for epoch in range(3):
        counts: Counter[int] = Counter()
        for step in range(epoch * samples.steps, (epoch + 1) * samples.steps):
            for attempt in reversed(range(choose.randint(1, 3))):
                taken = [samples(step, s).tolist() for own in owners(shards, choose.randint(1, 12)) for s in own]
                assert max(map(len, taken)) - min(map(len, taken)) <= 1
                assert max(map(len, taken)) <= batch
                if not attempt:
                    counts.update(index for part in taken for index in part)
            weights = [samples.weight(step, shard) for shard in range(shards)]
            assert sum(weights) == pytest.approx(shards)
            total = sum(map(len, taken))
            assert weights == pytest.approx([len(part) * shards / total for part in taken])
        assert counts == Counter(range(n))


def test_a_kill_amid_a_commit_leaves_one_choice() -> None:
    """Whichever ranks have saved: the newest is taken, and broadcast exactly if somebody lacks it."""
    for size in range(1, 6):
        for saved in range(1 << size):
            versions = [7 + (saved >> rank & 1) for rank in range(size)]
            root, all_have_it = newest(versions)
            assert versions[root] == max(versions)
            assert all_have_it == (len(set(versions)) == 1)


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16"])
@pytest.mark.parametrize("op", ["sum", "average"])
@pytest.mark.parametrize("shards", [1, 3, 4, 7])
def test_the_order_of_the_sum_is_that_of_the_shards(shards: int, op: str, dtype: str) -> None:
    """Numbers whose sum depends on the order: on 1 to 5 ranks the bits of the serial sum."""
    columns = 60 * 7
    grads = (np.random.default_rng(3).standard_normal((shards, columns)) * 10.0 ** np.arange(shards)[:, None]) / 1e3
    grads = grads.astype(dtype)
    total = grads[0].astype("float64" if dtype == "float64" else "float32")
    for grad in grads[1:]:
        total = total + grad
    oracle = (total / (shards if op == "average" else 1)).astype(dtype)

    def reduced() -> Any:
        own = owners(shards, api.size())[api.rank()]
        return reduce_shards(np.ascontiguousarray(grads[own.start : own.stop]), shards, op, dtype, "grads").tobytes()

    for size in (1, 2, 3, 4, 5):
        assert set(api.run_threads(size, reduced)) == {oracle.tobytes()}


def test_other_states_are_refused() -> None:
    """Exact mode is PyTorch's, so far."""
    state = elastic.ObjectState(broadcast_object, api.rank, step=0)
    with pytest.raises(ValueError, match=r"needs a workbench\.torch\.elastic\.TorchState.*is a ObjectState"):
        elastic.run(exact=True)(lambda state: None)(state)


def test_commits_use_the_memory_of_older_ones_and_stay_whole() -> None:
    """A copy is what deepcopy makes, ties and metadata included; the last one is not written to by the next."""
    torch: Any = pytest.importorskip("torch")
    kept: Any = pytest.importorskip("workbench.torch.elastic.kept")
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 4))
    model[2].weight = torch.nn.Parameter(torch.ones(4, 4).t())
    model.tied = model[2]
    copies: list[Any] = [None]
    places: list[int] = []
    for step in range(5):
        with torch.no_grad():
            model[0].weight.fill_(step)
        model(torch.randn(5, 3))
        oracle = copy.deepcopy(model.state_dict())
        copies.append(kept.Kept(model.state_dict(), copies[-2] if len(copies) > 1 else None))
        mine = copies[-1].value
        assert repr(mine) == repr(oracle)
        assert mine._metadata == oracle._metadata
        places.append(mine["0.weight"].data_ptr())
        if step:
            assert copies[-2].value["0.weight"][0, 0] == step - 1
    assert places[2:] == places[:3]
