"""The callbacks, in ``fit`` on several ranks, on each backend of Keras."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras_twins import (
    OPTIMIZERS,
    QUICK,
    ROWS,
    STEPS,
    Notes,
    assert_same_everywhere,
    begin,
    compiled,
    data,
    dense,
    fitted,
    net,
    part,
    precision,
    twins,
)
from thorough import once_more

import workbench.keras as hvd
from workbench.errors import MismatchError
from workbench.keras.backend import state_of, values_of


def rates_of(n: int, callback: Any, epochs: int) -> list[float]:
    """The learning rate of each step."""
    model, (x, y), notes = net(), data(n), Notes()
    compiled(model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.9)), **QUICK)
    fitted(model, part(x), part(y), ROWS, epochs, [begin(), callback, notes])
    assert [each["lr"] for each in notes.epochs] == notes.rates[STEPS - 1 :: STEPS]
    return notes.rates


def test_warmup(n: int, capfd: pytest.CaptureFixture[str], rank: int) -> None:
    """lr(epoch) = initial_lr / size · (1 + epoch · (size - 1) / warmup_epochs), in full after these, then kept."""
    callback = hvd.callbacks.LearningRateWarmupCallback(0.1 * n, warmup_epochs=2, verbose=1)
    epochs = [min((step + 1) / STEPS, 2.0) for step in range(3 * STEPS)]
    wanted = [0.1 * (1 + epoch * (n - 1) / 2) for epoch in epochs]
    assert rates_of(n, callback, 3) == pytest.approx(wanted, rel=1e-6)
    assert wanted[-1] == pytest.approx(0.1 * n)
    assert capfd.readouterr().out.count("Epoch 2: finished gradual learning rate warmup to") == (rank == 0)


@pytest.mark.usually("torch", "tensorflow")
def test_schedules(n: int) -> None:
    """From start_epoch on and before end_epoch: in stairs, or times a number; else it stays. A warmup goes by steps."""
    schedule = hvd.callbacks.LearningRateScheduleCallback
    stairs = schedule(0.1, lambda epoch: 0.5**epoch, start_epoch=1, end_epoch=3)
    assert rates_of(n, stairs, 4) == pytest.approx([0.1] * 4 + [0.05] * 4 + [0.025] * 8, rel=1e-6)
    assert rates_of(n, schedule(0.1, 0.1, start_epoch=1), 2) == pytest.approx([0.1] * 4 + [0.01] * 4, rel=1e-6)


@pytest.mark.parametrize(
    ("staircase", "correct"),
    [
        (True, True),
        *(pytest.param(*each, marks=pytest.mark.usually("torch")) for each in [(True, False), (False, True)]),
        pytest.param(False, False, marks=pytest.mark.usually("torch")),
    ],
)
def test_momentum_correction(correct: bool, staircase: bool, n: int) -> None:
    """Where the rate goes from a to b, the velocity is multiplied by b / a; the oracle is the loop written out.

    0.875, because Keras on TensorFlow rounds the momentum to float32.
    """

    def rate(epoch: float) -> float:
        return 0.1 / (1 + 3 * epoch)

    with precision("float64"):
        inputs = keras.Input((5,))
        model = keras.Model(inputs, dense(2, name="only")(inputs))
        model.set_weights(hvd.broadcast_object(model.get_weights()))
        weight, bias = (each.copy() for each in model.get_weights())
        x, y = data(n)
        compiled(model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.1, momentum=0.875)), **QUICK)
        callback = hvd.callbacks.LearningRateScheduleCallback(
            1.0, rate, staircase=staircase, momentum_correction=correct
        )
        fitted(model, part(x), part(y), ROWS, 3, [callback])

        velocity, before = [np.zeros_like(weight), np.zeros_like(bias)], 0.1
        for step in range(3 * STEPS):
            at = step % STEPS * ROWS * n
            rows, wanted = x[at : at + ROWS * n], y[at : at + ROWS * n]
            now = rate(step // STEPS if staircase else step / STEPS)
            off = 2 * (rows @ weight + bias - wanted) / wanted.size
            factor = now / before if correct else 1.0
            velocity = [0.875 * v * factor - now * g for v, g in zip(velocity, (rows.T @ off, off.sum(0)), strict=True)]
            weight, bias, before = weight + velocity[0], bias + velocity[1], now
        np.testing.assert_allclose(model.get_weights()[0], weight, rtol=0, atol=1e-10)
        np.testing.assert_allclose(model.get_weights()[1], bias, rtol=0, atol=1e-10)


class Told(keras.callbacks.Callback):
    """Says what the validation came to, and keeps the weights of each epoch."""

    def __init__(self, name: str, *values: float) -> None:
        super().__init__()
        self.name, self.values, self.weights = name, values, []

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """At the end of an epoch."""
        logs[self.name] = self.values[epoch]
        self.weights.append(values_of(state_of(self.model)[: len(self.model.weights)]))


@pytest.mark.parametrize("weights_only", [False, pytest.param(True, marks=pytest.mark.usually("torch"))])
def test_best_model_checkpoint(weights_only: bool, n: int, rank: int, tmp_path: Path) -> None:
    """The best epoch's weights are in the file, which rank 0 writes, and no other rank."""
    path = tmp_path / ("best.weights.h5" if weights_only else "best.keras")
    checkpoint = hvd.callbacks.BestModelCheckpoint(
        monitor="val_accuracy", mode="max", save_weights_only=weights_only, filepath=str(path)
    )
    model, (x, y), told = net(), data(n), Told("val_accuracy", 0.5, 0.9, 0.7)
    compiled(model, hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), **QUICK)
    fitted(model, part(x), part(y), ROWS, 3, [begin(), told, checkpoint])
    assert path.exists() == (rank == 0)
    if rank == 0:
        if weights_only:
            loaded = net()
            loaded.load_weights(path)
        else:
            loaded = keras.models.load_model(path)
            assert type(loaded.optimizer) is type(keras.optimizers.Adam())
            assert int(loaded.optimizer.iterations.value) == 2 * STEPS
        for mine, wanted in zip(loaded.get_weights(), told.weights[1], strict=True):
            np.testing.assert_array_equal(mine, wanted)
    assert any((a != b).any() for a, b in zip(told.weights[1], model.get_weights(), strict=True))


