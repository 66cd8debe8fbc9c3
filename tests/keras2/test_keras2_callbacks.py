"""The callbacks in ``fit`` with Keras 2, its newer and its legacy optimizers."""

from __future__ import annotations

import pytest
from thorough import diagonal
from twins2 import ROWS, assert_same_everywhere, compiled, data, fitted, part

import workbench.keras as hvd
from workbench.keras.backend import state_of, values_of
from workbench.keras.flavour import build, keras

KINDS = {"new": keras.optimizers, "legacy": keras.optimizers.legacy}


@pytest.mark.parametrize(("kind", "built"), diagonal(KINDS, [False, True], most=1))
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
