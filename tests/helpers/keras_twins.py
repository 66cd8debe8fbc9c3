"""One Keras model trained by all ranks with ``fit``, and its serial twin, which every rank fits on the whole batch.

The loss is a mean over rows and all ranks have equally many rows, so the average of the ranks' gradients is the
gradient of the whole batch. The two are equal but for rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

import workbench.keras as hvd
from workbench.keras.backend import state_of, values_of

BACKEND = keras.backend.backend()
TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
ROWS, STEPS = 8, 4  # rows of a rank in a step, steps of an epoch

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "Adam": lambda: keras.optimizers.Adam(0.01),
}


class Product(keras.layers.Layer):
    """A dense layer that multiplies with torch's own matmul.

    ``keras.ops.matmul``, and so ``keras.layers.Dense``, computes float64 in float32 on torch (Keras 3.15).
    """

    def __init__(self, units: int, activation: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units, self.activation = units, keras.activations.get(activation)

    def build(self, shape: Sequence[Any]) -> None:
        """The weights."""
        self.kernel = self.add_weight(shape=(shape[-1], self.units), initializer="glorot_uniform", name="kernel")
        self.bias = self.add_weight(shape=(self.units,), initializer="zeros", name="bias")

    def call(self, x: Any) -> Any:
        """Forward."""
        import torch

        return self.activation(torch.matmul(x, self.kernel.value) + self.bias.value)

    def compute_output_shape(self, shape: Sequence[Any]) -> tuple[Any, ...]:
        """Of the result."""
        return (*shape[:-1], self.units)


def dense(*args: Any, **kwargs: Any) -> Any:
    """A dense layer that is as exact as ``floatx`` says."""
    exact = BACKEND == "torch" and keras.config.floatx() == "float64"
    return (Product if exact else keras.layers.Dense)(*args, **kwargs)


QUICK = {"run_eagerly": BACKEND == "tensorflow"}
"""For ``compile``, where it is not the graph that is tested: TensorFlow takes seconds to make one."""


@contextmanager
def precision(dtype: str) -> Iterator[None]:
    """Models made within the block, and their losses, compute in this dtype."""
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    if BACKEND == "jax":
        import jax

        jax.config.update("jax_enable_x64", dtype == "float64")
    try:
        yield
    finally:
        if BACKEND == "jax":
            jax.config.update("jax_enable_x64", False)
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")


def net() -> Any:
    """A layer that is used twice, and one that is frozen."""
    twice, frozen = dense(5, activation="tanh", name="twice"), dense(5, name="frozen")
    frozen.trainable = False
    x = inputs = keras.Input((5,))
    for layer in (twice, twice, frozen):
        x = layer(x)
    return keras.Model(inputs, dense(2, name="head")(x))


def data(n: int, steps: int = STEPS, rows: int = ROWS) -> tuple[Any, Any]:
    """The whole batches of an epoch, one below the other; the same on every rank."""
    random, dtype = np.random.default_rng(7), keras.config.floatx()
    x = random.normal(size=(steps * rows * n, 5))
    return x.astype(dtype), np.stack([np.sin(x[:, 0]) + x[:, 1], x[:, 2] * x[:, 3]], 1).astype(dtype)


def part(whole: Any, rank: int | None = None) -> Any:
    """A rank's rows of each batch."""
    return whole[hvd.rank() if rank is None else rank :: hvd.size()]


def twins(make: Callable[[], Any] = net) -> tuple[Any, Any]:
    """(this rank's model, the serial one): each rank's begins with its own seed, the serial one with rank 0's."""
    keras.utils.set_random_seed(1000 + hvd.rank())
    model = make()
    keras.utils.clear_session(free_memory=False)
    serial = make()
    serial.set_weights(hvd.broadcast_object(model.get_weights()))
    return model, serial