@pytest.mark.ranks(2)
def test_broadcast_gives_the_start_but_for_local_variables(n: int, rank: int) -> None:
    """The root's weights and optimizer state, of a training before too, reach every rank; local variables stay."""
    keras.utils.set_random_seed(rank)
    model, (x, y) = net(), data(n)
    local = model.get_layer("frozen")
    compiled(model, keras.optimizers.Adam(0.01), **QUICK)
    fitted(model, part(x), part(y), ROWS, 1)  # each by itself
    root = n - 1
    before, own = hvd.broadcast_object(values_of(state_of(model)), root), local.get_weights()
    compiled(model, hvd.DistributedOptimizer(model.optimizer), **QUICK)

    class Start(keras.callbacks.Callback):
        def on_train_begin(self, logs: Any = None) -> None:
            kept = {id(each) for each in local.weights}
            for variable, wanted in zip(state_of(self.model), before, strict=True):
                if id(variable) not in kept:
                    np.testing.assert_array_equal(values_of([variable])[0], wanted, variable.path)

    callback = hvd.callbacks.BroadcastGlobalVariablesCallback(root, local_variables=local.weights[:1])
    callback.register_local_var(local.weights[1])
    fitted(model, part(x), part(y), ROWS, 1, [callback, Start()])
    np.testing.assert_array_equal(local.get_weights()[0], own[0])
    kernels = hvd.allgather_object(own[0])
    assert (kernels[0] != kernels[root]).any()


def test_broadcast_of_a_model_that_is_built_by_its_first_batch(n: int) -> None:
    """A model without an input shape is rank 0's on all ranks after the first step, at the latest, and stays so."""
    keras.utils.set_random_seed(1000 + hvd.rank())
    x, y = data(n)
    model = keras.Sequential([dense(4, activation="tanh", name="first"), dense(2, name="head")])
    compiled(model, hvd.DistributedOptimizer(OPTIMIZERS["Adam"]()), **QUICK)

    class SameAfterEachStep(keras.callbacks.Callback):
        steps = 0

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            assert_same_everywhere(self.model)
            self.steps += 1

    same = SameAfterEachStep()
    fitted(model, part(x), part(y), ROWS, 1, [begin(), same])
    assert same.steps == STEPS


