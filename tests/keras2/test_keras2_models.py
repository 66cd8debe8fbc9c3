"""Models of Keras 2: saved and loaded, elastic, with batch norm over all ranks; and the verbs on values."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from thorough import diagonal, once_more, quick
from twins2 import ROWS, assert_same_everywhere, begin, compiled, data, fitted, in_float64, net, part

import workbench
import workbench.keras as hvd
import workbench.tensorflow as tf_hvd
from workbench.errors import MismatchError
from workbench.keras.backend import own_errors, state_of, values_of
from workbench.keras.flavour import keras
from workbench.keras.optimizer import is_distributed

KINDS = {"new": keras.optimizers, "legacy": keras.optimizers.legacy}


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        once_more("new", "model.keras"),
        ("legacy", "model.h5"),
        once_more("new", "model"),
        once_more("new", "model.h5"),
        once_more("legacy", "model"),
    ],
)
def test_load_model(kind: str, name: str, n: int, rank: int, tmp_path: Path) -> None:
    """A model of a training goes on where it was, distributed again; plain Keras loads it as well.

    Out of a SavedModel, a folder, plain Keras 2 loads the optimizer without its state, so there only the weights count.
    It does not save its legacy optimizers in the format .keras.
    """
    model, (x, y) = net(), data(n)
    compiled(model, hvd.DistributedOptimizer(KINDS[kind].Adam(0.01)))
    fitted(model, part(x), part(y), ROWS, 1, [begin()])
    path = tmp_path / name
    model.save(path)
    plain, loaded = keras.models.load_model(path), hvd.load_model(path)
    assert type(plain.optimizer) is KINDS[kind].Adam
    assert is_distributed(loaded.optimizer)
    assert isinstance(loaded.optimizer, KINDS[kind].Adam)
    for mine, other in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, other)
    fitted(model, part(x), part(y), ROWS, 1)
    fitted(loaded, part(x), part(y), ROWS, 1)
    assert_same_everywhere(loaded)
    for mine, other in zip(model.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-6 if "." in name else 0.1)


@pytest.mark.thorough
def test_load_model_with_custom_optimizers(n: int, tmp_path: Path) -> None:
    """Classes of one's own are given; ``legacy_opts`` makes a legacy optimizer of what the file holds."""

    class Mine(keras.optimizers.legacy.SGD):
        pass

    model, (x, y) = net(), data(n)
    compiled(model, Mine(0.01))
    fitted(model, part(x), part(y), ROWS, 1)
    model.save(tmp_path / "mine.h5")
    for more in ({"custom_optimizers": [Mine]}, {"custom_objects": {"Mine": Mine}}):
        assert isinstance(hvd.load_model(tmp_path / "mine.h5", **more).optimizer, Mine)
    compiled(model, keras.optimizers.legacy.SGD(0.01))
    fitted(model, part(x), part(y), ROWS, 1)
    model.save(tmp_path / "old.h5")
    assert isinstance(hvd.load_model(tmp_path / "old.h5", legacy_opts=True).optimizer, keras.optimizers.legacy.SGD)


@pytest.mark.thorough
def test_checkpoints_of_tensorflow(n: int, tmp_path: Path) -> None:
    """``tf.train.Checkpoint`` takes the wrapper as it takes the optimizer."""
    model, (x, y) = net(), data(n)
    compiled(model, hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)))
    fitted(model, part(x), part(y), ROWS, 1, [begin()])
    kept = values_of(state_of(model))
    path = tf.train.Checkpoint(model=model, optimizer=model.optimizer).save(str(tmp_path / "c"))
    fitted(model, part(x), part(y), ROWS, 1)
    tf.train.Checkpoint(model=model, optimizer=model.optimizer).restore(path).assert_consumed()
    for mine, wanted in zip(values_of(state_of(model)), kept, strict=True):
        np.testing.assert_array_equal(mine, wanted)


@pytest.mark.parametrize(
    ("kind", "make"), diagonal(KINDS, [hvd.elastic.KerasState, tf_hvd.elastic.TensorFlowKerasState])
)
def test_elastic_state(make: Any, kind: str, rank: int) -> None:
    """Sync gives rank 0's, restore goes back to the last commit: weights, optimizer and numbers."""
    model = keras.Sequential([keras.layers.Dense(2, activation="softmax")])
    model.build((2, 2))
    model.set_weights([np.full((2, 2), rank + 1.0, "float32"), np.full(2, rank + 1.0, "float32")])
    optimizer = hvd.DistributedOptimizer(KINDS[kind].Adam(0.001))
    state = make(model, optimizer, batch=20 + rank, epoch=10 + rank)
    state.sync()
    assert all((each == 1.0).all() for each in state.model.get_weights())
    assert (state.batch, state.epoch) == (20, 10)
    before = model.get_weights()
    other = [each + 1 for each in before]
    for commit, wanted, batch in ((False, before, 20), (True, other, 21)):
        model.set_weights(other)
        optimizer.apply_gradients([(tf.ones_like(each), each) for each in model.trainable_variables])
        steps = int(optimizer.iterations)
        model.set_weights(other)
        state.batch = 21
        if commit:
            state.commit()
            optimizer.apply_gradients([(tf.ones_like(each), each) for each in model.trainable_variables])
        state.restore()
        assert int(optimizer.iterations) == (steps if commit else 0)
        assert state.batch == batch
        for mine, its in zip(model.get_weights(), wanted, strict=True):
            np.testing.assert_array_equal(mine, its)


