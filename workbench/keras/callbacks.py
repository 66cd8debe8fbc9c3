"""Callbacks for ``fit`` on several ranks, on every backend of Keras.

Their order in ``callbacks=[…]`` matters where one reads what another has written: MetricAverageCallback comes before
ReduceLROnPlateau, EarlyStopping, ModelCheckpoint, TensorBoard and all that decides by a metric. Behind one of the first
two it would let ranks decide by numbers of their own; there it takes the place before it, and says so.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from workbench.job import api
from workbench.job.objects import broadcast_object
from workbench.keras.backend import bring_back, broadcast_variables, state_of
from workbench.keras.flavour import LEGACY, build, keras, multiply, number_or_array, velocities_of
from workbench.training.progress import compare_learning_rates

Logs = dict[str, Any] | None


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):  # type: ignore[misc]  # untyped
    """Gives every rank the root's weights and optimizer state before the first step; after it, if they come later.

    Before each epoch it makes sure that the ranks' learning rates are still equal.

    Args:
        root_rank: who has the right values.
        device: ignored; accepted for Horovod compatibility.
        local_variables: variables that stay as they are on each rank.
    """

    def __init__(self, root_rank: int = 0, device: str = "", local_variables: Iterable[Any] | None = None) -> None:
        super().__init__()
        self._root_rank, self._done = root_rank, False
        self._local = {id(each) for each in local_variables or ()}

    def register_local_var(self, var: Any) -> None:
        """This variable stays as it is on each rank."""
        self._local.add(id(var))

    def on_train_begin(self, logs: Logs = None) -> None:
        """Broadcast, if the weights are there."""
        if self.model.built:
            build(self.model.optimizer, self.model.trainable_variables)
            self._broadcast()

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Compare the learning rates.

        Raises:
            MismatchError: they differ; on every rank.
        """
        rate = getattr(self.model.optimizer, "learning_rate", None)
        if rate is None or callable(rate):  # in Keras 2 a schedule, which knows steps only
            return
        bring_back(self.model)
        compare_learning_rates(
            [float(number_or_array(rate))],
            f"before epoch {epoch + 1}",
            "If ReduceLROnPlateau or another callback decides by metrics, list hvd.callbacks.MetricAverageCallback() "
            "before it.",
        )

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        """Broadcast after the first step, if the weights did not exist before it."""
        if not self._done:
            self._broadcast()

    def _broadcast(self) -> None:
        broadcast_variables([each for each in state_of(self.model) if id(each) not in self._local], self._root_rank)
        self._done = True


class MetricAverageCallback(keras.callbacks.Callback):  # type: ignore[misc]  # untyped
    """Averages the metrics of an epoch over the ranks, in place: all ranks log, and decide by, the same.

    If a callback before it has ended the training on one rank, it ends on all, after the same epoch.

    Args:
        device: ignored; accepted for Horovod compatibility.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()

    def set_model(self, model: Any) -> None:
        """Called by Keras' list of callbacks, before any of them begins."""
        super().set_model(model)
        listed = sys._getframe(1).f_locals.get("self")  # nothing else leads from a callback to its list
        self._come_first(getattr(listed, "callbacks", None) or [])

    def _come_first(self, callbacks: list[Any]) -> None:
        """Before each callback of Keras whose decision has to be the same on all ranks."""
        deciding = (keras.callbacks.EarlyStopping, keras.callbacks.ReduceLROnPlateau)
        place = next((i for i, each in enumerate(callbacks) if each is self or isinstance(each, deciding)), None)
        if place is None or self not in callbacks[place + 1 :]:
            return
        if api.rank() == 0:
            warnings.warn(
                f"MetricAverageCallback is behind {type(callbacks[place]).__name__}, which would decide by this rank's "
                "own metrics. It is called before it now: list it first.",
                stacklevel=2,
            )
        callbacks.remove(self)
        callbacks.insert(place, self)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """One small allreduce for all numbers, and for whether to stop."""
        names = sorted(name for name, value in (logs or {}).items() if np.isscalar(value) or np.ndim(value) == 0)
        if logs and names:
            mine = [*(float(logs[name]) for name in names), float(getattr(self.model, "stop_training", False))]
            *mean, stopping = api.allreduce(np.array(mine), f"metrics.{','.join(names)}").tolist()
            logs.update(zip(names, mean, strict=True))
            if stopping:
                self.model.stop_training = True


