"""mixed_float16: a rank with an inf does not leave the others alone, because all skip that step together."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
from keras_twins import ROWS, STEPS, assert_same_everywhere, begin, compiled, data, fitted, part, twins

import workbench.keras as hvd
from workbench.keras.backend import state_of, values_of


def mixed() -> Any:
    """A model in mixed precision."""
    inputs = keras.Input((5,))
    x = keras.layers.Dense(8, activation="tanh", dtype="mixed_float16", name="first")(inputs)
    return keras.Model(inputs, keras.layers.Dense(2, dtype="float32", name="head")(x))


def scaled() -> Any:
    """An optimizer with a loss scale that only an inf changes."""
    return keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.05, momentum=0.9), initial_scale=2.0**10, dynamic_growth_steps=1000
    )


@pytest.fixture
def mixed_precision() -> None:
    """As a user sets it; the fixture ``fresh`` takes it back."""
    keras.config.set_dtype_policy("mixed_float16")


class Steps(keras.callbacks.Callback):
    """Weights and loss scale after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.weights: list[list[Any]] = []
        self.scales: list[float] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """After a step."""
        self.weights.append(values_of(state_of(self.model)[: len(self.model.weights)]))
        self.scales.append(float(values_of([self.model.optimizer.dynamic_scale])[0]))


@pytest.mark.ranks(2)
def test_an_inf_on_one_rank_is_skipped_by_all(mixed_precision: None, n: int, rank: int) -> None:
    """The step that one rank cannot make nobody makes; the loss scale halves on all; then all go on as equals."""
    model, _ = twins(mixed)
    x, y = data(n)
    x, y, steps = part(x).copy(), part(y), Steps()
    if rank == n - 1:
        y[ROWS + 3] = np.inf  # in the second step
    optimizer = hvd.DistributedOptimizer(scaled())
    compiled(model, optimizer, metrics=[])
    assert model.optimizer is optimizer, "compile() has put nothing around it"
    fitted(model, x, y, ROWS, 1, [begin(), steps])
    assert steps.scales == [1024.0, 512.0, 512.0, 512.0]
    for a, b in zip(steps.weights[0], steps.weights[1], strict=True):
        np.testing.assert_array_equal(a, b)
    assert all((a != b).any() for a, b in zip(steps.weights[1], steps.weights[2], strict=True))
    assert all(np.isfinite(each).all() for each in steps.weights[-1])
    assert int(values_of([model.optimizer.inner_optimizer.iterations])[0]) == STEPS - 1
    assert_same_everywhere(model)


@pytest.mark.thorough
@pytest.mark.usually("torch", "tensorflow")
def test_mixed_precision_trains_as_the_serial_run(mixed_precision: None, n: int) -> None:
    """DistributedOptimizer(LossScaleOptimizer(…)) compiles, is a LossScaleOptimizer, and ends at the serial weights."""
    model, serial = twins(mixed)
    x, y = data(n)
    optimizer = hvd.DistributedOptimizer(scaled())
    assert isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    compiled(model, optimizer)
    assert model.optimizer is optimizer, "compile() has put nothing around it"
    fitted(model, part(x), part(y), ROWS, 3, [begin()])
    fitted(compiled(serial, scaled()), x, y, ROWS * n, 3)
    for mine, wanted in zip(model.get_weights(), serial.get_weights(), strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=0, atol=5e-3)  # float16 has 11 bits
    assert_same_everywhere(model)


def test_the_loss_scale_outside_is_refused(mixed_precision: None) -> None:
    """compile() would put LossScaleOptimizer around ours: a ValueError on every rank says what to write instead."""
    model = mixed()
    with pytest.raises(ValueError, match=r"hvd\.DistributedOptimizer\(keras\.optimizers\.LossScaleOptimizer\("):
        model.compile(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), "mse")
    with pytest.raises(ValueError, match="must be inside of DistributedOptimizer"):
        keras.optimizers.LossScaleOptimizer(hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)))