def assert_same_everywhere(model: Any, but: Sequence[Any] = ()) -> None:
    """Weights and optimizer state are equal on all ranks, to the last bit."""
    kept = [each for each in state_of(model) if id(each) not in {id(other) for other in but}]
    mine = values_of(kept)
    for other in hvd.allgather_object(mine):
        for variable, a, b in zip(kept, mine, other, strict=True):
            np.testing.assert_array_equal(a, b, err_msg=variable.path)


def difference(one: Any, other: Any) -> float:
    """The largest one between weights and optimizer states, all but the learning rates."""
    mine, its = ([each for each in state_of(model) if each.name != "learning_rate"] for model in (one, other))
    pairs = zip(values_of(mine), values_of(its), strict=True)
    return max(float(np.abs(np.asarray(a, "float64") - np.asarray(b, "float64")).max(initial=0.0)) for a, b in pairs)


class SameEverywhere(keras.callbacks.Callback):
    """All ranks are equal after every epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.epochs = 0

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Compare."""
        assert_same_everywhere(self.model)
        self.epochs += 1


class Notes(keras.callbacks.Callback):
    """What the metrics were, epoch by epoch; and the learning rate and the weights, step by step."""

    def __init__(self, weights: bool = False) -> None:
        super().__init__()
        self.epochs: list[dict[str, float]] = []
        self.rates: list[float] = []
        self.weights: list[list[Any]] = []
        self._weights = weights

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """After a step."""
        self.rates.append(float(keras.ops.convert_to_numpy(self.model.optimizer.learning_rate)))
        if self._weights:
            self.weights.append(values_of(state_of(self.model)[: len(self.model.weights)]))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """After an epoch."""
        self.epochs.append(dict(logs or {}))


def begin() -> Any:
    """Gives every rank rank 0's start."""
    return hvd.callbacks.BroadcastGlobalVariablesCallback(0)


def compiled(model: Any, optimizer: Any, **options: Any) -> Any:
    """For ``fit``; TensorFlow without XLA, whose compiler takes seconds."""
    options = {"loss": "mse", "metrics": ["mae"], **options}
    if BACKEND == "tensorflow":
        options.setdefault("jit_compile", False)
    model.compile(optimizer, **options)
    return model


def fitted(model: Any, x: Any, y: Any, rows: int, epochs: int = 2, callbacks: Sequence[Any] = ()) -> None:
    """Fit in the order of the rows."""
    model.fit(x, y, batch_size=rows, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks))


def train(
    n: int,
    optimizer: Callable[[], Any] = OPTIMIZERS["SGD"],
    make: Callable[[], Any] = net,
    dtype: str = "float64",
    epochs: int = 2,
    reference: Callable[[], Any] | None = None,
    serial_rows: int = ROWS,
    compile_options: dict[str, Any] | None = None,
    tolerance: float | None = None,
    **options: Any,
) -> tuple[Any, Any]:
    """Fit the distributed model and the serial one, and compare weights and optimizer states; return both.

    Args:
        reference: the serial optimizer, where it is another one.
        serial_rows: per rank, where serial batches are larger.
        options: of DistributedOptimizer.
    """
    with precision(dtype):
        model, serial = twins(make)
        x, y = data(n)
        compiled(model, hvd.DistributedOptimizer(optimizer(), **options), **(compile_options or {}))
        compiled(serial, (reference or optimizer)(), **QUICK | (compile_options or {}))
        equal = SameEverywhere()
        fitted(model, part(x), part(y), ROWS, epochs, [begin(), equal])
        before = serial.get_weights()
        fitted(serial, x, y, serial_rows * n, epochs)
        assert equal.epochs == epochs
        off = difference(model, serial)
        print(f"{BACKEND} {dtype}: off by {off:.2g}")
        assert off <= (tolerance or TOLERANCE[dtype])
        assert max(np.abs(a - b).max() for a, b in zip(before, serial.get_weights(), strict=True)) > 1e-4, "no training"
    return model, serial
