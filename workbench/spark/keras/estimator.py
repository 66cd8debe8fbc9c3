"""The estimator for Keras, and the model that it returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from workbench.keras.flavour import keras
from workbench.spark.common.estimator import HorovodEstimator, ParameterError
from workbench.spark.common.model import HorovodModel
from workbench.spark.common.params import param
from workbench.spark.common.spec import Spec
from workbench.spark.keras import training
from workbench.spark.keras.files import load_weights, model_bytes, predictor


class KerasEstimator(HorovodEstimator):
    """Trains a Keras model on the rows of a DataFrame.

    Features reach the model in the shapes and types of its inputs, labels in the shapes of its outputs where these have
    as many numbers.

    Args:
        kwargs: the parameters of :class:`workbench.spark.common.params.EstimatorParams`, and these:
        custom_objects: the user's own classes and functions by name.
        checkpoint_callback: a ``ModelCheckpoint`` that writes a ``.keras`` file into the run's folder, too.
        backend_env: environment variables of the ranks.

    Example:
        >>> KerasEstimator(num_proc=2).setBatchSize(64).getBatchSize()
        64
    """

    custom_objects = param("custom_objects", "the user's own classes and functions by name")
    checkpoint_callback = param("checkpoint_callback", "writes a .keras file into the run's folder, too")
    backend_env = param("backend_env", "environment variables of the ranks")
    data_module = param("data_module", "of Horovod's readers; refused")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self._setDefault(custom_objects={}, backend_env={})
        self.setParams(**kwargs)

    def _check(self) -> None:
        super()._check()
        model = self.getModel()
        if not isinstance(model, keras.Model):
            raise ParameterError(f"model= is a {type(model).__name__}: a keras.Model is needed.")
        if not self.getLoss() or not (self.getOptimizer() or getattr(model, "optimizer", None)):
            raise ParameterError("The parameters loss= and optimizer= are both needed to compile the model.")

    def _job(self, spec: Spec) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return training.train, (self._parts(), self._checkpoint(spec.run_id))

    def _parts(self) -> training.Parts:
        model = self.getModel()
        optimizer = self.getOptimizer() or model.optimizer
        if isinstance(optimizer, str):
            optimizer = keras.optimizers.get(optimizer)
        return training.Parts(
            model=model_bytes(model),
            optimizer=keras.optimizers.serialize(optimizer),
            loss=self.getLoss(),
            metrics=self.getMetrics(),
            callbacks=self.getCallbacks() or [],
            custom_objects=self.getCustomObjects() or {},
            checkpoint_callback=self.getCheckpointCallback(),
        )

    def _env(self) -> Mapping[str, str]:
        return self.getBackendEnv() or {}

    def _made(self, spec: Spec, result: Any) -> KerasModel:
        history, weights = result
        model = training.compiled(self._parts(), spec, distributed=False)
        load_weights(model, weights)
        made: KerasModel = KerasModel(
            history=history,
            model=model,
            feature_columns=list(spec.feature_cols),
            label_columns=list(spec.label_cols),
            custom_objects=self.getCustomObjects(),
            run_id=spec.run_id,
            _metadata=dict(spec.data.columns),
        )
        return made


class KerasModel(HorovodModel):
    """A trained Keras model, see :class:`workbench.spark.common.model.HorovodModel`.

    Args:
        kwargs: ``history``, ``model``, ``feature_columns``, ``label_columns``, ``custom_objects``, ``run_id``.
    """

    custom_objects = param("custom_objects", "the user's own classes and functions by name")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self._setDefault(custom_objects={})
        self.setParams(**kwargs)

    def _predictor(self) -> tuple[str, tuple[Any, ...]]:
        return predictor.__module__, (model_bytes(self.getModel()), self.getCustomObjects())

    def _sizes(self) -> list[int]:
        import numpy as np

        return [int(np.prod([dim or 1 for dim in tensor.shape[1:]])) for tensor in self.getModel().outputs]