@pytest.mark.thorough
def test_elastic_callbacks(n: int) -> None:
    """They count batches and epochs in the state, and commit when it is time."""
    model, (x, y) = net(), data(n)
    compiled(model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)))
    state = hvd.elastic.KerasState(model, batch=0, epoch=3)
    commits = []
    state.commit = lambda: commits.append((state.batch, state.epoch))
    elastic = hvd.elastic
    callbacks = [
        elastic.UpdateBatchStateCallback(state), elastic.UpdateEpochStateCallback(state),
        elastic.CommitStateCallback(state, batches_per_commit=3),
    ]  # fmt: skip
    fitted(model, part(x), part(y), ROWS, 2, callbacks)
    assert (state.batch, state.epoch) == (0, 5)
    assert commits == [(2, 3), (0, 4), (1, 4), (0, 5)]


@pytest.mark.ranks(2)
def test_an_error_in_fit_is_ours_again(n: int, rank: int) -> None:
    """A collective that fails within the graph raises what the elastic loop waits for; the job can go on."""
    different = keras.layers.Lambda(lambda x: x + tf_hvd.allreduce(tf.ones(1 + rank), name="different")[0])
    model = keras.Sequential([keras.layers.Dense(2, input_shape=(3,)), different])
    compiled(model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.01)))
    with pytest.raises(MismatchError, match="different"), own_errors():
        fitted(model, np.ones((4, 3)), np.ones((4, 2)), 4, 1)
    assert float(hvd.allreduce(1.0, op=hvd.Sum)) == n


@pytest.mark.parametrize("dims", quick([2, 4], 4))
def test_sync_batch_norm(dims: int, n: int) -> None:
    """In training it is the plain layer on the whole batch, forward and backward, with its moving averages."""
    in_float64()
    layers = [tf_hvd.SyncBatchNormalization(axis=-1), keras.layers.BatchNormalization(axis=-1)]
    whole = np.random.default_rng(5).normal(2, 3, (4 * n, *[3] * (dims - 2), 5))
    ends = []
    for layer, rows in zip(layers, (part(whole), whole), strict=True):
        for _ in range(2):
            x = tf.constant(rows)
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, training=True)
                loss = tf.reduce_sum(y**3)
            gradient = tape.gradient(loss, [x, *layer.trainable_variables])
        ends.append((y.numpy(), [each.numpy() for each in gradient], values_of(layer.non_trainable_variables)))
    (y, grads, moving), (whole_y, whole_grads, whole_moving) = ends
    np.testing.assert_allclose(y, part(whole_y), rtol=0, atol=1e-9)
    np.testing.assert_allclose(grads[0], part(whole_grads[0]), rtol=0, atol=1e-8)
    for mine, its in zip(grads[1:], whole_grads[1:], strict=True):
        np.testing.assert_allclose(n * hvd.allreduce(mine), its, rtol=0, atol=1e-8)
    for mine, its in zip(moving, whole_moving, strict=True):
        np.testing.assert_allclose(mine, its, rtol=0, atol=1e-9)
    np.testing.assert_allclose(layers[0](part(whole)), layers[1](part(whole)), rtol=0, atol=1e-9)


def test_verbs_on_values(n: int, rank: int) -> None:
    """Numbers, arrays and tensors, by rank; results are tensors of TensorFlow's dtypes, as Horovod's are."""
    total = n * (n + 1) / 2
    assert hvd.allreduce(rank + 1.0, op=hvd.Sum).numpy() == np.float32(total)
    assert hvd.allreduce(rank + 1.0, op=hvd.Sum).dtype == tf.float32
    assert hvd.allreduce([rank + 1.0, 0.0], average=False).numpy().tolist() == [total, 0]
    assert hvd.allreduce(np.array([rank + 1.0]), prescale_factor=2.0).numpy().tolist() == [total / n * 2]
    assert hvd.allreduce(tf.constant([rank + 1.0]), compression=hvd.Compression.fp16).dtype == tf.float32
    assert hvd.allgather([[rank]]).numpy().tolist() == [[each] for each in range(n)]
    assert hvd.broadcast(tf.Variable([float(rank)]), n - 1, name="x").numpy().tolist() == [n - 1]
    assert list(range(hvd.broadcast(3, 0))) == [0, 1, 2]
    assert hvd.reducescatter(np.arange(float(n)), op=hvd.Sum).numpy().tolist() == [n * rank]
    with pytest.raises(RuntimeError, match="does not support eager execution"):
        hvd.broadcast_global_variables(0)


@pytest.mark.thorough
def test_models_of_an_estimator_are_bytes() -> None:
    """A compiled model, its weights and its rate go to the ranks and back in Keras' own formats."""
    # Its package needs pyspark, which ranks with Keras 2 need not have.
    files = runpy.run_path(str(Path(workbench.__file__).parent / "spark" / "keras" / "files.py"))
    names = ("load_weights", "model_bytes", "model_of", "scale_rate", "weights_bytes")
    load_weights, model_bytes, model_of, scale_rate, weights_bytes = (files[name] for name in names)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    for optimizer in (keras.optimizers.Adam(0.25), keras.optimizers.legacy.Adam(0.25)):
        model.compile(hvd.DistributedOptimizer(optimizer), "mse")
        x, y = np.ones((2, 3), np.float32), np.ones((2, 2), np.float32)
        model.train_on_batch(x, y)
        again = model_of(model_bytes(model), None)
        np.testing.assert_array_equal(again.predict_on_batch(x), model.predict_on_batch(x))
        scale_rate(model.optimizer, 2.0)
        assert float(np.asarray(model.optimizer.learning_rate)) == 0.5
        content = weights_bytes(model)
        before = model.get_weights()
        model.train_on_batch(x, y)
        load_weights(model, content)
        for mine, theirs in zip(model.get_weights(), before, strict=True):
            np.testing.assert_array_equal(mine, theirs)
