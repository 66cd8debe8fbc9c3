"""Keras on GPUs: after ``fit`` on other data, from other weights, all ranks have the same ones, and the loss is down.

A program that each rank runs, with KERAS_BACKEND torch or jax. It needs no GPU, either.
"""

from __future__ import annotations

import json
from typing import Any

import keras
import numpy as np

import workbench.keras as hvd


def main() -> None:
    """Train on one rank; print what came of it."""
    hvd.init()
    keras.utils.set_random_seed(3 + hvd.rank())
    layers = [keras.layers.Input((8,)), keras.layers.Dense(16, activation="relu"), keras.layers.Dense(3)]
    model: Any = keras.Sequential(layers)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(0.05 * hvd.size(), momentum=0.9))
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    x = np.random.default_rng(hvd.rank()).normal(size=(256, 8)).astype("float32")
    first = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
    found = model.fit(x, (x.sum(1) > 0).astype("int64"), batch_size=32, epochs=3, verbose=0, callbacks=[first])
    weights = np.concatenate([np.asarray(each).ravel() for each in model.get_weights()])
    everybody = np.asarray(hvd.allgather(weights.reshape(1, -1)))
    value = model.trainable_variables[0].value
    device = str(value.device) if keras.backend.backend() == "torch" else str(value.devices())
    hvd.shutdown()
    losses = found.history["loss"]
    print(json.dumps({"device": device, "equal": bool((everybody == everybody[0]).all()), "loss": losses}))


if __name__ == "__main__":
    main()
