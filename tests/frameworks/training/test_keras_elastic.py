"""Failures amid ``fit``, on each backend of Keras: states go back to the commit, and every rank learns who it was."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from elastic_twins import Fails
from failed_cells import cell
from keras_twins import (
    BACKEND,
    QUICK,
    ROWS,
    STEPS,
    assert_same_everywhere,
    begin,
    compiled,
    data,
    difference,
    fitted,
    net,
    part,
    precision,
    twins,
)

import workbench.keras as hvd
from workbench.elastic import HostUpdate, restart
from workbench.errors import CheckpointError, CollectiveError, MismatchError, RankFailedError
from workbench.keras.backend import own_errors, state_of, values_of

EPOCHS = 2


@pytest.fixture(scope="module", autouse=True)
def quick_resets(job: None) -> Iterator[None]:
    """A shorter heartbeat for the tests of this file."""
    os.environ["WORKBENCH_HEARTBEAT_S"] = "0.1"
    restart()
    yield
    del os.environ["WORKBENCH_HEARTBEAT_S"]
    restart()


@pytest.fixture(autouse=True)
def nothing_of_it_is_left() -> Iterator[None]:
    """TensorFlow ends the iterator of a failed ``fit`` when Python lets go of it: now at once, later in a minute."""
    yield
    gc.collect()


@pytest.mark.thorough
def test_save_restore_sync(n: int, rank: int) -> None:
    """restore() brings weights, optimizer state and objects back, any number of times; sync() brings rank 0's."""
    keras.utils.set_random_seed(rank)
    model, (x, y) = net(), data(n)
    compiled(model, keras.optimizers.Adam(0.01), **QUICK)
    fitted(model, part(x), part(y), ROWS, 1)
    state = hvd.elastic.KerasState(model, epoch=rank, losses=[rank])
    saved = values_of(state_of(model))
    for _ in range(2):
        fitted(model, part(x), part(y), ROWS, 1)
        state.epoch += 5
        state.losses.append(9)
        assert any((a != b).any() for a, b in zip(saved, values_of(state_of(model)), strict=True))
        state.restore()
        for a, b in zip(saved, values_of(state_of(model)), strict=True):
            np.testing.assert_array_equal(a, b)
        assert (state.epoch, state.losses) == (rank, [rank])
    state.sync()
    assert (state.epoch, state.losses) == (0, [0])
    for a, b in zip(hvd.broadcast_object(saved), values_of(state_of(model)), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.thorough
def test_a_checkpoint_is_gone_on_from(n: int, rank: int, tmp_path: Path) -> None:
    """A new model with other weights, given the same folder: after the sync it is the old one, to the bit."""
    folder = hvd.broadcast_object(str(tmp_path))
    x, y = data(n)
    for again in (False, True):
        keras.utils.set_random_seed(rank + 7 * again)
        model = net()
        compiled(model, keras.optimizers.Adam(0.01), **QUICK)
        if not again:
            fitted(model, part(x), part(y), ROWS, 1)
        state = hvd.elastic.KerasState(model, epoch=0)
        state.checkpoint(folder)
        state.sync()
        if not again:
            state.epoch = 5
            state.commit()
            committed = values_of(state_of(model))
        state.finish()
    assert state.epoch == 5
    assert all((a == b).all() for a, b in zip(committed, values_of(state_of(model)), strict=True))
    other = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    stranger = hvd.elastic.KerasState(other, epoch=0)
    stranger.checkpoint(folder)
    with pytest.raises(CheckpointError, match=r"to another training: model\[2\] .* is not of this model"):
        stranger.sync()


def train(model: Any, n: int, fails: Any = None, batches_per_commit: int = 10**6) -> Any:
    """Train elastically to the end of EPOCHS epochs; the state, and with which epochs fit() began."""
    x, y = data(n)
    compiled(model, hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)))
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    state.register_reset_callbacks([lambda: resets.append(state.epoch)])
    resets: list[int] = []

    @hvd.elastic.run
    def run(state: Any) -> None:
        callbacks = [
            *([fails] if fails else []),
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.CommitStateCallback(state, batches_per_commit),
        ]
        fitted(model, part(x), part(y), ROWS, EPOCHS - state.epoch, callbacks)

    run(state)
    assert state.epoch == EPOCHS
    return state, resets


@pytest.mark.ranks(2)
@pytest.mark.parametrize("which", [pytest.param("first", marks=pytest.mark.usually("torch")), "last"])
def test_fit_goes_on_after_a_failure(which: str, n: int) -> None:
    """One rank fails amid an epoch, the others in their compiled step: all go back, and end as if nothing had been."""
    with precision("float64"):
        model, serial = twins()
        _, resets = train(model, n, Fails(0 if which == "first" else n - 1, after=STEPS + 2))
        assert resets == [1]
        x, y = data(n)
        fitted(compiled(serial, keras.optimizers.Adam(0.01), **QUICK), x, y, ROWS * n, EPOCHS)
        assert_same_everywhere(model)
        assert difference(model, serial) < 1e-10


