"""The memory of a rank: the paper's own table, the ring's own bytes, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from workbench.collectives.ring import ring_allreduce
from workbench.course.calculators.memory import OPTIMIZERS, PRECISIONS, MemorySettings, Sharding, calculate
from workbench.simulate.algorithms import allgather, reduce_scatter
from workbench.simulate.schedule import Algorithm, record

# Rajbhandari 2020, table 1: GB for 7.5 and 128 billion parameters, Adam in mixed precision, by ranks: ZeRO 1, 2, 3.
TABLE_1 = {
    (7.5, 4): (52.5, 41.3, 30),
    (7.5, 16): (35.6, 21.6, 7.5),
    (7.5, 64): (31.4, 16.6, 1.88),
    (7.5, 256): (30.4, 15.4, 0.47),
    (7.5, 1024): (30.1, 15.1, 0.12),
    (128, 4): (896, 704, 512),
    (128, 64): (536, 284, 32),
    (128, 1024): (513, 257, 2),
}


def test_it_gives_the_papers_table() -> None:
    """To the digits that the paper prints, and plain is 16 bytes a parameter."""
    for billions, ranks in TABLE_1:
        job = MemorySettings(parameters=int(billions * 1e9), ranks=ranks)
        plain, *sharded = (calculate(job, sharding).total / 1e9 for sharding in Sharding)
        assert plain == pytest.approx(16 * billions)
        for found, printed in zip(sharded, TABLE_1[billions, ranks], strict=True):
            assert found == pytest.approx(printed, rel=0.005, abs=0.005)


def sent_by(algorithm: Algorithm, n: int, numbers: int) -> float:
    """How many numbers each rank sends, by the algorithm's own messages."""
    return float(np.asarray(record(algorithm, n).sent).sum(axis=0).max()) * numbers


def test_the_bytes_sent_are_those_of_the_rings() -> None:
    """An allreduce; a reduce-scatter and an allgather; and one more allgather for ZeRO 3."""
    for n in [2, 4, 8]:
        job = MemorySettings(parameters=1000 * n, ranks=n, precision="float32")
        all_, scattered, gathered = (
            4 * sent_by(each, n, 1000 * n) for each in (ring_allreduce, reduce_scatter, allgather)
        )
        found = [calculate(job, sharding).sent for sharding in Sharding]
        assert found == pytest.approx([all_, scattered + gathered, scattered + gathered, scattered + 2 * gathered])


def test_one_rank_has_nothing_to_shard() -> None:
    """With n = 1 all ways keep the same, and nobody sends."""
    for precision in PRECISIONS:
        for optimizer in OPTIMIZERS:
            job = MemorySettings(ranks=1, optimizer=optimizer, precision=precision, activation_bytes=1e6, batch=32)
            first, *others = (calculate(job, sharding) for sharding in Sharding)
            assert others == [first] * 3
            assert first.sent == 0
            assert first.activations == 32e6


def test_activations_stay_with_their_samples() -> None:
    """No way shards them: they grow with the rank's batch, and not with n."""
    for sharding in Sharding:
        kept = [
            calculate(MemorySettings(ranks=n, activation_bytes=1e6, batch=b), sharding)
            for n, b in ((2, 4), (64, 4), (64, 8))
        ]
        assert [each.activations for each in kept] == [4e6, 4e6, 8e6]


def test_nonsense_is_refused() -> None:
    """An error names the value, and what it must be."""
    for wrong, words in [
        ({"ranks": 0}, "ranks is 0: 1 at least"),
        ({"parameters": 0}, "parameters is 0: 1 at least"),
        ({"batch": -1}, "batch is -1: 0 at least"),
        ({"optimizer": "LAMB"}, "optimizer is 'LAMB': choose one of 'SGD'"),
        ({"precision": "int8"}, "precision is 'int8': choose one of 'float32'"),
    ]:
        with pytest.raises(ValueError, match=words):
            MemorySettings(**wrong)  # type: ignore[arg-type]
