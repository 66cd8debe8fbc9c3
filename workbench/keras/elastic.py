"""Elastic training with Keras: ``hvd.elastic.run``, ``KerasState``, and callbacks that commit and count.

::

    state = hvd.elastic.KerasState(model, batch=0, epoch=0)

    @hvd.elastic.run
    def train(state):
        model.fit(data, epochs=epochs - state.epoch, callbacks=[
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.CommitStateCallback(state, batches_per_commit=50)])

The loop, and which error leads where, is in :mod:`workbench.elastic`.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

from workbench import elastic as core
from workbench.elastic import HostsUpdatedInterrupt, ObjectState
from workbench.job import api
from workbench.job.objects import broadcast_state
from workbench.keras.backend import broadcast_variables, own_errors, state_of
from workbench.keras.flavour import assign, build, keras, values_of

Logs = dict[str, Any] | None


def _restart() -> None:
    """A new job, without what a ``fit`` that failed has left."""
    gc.collect()  # the longer TensorFlow has such an iterator, the longer it takes to end it: up to a minute
    core.restart()


run = core.framework_run(own_errors, _restart)


class KerasState(ObjectState):
    """A model, its optimizer, and plain objects beside them.

    Args:
        model: built.
        optimizer: the model's own by default.
        kwargs: names and values of what else survives, such as ``batch=0, epoch=0``.
    """

    def __init__(self, model: Any, optimizer: Any = None, backend: Any = None, **kwargs: Any) -> None:
        self.model, self.optimizer = model, optimizer if optimizer is not None else getattr(model, "optimizer", None)
        if self.optimizer is not None and model.built:
            build(self.optimizer, model.trainable_variables)
        super().__init__(broadcast_state, api.rank, **kwargs)
        self.save()

    def save(self) -> None:
        """Keep a copy of the weights, the optimizer's variables, and the rest."""
        self._kept = values_of(state_of(self.model, self.optimizer))
        super().save()

    def restore(self) -> None:
        assign(state_of(self.model, self.optimizer), self._kept)
        super().restore()

    def sync(self) -> None:
        """Rank 0's weights, variables and objects on every rank, and saved."""
        self._resume()
        broadcast_variables(state_of(self.model, self.optimizer), 0)
        super().sync()

    def _copies(self) -> dict[str, Any]:
        return {"model": self._kept, **super()._copies()}

    def _take(self, values: dict[str, Any]) -> None:
        self._kept = values["model"]
        super()._take(values)

    def _of_fixed_shape(self) -> Sequence[str]:
        return ("model",)


class CommitStateCallback(keras.callbacks.Callback):  # type: ignore[misc]  # untyped
    """Commits the state every so many batches, and at the end of each epoch.

    Args:
        state: the state.
        batches_per_commit: how many.
    """

    def __init__(self, state: Any, batches_per_commit: int = 1) -> None:
        super().__init__()
        self._state, self._every, self._left = state, batches_per_commit, batches_per_commit

    def on_train_begin(self, logs: Logs = None) -> None:
        self._left = self._every

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._left -= 1
        if self._left == 0:
            self._left = self._every
            self._state.commit()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):  # type: ignore[misc]  # untyped
    """Notes in ``state.batch`` which batch of the epoch was the last.

    ``fit`` cannot leave out the batches that were done before a reset: give it the rest of the epoch's data, or let it
    do the epoch again.

    Args:
        state: has ``batch``.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state = state

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._state.batch = batch

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """The next epoch begins with none."""
        self._state.batch = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):  # type: ignore[misc]  # untyped
    """Counts epochs in ``state.epoch``, over resets too.

    Args:
        state: has ``epoch``.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state, self._before = state, 0

    def on_train_begin(self, logs: Logs = None) -> None:
        """``fit`` counts from 0 after a reset."""
        self._before = self._state.epoch

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self._state.epoch = self._before + epoch + 1


__all__ = [
    "CommitStateCallback",
    "HostsUpdatedInterrupt",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]