class LearningRateScheduleCallback(keras.callbacks.Callback):  # type: ignore[misc]  # untyped
    """Sets the learning rate to ``initial_lr * multiplier(epoch)``.

    Args:
        initial_lr: the learning rate that is multiplied.
        multiplier: a number, or a function of the epoch, which is fractional unless ``staircase``.
        start_epoch, end_epoch: from which epoch on, and before which.
        staircase: change it at the begin of epochs only.
        momentum_correction: when the learning rate changes, let SGD's velocity, which holds the old one, follow.
        steps_per_epoch: found out by itself where ``fit`` knows it.

    Raises:
        ValueError: the number of steps per epoch is needed and not known.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        if initial_lr is None:
            raise ValueError("Parameter `initial_lr` is required.")
        self._initial, self._begin, self._end = initial_lr, start_epoch, end_epoch
        self._multiplier = multiplier if callable(multiplier) else lambda _: multiplier
        self._staircase = staircase or not callable(multiplier)
        self._correct, self._steps, self._epoch = momentum_correction, steps_per_epoch, 0

    @property
    def steps_per_epoch(self) -> int:
        """Steps per epoch, as given or as ``fit`` has them."""
        params = self.params or {}
        steps = self._steps or params.get("steps")
        if not steps and params.get("samples") and params.get("batch_size"):  # Keras 2 in a graph of TensorFlow 1
            steps = params["samples"] // params["batch_size"]
        if not steps:
            raise ValueError(f"{type(self).__name__} does not know the number of steps: give it steps_per_epoch=.")
        return int(steps)

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        """Set the learning rate where it changes."""
        if self._epoch < self._begin or (self._end is not None and self._epoch >= self._end):
            return
        if not self._staircase:
            self._set(self._initial * self._multiplier(self._epoch + batch / self.steps_per_epoch))
        elif batch == 0:
            self._set(self._initial * self._multiplier(self._epoch))

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if logs is not None:
            logs["lr"] = self._now()

    def _now(self) -> float:
        return float(number_or_array(self.model.optimizer.learning_rate))

    def _set(self, rate: float) -> None:
        bring_back(self.model)
        before, optimizer = self._now(), self.model.optimizer
        optimizer.learning_rate = rate
        if self._correct and before > 0:
            multiply(velocities_of(optimizer), rate / before)


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """From one rank's learning rate to that of all, step by step over the first epochs (Goyal et al. 2017).

    ::

        lr(epoch) = initial_lr / size · (1 + epoch · (size - 1) / warmup_epochs)

    Args:
        initial_lr: scaled by ``size()`` already: where the warm-up leads to.
        warmup_epochs: how long it takes.
        momentum_correction, steps_per_epoch: see :class:`LearningRateScheduleCallback`.
        verbose: say so at the end, on rank 0.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: int = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        self._warmup_epochs, self._verbose = warmup_epochs, verbose

        def multiplier(epoch: float) -> float:
            epoch += 1.0 / self.steps_per_epoch  # so the last step of the warm-up reaches the full rate
            return 1.0 / api.size() * (epoch * (api.size() - 1) / warmup_epochs + 1)

        super().__init__(initial_lr, multiplier, 0, warmup_epochs, False, momentum_correction, steps_per_epoch)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """Log the learning rate, and say when the warm-up is over."""
        super().on_epoch_end(epoch, logs)
        if epoch == self._warmup_epochs - 1 and self._verbose > 0 and api.rank() == 0:
            print(f"\nEpoch {epoch + 1}: finished gradual learning rate warmup to {self._now():g}.")


class BestModelCheckpoint(keras.callbacks.ModelCheckpoint):  # type: ignore[misc]  # untyped
    """``keras.callbacks.ModelCheckpoint(save_best_only=True)`` that writes on rank 0 only.

    Args:
        filepath: ends with ``.keras``, or with ``.weights.h5`` for weights only; it may be set later, too.
        monitor, verbose, save_weights_only, mode, save_freq: as there.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        verbose: int = 0,
        save_weights_only: bool = False,
        mode: str = "auto",
        save_freq: str | int = "epoch",
        filepath: str | None = None,
    ) -> None:
        path = filepath or ("best_model.weights.h5" if save_weights_only else "best_model.keras")
        super().__init__(path, monitor, verbose, True, save_weights_only, mode, save_freq)

    def _save_model(self, *args: Any, **kwargs: Any) -> None:
        if api.rank() == 0:
            super()._save_model(*args, **kwargs)


class BackupAndRestore(keras.callbacks.BackupAndRestore):  # type: ignore[misc]  # untyped
    """Keras 3's callback of this name, for several ranks: a job that is started again goes on where it was.

    Rank 0 writes the backup, and reads it in the next job; then all ranks get its weights, its optimizer's state and
    its epoch. No other rank needs the folder.

    Args:
        backup_dir, args, options: as there.

    Raises:
        NotImplementedError: with Keras 2, whose callback goes another way.
    """

    def __init__(self, backup_dir: str, *args: Any, **options: Any) -> None:
        if LEGACY:
            raise NotImplementedError(
                f"BackupAndRestore needs Keras 3, and this is Keras {keras.__version__}. Save the weights and the "
                "epoch on rank 0, and give fit() initial_epoch=hvd.broadcast_object(epoch)."
            )
        super().__init__(backup_dir, *args, **options)

    def on_train_begin(self, logs: Logs = None) -> None:
        """Restore on rank 0, and hand on."""
        if api.rank() == 0:
            super().on_train_begin(logs)
        self.model._initial_epoch = broadcast_object(self.model._initial_epoch, name="backup.epoch")
        build(self.model.optimizer, self.model.trainable_variables)
        broadcast_variables(state_of(self.model), 0)

    def _save_model(self) -> None:
        if api.rank() == 0:
            super()._save_model()

    def on_train_end(self, logs: Logs = None) -> None:
        """The backup is needed no more."""
        if api.rank() == 0:
            super().on_train_end(logs)


__all__ = [
    "BackupAndRestore",
    "BestModelCheckpoint",
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]
