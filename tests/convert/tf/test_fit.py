"""Scripts whose training is Keras' ``fit``, however they import Keras and however often they train."""

from __future__ import annotations

import pytest

pytest.importorskip("libcst")

from workbench.convert.conversion import convert

KERAS = """\
import numpy as np
from keras.layers import Dense
from keras.models import Sequential
x, y = np.ones((8, 2)), np.ones(8)
model = Sequential([Dense(1)])
model.compile(optimizer="sgd", loss="mse")
model.fit(x, y, batch_size=4)
"""


def test_names_of_keras_without_its_module() -> None:
    """The new lines import what they need."""
    new = convert("train.py", KERAS)
    assert not new.edits.undecided
    assert "import keras\n" in new.after
    assert 'hvd.DistributedOptimizer(keras.optimizers.get("sgd"))' in new.after


def test_a_model_that_is_trained_twice() -> None:
    """Each ``compile()`` gets its optimizer, and each ``fit()`` its share and its local batch; its callback stays."""
    again = KERAS[KERAS.index("model.compile") :].replace("sgd", "adam").replace("=4", "=8, callbacks=Stop('loss')")
    new = convert("train.py", "from keras.callbacks import EarlyStopping as Stop\n" + KERAS + again)
    assert not new.edits.undecided
    assert new.after.count("hvd.DistributedOptimizer(") == 2
    assert "local_batch = 4 // hvd.size()" in new.after
    assert "local_batch_ = 8 // hvd.size()" in new.after
    assert "callbacks=[*hvd_callbacks_, Stop('loss')]" in new.after
