"""One Keras 2 model trained by all ranks, and its serial twin, which every rank trains on the whole batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import workbench.keras as hvd
from workbench.keras.backend import state_of, values_of
from workbench.keras.flavour import keras

ROWS, STEPS = 8, 4  # rows of a rank in a step, steps of an epoch

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "SGD": lambda: keras.optimizers.SGD(0.05, momentum=0.9),
    "Adam": lambda: keras.optimizers.Adam(0.01),
    "legacy SGD": lambda: keras.optimizers.legacy.SGD(0.05, momentum=0.9),
    "legacy Adam": lambda: keras.optimizers.legacy.Adam(0.01),
}


def net() -> Any:
    """A layer that is used twice, and one that is frozen."""
    twice, frozen = keras.layers.Dense(5, "tanh", name="twice"), keras.layers.Dense(5, name="frozen")
    frozen.trainable = False
    x = inputs = keras.Input((5,))
    for layer in (twice, twice, frozen):
        x = layer(x)
    return keras.Model(inputs, keras.layers.Dense(2, name="head")(x))


def data(n: int) -> tuple[Any, Any]:
    """The whole batches of an epoch, one below the other; the same on every rank."""
    random, dtype = np.random.default_rng(7), keras.backend.floatx()
    x = random.normal(size=(STEPS * ROWS * n, 5))
    return x.astype(dtype), np.stack([np.sin(x[:, 0]) + x[:, 1], x[:, 2] * x[:, 3]], 1).astype(dtype)


def in_float64() -> None:
    """Models made from now on compute in float64; the fixture ends it."""
    keras.backend.set_floatx("float64")
    keras.mixed_precision.set_global_policy("float64")


def part(whole: Any) -> Any:
    """This rank's rows of each batch."""
    return whole[hvd.rank() :: hvd.size()]


def twins(make: Callable[[], Any] = net) -> tuple[Any, Any]:
    """(this rank's model, the serial one): each rank's begins with its own seed, the serial one with rank 0's."""
    keras.utils.set_random_seed(1000 + hvd.rank())
    model, serial = make(), make()
    serial.set_weights(hvd.broadcast_object(model.get_weights()))
    return model, serial


def compiled(model: Any, optimizer: Any, **options: Any) -> Any:
    """As Horovod's examples compile."""
    model.compile(
        **{"loss": "mse", "metrics": ["mae"], **options}, optimizer=optimizer, experimental_run_tf_function=False
    )
    return model


def fitted(model: Any, x: Any, y: Any, rows: int, epochs: int = 2, callbacks: Sequence[Any] = ()) -> Any:
    """Fit in the order of the rows."""
    return model.fit(x, y, batch_size=rows, epochs=epochs, shuffle=False, verbose=0, callbacks=list(callbacks))


def begin() -> Any:
    """Gives every rank rank 0's start."""
    return hvd.callbacks.BroadcastGlobalVariablesCallback(0)


def kept(model: Any) -> list[Any]:
    """Weights and optimizer state, without learning rates and counters."""
    names = ("learning_rate", "iteration", "iter", "decay", "momentum", "beta_1", "beta_2")
    return [each for each in state_of(model) if each.name.partition(":")[0].rpartition("/")[2] not in names]


def difference(one: Any, other: Any) -> float:
    """The largest one between weights and optimizer states."""
    pairs = list(zip(values_of(kept(one)), values_of(kept(other)), strict=True))
    return max(float(np.abs(a.astype("float64") - b.astype("float64")).max(initial=0.0)) for a, b in pairs)


def assert_same_everywhere(model: Any) -> None:
    """Weights and optimizer state are equal on all ranks, to the last bit."""
    mine = values_of(state_of(model))
    for other in hvd.allgather_object(mine):
        for a, b in zip(mine, other, strict=True):
            np.testing.assert_array_equal(a, b)


def train(
    n: int, optimizer: Callable[[], Any], make: Callable[[], Any] = net, serial_rows: int = ROWS, **options: Any
) -> tuple[Any, Any]:
    """Fit the distributed model and the serial one in float64, and compare weights and optimizer states."""
    in_float64()
    model, serial = twins(make)
    x, y = data(n)
    fitted(compiled(model, hvd.DistributedOptimizer(optimizer(), **options)), part(x), part(y), ROWS, 2, [begin()])
    before = serial.get_weights()
    fitted(compiled(serial, optimizer()), x, y, serial_rows * n)
    assert_same_everywhere(model)
    assert difference(model, serial) < 1e-10
    assert max(np.abs(a - b).max() for a, b in zip(before, serial.get_weights(), strict=True)) > 1e-4, "no training"
    return model, serial
