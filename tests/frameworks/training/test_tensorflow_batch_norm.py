"""SyncBatchNormalization is BatchNormalization on the whole batch: forward, backward, statistics, in ``fit``."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras_twins import QUICK, ROWS, SameEverywhere, begin, compiled, data, dense, difference, fitted, part, precision
from thorough import diagonal

import workbench.tensorflow as hvd


def layers(**options: Any) -> tuple[Any, Any]:
    """(ours, Keras')."""
    ours, whole = hvd.SyncBatchNormalization(**options), keras.layers.BatchNormalization(**options)
    return ours, whole


@pytest.mark.parametrize(("graph", "uneven", "shape"), diagonal([False, True], [False, True], [(3,), (4, 5, 3)]))
def test_equal_to_the_whole_batch(graph: bool, uneven: bool, shape: tuple[int, ...], n: int, rank: int) -> None:
    """Outputs, gradients of inputs and parameters, and moving statistics; ranks may have more rows than others."""
    with precision("float64"):
        ours, whole = layers(momentum=0.7, epsilon=1e-3)
        counts = [4 + 3 * each * uneven for each in range(n)]
        mine = slice(sum(counts[:rank]), sum(counts[: rank + 1]))
        random = np.random.default_rng(1)

        def step(layer: Any, x: Any, factor: Any) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = layer(x, training=True)
                loss = tf.reduce_sum(y**2 * factor + tf.sin(y))
            return y, tape.gradient(loss, [x, *layer.trainable_weights])

        for layer in (ours, whole):
            layer.build((None, *shape))
            layer.set_weights([np.array([1.0, 2.0, 3.0]), np.array([0.5, 0.0, 1.0]), np.zeros(3), np.ones(3)])
        run = tf.function(step) if graph else step
        for _ in range(2):
            x, factor = random.normal(2.0, 3.0, size=(2, sum(counts), *shape))
            y, (dx, *own) = run(ours, tf.constant(x[mine]), tf.constant(factor[mine]))
            wanted, (dwhole, *theirs) = step(whole, tf.constant(x), tf.constant(factor))
            summed = [hvd.allreduce(each, op=hvd.Sum) for each in own]
            for a, b in [(y, wanted[mine]), (dx, dwhole[mine]), *zip(summed, theirs, strict=True)]:
                np.testing.assert_allclose(a, b, rtol=0, atol=1e-10)
            for a, b in zip(ours.get_weights(), whole.get_weights(), strict=True):
                np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)
        np.testing.assert_allclose(ours(x[:4]), whole(x[:4]), rtol=0, atol=1e-12)  # in inference


def test_a_rank_with_an_empty_batch(n: int, rank: int) -> None:
    """A rank without rows adds nothing, and gets the others' statistics."""
    with precision("float64"):
        ours, whole = layers(momentum=0.5)
        x = np.random.default_rng(2).normal(size=(6, 3))
        whole(x, training=True)
        ours(x if rank == 0 else x[:0], training=True)
        for a, b in zip(ours.get_weights(), whole.get_weights(), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-12)


@pytest.mark.ranks(2)
def test_masks_are_refused() -> None:
    """Rather than normalise with this rank's rows alone."""
    layer = hvd.SyncBatchNormalization()
    with pytest.raises(ValueError, match="does not support masks"):
        layer(tf.ones((2, 3, 1)), training=True, mask=tf.constant([[True, False, True]] * 2))


@pytest.mark.thorough
def test_inside_fit(n: int) -> None:
    """A model with it trains to the serial model's weights and statistics, and saves as Keras' own layer."""

    def model_with(norm: Any) -> Any:
        inputs = keras.Input((5,))
        x = norm(name="norm")(dense(6, name="first")(inputs))
        return keras.Model(inputs, dense(2, name="head")(keras.layers.Activation("relu", name="relu")(x)))

    with precision("float64"):
        keras.utils.set_random_seed(hvd.rank())
        model, serial = model_with(hvd.SyncBatchNormalization), model_with(keras.layers.BatchNormalization)
        serial.set_weights(hvd.broadcast_object(model.get_weights()))
        x, y = data(n)
        optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05, momentum=0.9))
        fitted(compiled(model, optimizer), part(x), part(y), ROWS, 1, [begin(), SameEverywhere()])
        fitted(compiled(serial, keras.optimizers.SGD(0.05, momentum=0.9), **QUICK), x, y, ROWS * n, 1)
        assert difference(model, serial) < 1e-10
        clone = keras.models.clone_model(model)
        assert type(clone.get_layer("norm")) is keras.layers.BatchNormalization