@pytest.mark.usually("torch", "tensorflow")
def test_commits_and_counts(n: int) -> None:
    """A commit every two batches and at the end of each epoch; batches are counted within, epochs over fits."""
    model, _ = twins()
    seen: list[tuple[int, int, int]] = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            seen.append((state.epoch, state.batch, state._commits))

    x, y = data(n)
    compiled(model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)), **QUICK)
    state = hvd.elastic.KerasState(model, batch=0, epoch=0)
    parts = hvd.elastic
    for _ in range(2):
        callbacks = [
            begin(),
            parts.UpdateEpochStateCallback(state),
            parts.UpdateBatchStateCallback(state),
            parts.CommitStateCallback(state, 2),
            Look(),
        ]
        fitted(model, part(x), part(y), ROWS, 1, callbacks)
    assert [(epoch, batch) for epoch, batch, _ in seen] == [
        (epoch, batch) for epoch in (0, 1) for batch in range(STEPS)
    ]
    assert [commits for *_, commits in seen] == [0, 1, 1, 2, 3, 4, 4, 5]
    assert (state.epoch, state.batch, state._commits) == (2, 0, 6)


@pytest.mark.thorough
@pytest.mark.usually("torch", "tensorflow")
@pytest.mark.ranks(2)
def test_news_of_hosts_reset_amid_fit(n: int, rank: int) -> None:
    """Rank 0 hears of new hosts: all ranks leave fit() at the same commit, begin anew, and go on from there."""
    model, _ = twins()

    class News(keras.callbacks.Callback):
        told = False

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if rank == 0 and batch == 1 and not News.told:
                News.told = True
                kept[0].on_hosts_updated(time.time(), HostUpdate.ADDED)

    kept: list[Any] = []
    plain = hvd.elastic.KerasState.__init__

    def note(self: Any, *args: Any, **kwargs: Any) -> None:
        kept.append(self)
        plain(self, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hvd.elastic.KerasState, "__init__", note)
        _, resets = train(model, n, News(), batches_per_commit=2)
    assert resets == [0]
    assert_same_everywhere(model)


def different(rank: int) -> None:
    """A collective about which the ranks disagree, within what the backend compiles."""
    if BACKEND == "tensorflow":
        import tensorflow as tf

        import workbench.tensorflow as tf_hvd

        tf.function(lambda x: tf_hvd.allreduce(x, name="different"))(tf.ones(1 + rank))
    elif BACKEND == "jax":
        import jax

        import workbench.jax as jax_hvd

        jax.jit(lambda x: jax_hvd.allreduce(x, name="different"))(jax.numpy.ones(1 + rank)).block_until_ready()
    else:
        import torch

        import workbench.torch as torch_hvd

        torch_hvd.allreduce(torch.ones(1 + rank), name="different")


@pytest.mark.thorough
@pytest.mark.ranks(2)
def test_an_error_of_the_graph_is_ours(rank: int, n: int) -> None:
    """A mismatch within a compiled function: own_errors() gives our error back, and elastic.run() begins anew."""
    with pytest.raises(MismatchError, match="different"), own_errors():
        different(rank)
    state, again = hvd.elastic.KerasState(net(), step=0), []

    @hvd.elastic.run
    def run(state: Any) -> None:
        state.step += 1
        again.append(state.step)
        if len(again) == 1:
            different(rank)
            pytest.fail("the ranks' shapes differ")

    run(state)
    assert again == [1, 1], "restored to 0, and run again"
    assert hvd.allreduce(1.0, op=hvd.Sum) == n


@pytest.mark.thorough
@pytest.mark.usually("torch", "tensorflow")
@pytest.mark.ranks(2)
def test_an_error_that_comes_again_and_again(rank: int, n: int) -> None:
    """At the reset limit every rank raises, with the mismatch of the compiled function as the cause."""
    state = hvd.elastic.KerasState(net(), step=0)

    @hvd.elastic.run(reset_limit=1)
    def run(state: Any) -> None:
        state.step += 1
        different(rank)

    with pytest.raises(CollectiveError, match="after 1 resets without a commit") as caught:
        run(state)
    assert isinstance(caught.value.__cause__, MismatchError)
    assert state.step == 0
    assert hvd.allreduce(1.0, op=hvd.Sum) == n


@pytest.mark.thorough
@pytest.mark.ranks(2)
def test_a_rank_that_raises_amid_fit(n: int, rank: int) -> None:
    """The others leave fit() with an error that names it and its exception; afterwards all can train again."""
    model, serial = twins()
    who = n - 1
    x, y = data(n)
    compiled(model, hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)))
    with cell(Exception) as caught:
        fitted(model, part(x), part(y), ROWS, 2, [begin(), Fails(who, STEPS + 1, ZeroDivisionError)])
    assert len(caught) == 1, "nobody has come to the end"
    if rank == who:
        assert isinstance(caught[0], ZeroDivisionError)
    else:
        assert f"Rank {who} raised" in str(caught[0]), caught
        assert "ZeroDivisionError" in str(caught[0]), caught
        if BACKEND == "torch":
            assert isinstance(caught[0], RankFailedError)
    model.set_weights(serial.get_weights())
    compiled(model, hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), **QUICK)
    fitted(model, part(x), part(y), ROWS, 1, [begin()])
    fitted(compiled(serial, keras.optimizers.Adam(0.01), **QUICK), x, y, ROWS * n, 1)
    assert difference(model, serial) < 1e-5
    assert_same_everywhere(model)
