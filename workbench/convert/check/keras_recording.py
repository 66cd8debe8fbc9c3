"""Hooks into Keras: losses and weights of ``fit``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import keras

from workbench.convert.check.record import SEED, Record


@contextlib.contextmanager
def recording(found: Record, steps: int) -> Iterator[None]:
    """Record what ``fit`` does within it; :class:`Enough` is raised after the last step."""
    keras.utils.set_random_seed(SEED)
    fit = keras.Model.fit

    class Recorder(keras.callbacks.Callback):  # type: ignore[misc]
        """Loss and weights after each batch."""

        def on_train_begin(self, logs: Any = None) -> None:
            self.begin = [each.numpy().astype(float) for each in self.model.trainable_variables]

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            found.losses.append(float((logs or {})["loss"]))
            weights = [each.numpy().astype(float) for each in self.model.trainable_variables]
            found.stepped(steps, weights, self.begin if len(self.begin) == len(weights) else [])

    def recorded(self: Any, *args: Any, **options: Any) -> Any:
        if options.get("shuffle", True):
            found.seen.add("shuffle")
        given = options.get("callbacks") or []  # or one of them by itself
        callbacks = [*(given if isinstance(given, (list, tuple)) else [given]), Recorder()]
        options |= {"shuffle": False, "callbacks": callbacks}
        return fit(self, *args, **options)

    dropout = patch.object(keras.src.backend.random, "dropout", _skip(found, "dropout"))
    with patch.object(keras.Model, "fit", recorded), dropout, _same_order(found), _optimizers(found):
        yield


def _skip(found: Record, what: str) -> Any:
    def skip(first: Any, *_: Any, **__: Any) -> Any:
        found.seen.add(what)
        return first

    return skip


@contextlib.contextmanager
def _same_order(found: Record) -> Iterator[None]:
    """``tf.data`` does not shuffle, and TensorFlow has no dropout."""
    if keras.backend.backend() != "tensorflow":
        yield
        return
    from tensorflow import data, nn

    with (
        patch.object(data.Dataset, "shuffle", _skip(found, "shuffle")),
        patch.object(nn, "dropout", _skip(found, "dropout")),
    ):
        yield


@contextlib.contextmanager
def _optimizers(found: Record) -> Iterator[None]:
    """For loops without ``fit``: the weights and steps of the optimizers that are made within it."""
    made, init = list[Any](), keras.optimizers.Optimizer.__init__

    def kept(self: Any, *args: Any, **options: Any) -> None:
        init(self, *args, **options)
        made.append(self)

    with patch.object(keras.optimizers.Optimizer, "__init__", kept):
        yield
    if not found.steps and made:
        found.steps = max(int(each.iterations.numpy()) for each in made)
        found.weights = [each.numpy().astype(float) for one in made for each in one._trainable_variables]
