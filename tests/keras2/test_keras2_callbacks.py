"""The callbacks in ``fit`` with Keras 2, its newer and its legacy optimizers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from thorough import diagonal, once_more, quick
from twins2 import ROWS, STEPS, assert_same_everywhere, begin, compiled, data, fitted, net, part

import workbench.keras as hvd
from workbench.keras.backend import state_of, values_of
from workbench.keras.flavour import build, keras, number_or_array

KINDS = {"new": keras.optimizers, "legacy": keras.optimizers.legacy}


class Rates(keras.callbacks.Callback):
    """The learning rate of each step, and what each epoch logged."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[float] = []
        self.epochs: list[dict[str, float]] = []

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """After a step."""
        self.steps.append(float(number_or_array(self.model.optimizer.lr)))

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """After an epoch."""
        self.epochs.append(dict(logs or {}))


def rates_of(n: int, kind: str, callback: Any, epochs: int) -> list[float]:
    """The learning rate of each step."""
    model, (x, y), rates = net(), data(n), Rates()
    compiled(model, hvd.DistributedOptimizer(KINDS[kind].SGD(0.1, momentum=0.9)))
    fitted(model, part(x), part(y), ROWS, epochs, [begin(), callback, rates])
    assert [each["lr"] for each in rates.epochs] == rates.steps[STEPS - 1 :: STEPS]
    return rates.steps


@pytest.mark.thorough
@pytest.mark.parametrize("kind", quick(KINDS, "new"))
def test_warmup(kind: str, n: int, capfd: pytest.CaptureFixture[str], rank: int) -> None:
    """From the rate of one rank to that of all, step by step over two epochs; then rank 0 says so, and it stays."""
    callback = hvd.callbacks.LearningRateWarmupCallback(initial_lr=0.1 * n, warmup_epochs=2, verbose=1)
    epochs = [min((step + 1) / STEPS, 2.0) for step in range(3 * STEPS)]
    wanted = [0.1 * (1 + epoch * (n - 1) / 2) for epoch in epochs]
    assert rates_of(n, kind, callback, 3) == pytest.approx(wanted, rel=1e-6)
    assert capfd.readouterr().out.count("Epoch 2: finished gradual learning rate warmup to") == (rank == 0)


@pytest.mark.parametrize(("kind", "built"), diagonal(KINDS, [False, True]))
def test_broadcast_gives_the_start(kind: str, built: bool, n: int, rank: int) -> None:
    """The root's weights and optimizer state reach every rank; local variables stay, if they are there.

    A schedule beside it does not need the weights.
    """
    keras.utils.set_random_seed(rank)
    shape = {"input_shape": (5,)} if built else {}
    model = keras.Sequential([keras.layers.Dense(3, **shape), keras.layers.Dense(2)])
    compiled(model, hvd.DistributedOptimizer(KINDS[kind].Adam(0.0)))
    x, y = data(n)
    local = [model.layers[1].bias] if built else []
    if built:
        local[0].assign([rank + 1.0] * 2)
        build(model.optimizer, model.trainable_variables)
        for each in state_of(model)[len(model.weights) :]:
            if each.shape.rank:
                each.assign_add(each * 0 + rank + 1)
    start = hvd.callbacks.BroadcastGlobalVariablesCallback(n - 1, local_variables=local)
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.0, warmup_epochs=1)
    fitted(model, part(x), part(y), ROWS, 1, [start, warmup])
    if not built:
        assert_same_everywhere(model)
        return
    assert local[0].numpy().tolist() == [rank + 1.0] * 2
    state = state_of(model)
    for each, mine, other in zip(state, values_of(state), hvd.broadcast_object(values_of(state)), strict=True):
        assert each is local[0] or mine.tolist() == other.tolist(), each.name


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("new", "best.keras"),
        once_more("legacy", "best.h5"),
        once_more("new", "best.weights.h5"),
        once_more("new", "best.h5"),
        once_more("legacy", "best.weights.h5"),
    ],
)
def test_best_model_checkpoint(kind: str, name: str, rank: int, n: int, tmp_path: Path) -> None:
    """The best epoch's model is in the file, with Keras' own optimizer; rank 0 writes it, and no other rank.

    Keras 2 does not save its legacy optimizers in the format .keras.
    """

    class Told(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            logs["val_accuracy"] = [0.5, 0.9, 0.7][epoch]
            if epoch == 1:
                best.extend(model.get_weights())

    best: list[Any] = []
    path, weights_only = tmp_path / name, "weights" in name
    checkpoint = hvd.callbacks.BestModelCheckpoint(
        monitor="val_accuracy", mode="max", save_weights_only=weights_only, filepath=str(path)
    )
    model, (x, y) = net(), data(n)
    compiled(model, hvd.DistributedOptimizer(KINDS[kind].Adam(0.01)))
    fitted(model, part(x), part(y), ROWS, 3, [begin(), Told(), checkpoint])
    assert path.exists() == (rank == 0)
    if rank == 0:
        loaded = net() if weights_only else keras.models.load_model(path)
        if weights_only:
            loaded.load_weights(path)
        else:
            assert type(loaded.optimizer) is KINDS[kind].Adam
            assert int(loaded.optimizer.iterations) == 2 * STEPS
        for mine, wanted in zip(loaded.get_weights(), best, strict=True):
            np.testing.assert_array_equal(mine, wanted)