@pytest.mark.usually("torch", "tensorflow")
@pytest.mark.parametrize("first", [once_more(True), once_more(False)])
def test_ranks_with_other_validation_sets_stop_together(first: bool, n: int, rank: int, tmp_path: Path) -> None:
    """At the epoch, with the rate and with the best weights that the mean says, even if the mean is listed last."""
    (model, _), (x, y) = twins(), data(n)
    compiled(model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), **QUICK)
    mine = [0.9, 0.6, 0.5, 0.4, 0.3] if rank == 0 else [0.3, 0.35, 0.9, 1.4, 1.5]
    whole = np.mean(hvd.allgather_object(mine), 0)
    best = int(whole.argmin())
    assert best != np.argmin(mine)
    path = str(tmp_path / "{epoch}.keras")
    others = [
        keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1),
        keras.callbacks.EarlyStopping("val_loss", patience=2, restore_best_weights=True),
        *([keras.callbacks.ModelCheckpoint(path, save_best_only=True)] if rank == 0 else []),
    ]
    told, notes, mean = Told("val_loss", *mine), Notes(), hvd.callbacks.MetricAverageCallback()
    order = [mean, *others] if first else [*others, mean]
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        fitted(model, part(x), part(y), ROWS, 5, [begin(), told, *order, notes])
    behind = [each for each in said if "is behind ReduceLROnPlateau" in str(each.message)]
    assert len(behind) == (not first and rank == 0)
    assert [each["val_loss"] for each in notes.epochs] == pytest.approx(whole[: best + 3])
    assert notes.rates[-1] == pytest.approx(0.05 / 2)
    for now, wanted in zip(model.get_weights(), told.weights[best], strict=True):
        np.testing.assert_array_equal(now, wanted)
    assert_same_everywhere(model)
    written = [f"{epoch + 1}.keras" for epoch in range(best + 1)] if rank == 0 else []
    assert sorted(each.name for each in tmp_path.iterdir()) == written


@pytest.mark.usually("torch", "tensorflow", "jax")
def test_learning_rates_that_differ_are_an_error(n: int, rank: int) -> None:
    """ReduceLROnPlateau that decides by each rank's own metrics: at once, on all ranks, with each rank's rate."""
    if n == 1:
        return
    model, (x, y), notes = net(), data(n), Notes()
    compiled(model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.5)), **QUICK)
    mine = Told("val_loss", *([0.3] * 5 if rank == 0 else [0.5, 0.4, 0.3, 0.2, 0.1]))
    plateau = keras.callbacks.ReduceLROnPlateau("val_loss", factor=0.5, patience=1)
    with pytest.raises(MismatchError, match=r"before epoch 3 \(rank 0: 0.25; rank 1: 0.5[;)].*MetricAverageCallback"):
        fitted(model, part(x), part(y), ROWS, 5, [begin(), mine, plateau, notes])
    assert len(notes.epochs) == 2


@pytest.mark.usually("torch", "tensorflow")
def test_one_rank_stops_all(n: int, rank: int) -> None:
    """A callback that ends the training on one rank, for a reason of its own, ends it on all after that epoch."""

    class Stops(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.model.stop_training = epoch == 1 and rank == n - 1

    model, (x, y), notes = net(), data(n), Notes()
    compiled(model, hvd.DistributedOptimizer(keras.optimizers.SGD(0.05)), **QUICK)
    fitted(model, part(x), part(y), ROWS, 5, [begin(), Stops(), hvd.callbacks.MetricAverageCallback(), notes])
    assert len(notes.epochs) == 2
    assert_same_everywhere(model)


@pytest.mark.usually("torch", "tensorflow")
def test_a_training_goes_on_from_its_backup(n: int, rank: int, tmp_path: Path) -> None:
    """Broken off amid the second epoch and begun again, it ends with the weights of one that went through."""

    class Breaks(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            if (self.model.optimizer.iterations + 0) == STEPS + 2:
                raise InterruptedError

    whole, (x, y) = twins()[0], data(n)
    start = hvd.broadcast_object(whole.get_weights())

    def train(*more: Any) -> tuple[Any, Notes]:
        model, notes = net(), Notes()
        model.set_weights(start if more == () or rank == 0 else [each + 1 for each in start])
        compiled(model, hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), **QUICK)
        fitted(model, part(x), part(y), ROWS, 3, [begin(), *more, notes])
        return model, notes

    folder = tmp_path / "backup"
    with pytest.raises(InterruptedError):
        train(hvd.callbacks.BackupAndRestore(folder, double_checkpoint=True), Breaks())
    assert folder.exists() == (rank == 0)
    again, notes = train(hvd.callbacks.BackupAndRestore(folder, double_checkpoint=True))
    assert len(notes.epochs) == 2
    assert not folder.exists()
    assert_same_everywhere(again)
    for now, wanted in zip(again.get_weights(), train()[0].get_weights(), strict=True):
        np.testing.assert_array_equal(now, wanted)
