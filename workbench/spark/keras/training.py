"""What each rank of a ``KerasEstimator`` does."""

from __future__ import annotations

import json
import posixpath
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np

import workbench.keras as hvd
from workbench.keras.flavour import build, keras, number_or_array
from workbench.spark.common.shards import Share
from workbench.spark.common.spec import Spec
from workbench.spark.keras.files import load_weights, model_of, scale_rate, shaped, weights_bytes


@dataclass(frozen=True)
class Parts:
    """What is the user's and of Keras.

    Args:
        model: see :func:`workbench.spark.keras.files.model_bytes`.
        optimizer: as ``keras.optimizers.serialize`` gives it.
        loss, metrics, callbacks, custom_objects: as Keras has them.
        checkpoint_callback: in place of the weights after each epoch; its ``filepath`` is set.
    """

    model: bytes
    optimizer: Mapping[str, Any]
    loss: Any
    metrics: Any
    callbacks: Sequence[Any]
    custom_objects: Mapping[str, Any]
    checkpoint_callback: Any


def train(spec: Spec, parts: Parts, checkpoint: bytes | None) -> tuple[dict[str, Any], bytes] | None:
    """Train one rank.

    Args:
        spec, parts: what is trained, and how.
        checkpoint: to go on from, if there is one.

    Returns:
        On rank 0 the history, and weights and the optimizer's state at the end.
    """
    hvd.init()
    if spec.random_seed is not None:
        keras.utils.set_random_seed(spec.random_seed + hvd.rank())
    _choose_device(spec.use_gpu)
    model = compiled(parts, spec, distributed=True)
    if checkpoint is not None:
        load_weights(model, checkpoint)
    scale_rate(model.optimizer, hvd.size())
    share, held_out = spec.training(hvd.rank(), hvd.size()), spec.validation(hvd.rank(), hvd.size())
    first = hvd.rank() == 0
    with tempfile.TemporaryDirectory() as folder:
        history = model.fit(
            _fed(share, spec, model),
            steps_per_epoch=share.steps.number,
            epochs=spec.epochs,
            verbose=spec.verbose if first else 0,
            callbacks=_callbacks(spec, parts, model, folder),
            validation_data=_fed(held_out, spec, model) if held_out else None,
            validation_steps=held_out.steps.number if held_out else None,
        )
    scale_rate(model.optimizer, 1 / hvd.size())
    found = {name: [float(each) for each in values] for name, values in history.history.items()}
    return (found, weights_bytes(model)) if first else None


def compiled(parts: Parts, spec: Spec, distributed: bool) -> Any:
    """The model, ready to train, with an optimizer that has been built."""
    model = model_of(parts.model, parts.custom_objects)
    with keras.saving.custom_object_scope(dict(parts.custom_objects)):
        optimizer = keras.optimizers.deserialize(dict(parts.optimizer))
    if distributed:
        more = {} if spec.gradient_compression is None else {"compression": spec.gradient_compression}
        passes = spec.backward_passes_per_step
        optimizer = hvd.DistributedOptimizer(
            optimizer, backward_passes_per_step=passes, average_aggregated_gradients=True, **more
        )
    model.compile(
        optimizer=optimizer,
        loss=parts.loss,
        loss_weights=list(spec.loss_weights) if spec.loss_weights else None,
        metrics=parts.metrics or None,
    )
    build(optimizer, model.trainable_variables)
    return model


def _choose_device(use_gpu: bool) -> None:
    if keras.backend.backend() != "tensorflow":
        return
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices([gpus[hvd.local_rank() % len(gpus)]] if use_gpu else [], "GPU")


def _fed(share: Share, spec: Spec, model: Any) -> Iterator[Any]:
    """Batches as ``fit`` takes them, for ever."""
    weighted = bool(spec.sample_weight_col) or not share.steps.even
    shapes = [tensor.shape for tensor in model.outputs]
    if spec.label_shapes:
        shapes = [(None, *shape[1:]) for shape in spec.label_shapes]
    for step, batch in enumerate(share.batches()):
        inputs = tuple(
            shaped(batch[name], tensor.shape).astype(tensor.dtype)
            for name, tensor in zip(spec.feature_cols, model.inputs, strict=True)
        )
        labels = tuple(shaped(batch[name], shape) for name, shape in zip(spec.label_cols, shapes, strict=True))
        fed = (inputs if len(inputs) > 1 else inputs[0], labels if len(labels) > 1 else labels[0])
        if not weighted:
            yield fed
            continue
        weights = np.full(len(labels[0]), share.steps.weight(step % share.steps.number), np.float32)
        yield (*fed, weights * batch[spec.sample_weight_col] if spec.sample_weight_col else weights)


def _callbacks(spec: Spec, parts: Parts, model: Any, folder: str) -> list[Any]:
    """The user's own between ours: first all weights are alike, last the checkpoint."""
    rate = None if isinstance(model.optimizer.get_config()["learning_rate"], dict) else model.optimizer.learning_rate
    for each in parts.callbacks:
        if isinstance(each, hvd.callbacks.LearningRateScheduleCallback) and rate is not None:
            each.initial_lr = float(number_or_array(rate))
    found = [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback(), *parts.callbacks]
    if hvd.rank() != 0 or find_spec("tensorboard") is None:
        found = [each for each in found if not isinstance(each, keras.callbacks.TensorBoard)]
    if hvd.rank() != 0:
        return found
    if len(found) < 2 + len(parts.callbacks):
        print("workbench: the callback TensorBoard is left out: pip install tensorboard", file=sys.stderr)
    logs = posixpath.join(folder, spec.store.get_logs_subdir())
    for each in found:
        if isinstance(each, keras.callbacks.TensorBoard):
            each.log_dir = logs
    if parts.checkpoint_callback is not None:
        parts.checkpoint_callback.filepath = posixpath.join(folder, f"{spec.store.get_checkpoint_filename()}.keras")
        found.append(parts.checkpoint_callback)
    return [*found, _Keep(spec, folder)]


class _Keep(keras.callbacks.Callback):  # type: ignore[misc]  # untyped
    """After each epoch: the weights, the history and what callbacks have written go to the store.

    Args:
        spec: of the training.
        folder: of callbacks' files.
    """

    def __init__(self, spec: Spec, folder: str) -> None:
        super().__init__()
        self._spec, self._folder, self._history = spec, folder, list[dict[str, float]]()

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        store, run_id = self._spec.store, self._spec.run_id
        self._history.append({"epoch": epoch, **{name: float(value) for name, value in (logs or {}).items()}})
        path, where = store.get_checkpoint_path(run_id), store.get_logs_path(run_id)
        if not (path and where):
            return
        scale_rate(self.model.optimizer, 1 / hvd.size())  # the next training may have another number of ranks
        content = weights_bytes(self.model)
        scale_rate(self.model.optimizer, hvd.size())
        store.write(posixpath.join(path, store.get_checkpoint_filename()), content)
        store.write_text(posixpath.join(where, "history.json"), json.dumps(self._history))
        store.sync(self._folder, run_id)
