"""The estimator for PyTorch, and the model that it returns."""

from __future__ import annotations

from collections.abc import Callable
from pickle import loads
from typing import Any

from cloudpickle import dumps

from workbench.spark.common.estimator import HorovodEstimator, ParameterError
from workbench.spark.common.model import HorovodModel
from workbench.spark.common.params import param
from workbench.spark.common.spec import Spec
from workbench.spark.torch import training
from workbench.spark.torch.predicting import dtype_of, predictor, shapes_of


class TorchEstimator(HorovodEstimator):
    """Trains a ``torch.nn.Module`` on the rows of a DataFrame.

    Features and labels reach the model and the loss as floats of the model's type, as in Horovod. A loss that wants
    whole numbers converts them: ``lambda output, label: cross_entropy(output, label.long())``.

    Args:
        kwargs: the parameters of :class:`workbench.spark.common.params.EstimatorParams`, and these:
        input_shapes: shape of each feature, with -1 for samples; ``[-1, size]`` by default.
        loss_constructors: functions that make the losses in each rank, in place of ``loss``. They may ask for
            ``model`` and ``optimizer``.
        train_minibatch_fn: in place of forward, loss, backward and step: is given ``model, optimizer,
            transform_outputs, loss_fn, inputs, labels, sample_weights``, and returns outputs and loss.

    Example:
        >>> estimator = TorchEstimator(num_proc=2, batch_size=64)
        >>> estimator.setEpochs(3).getEpochs(), estimator.getBatchSize(), estimator.getShuffle()
        (3, 64, True)
    """

    input_shapes = param("input_shapes", "shape of each feature, with -1 for samples")
    loss_constructors = param("loss_constructors", "functions that make the losses")
    train_minibatch_fn = param("train_minibatch_fn", "a step of the training")
    data_module = param("data_module", "of Horovod's readers; refused")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self.setParams(**kwargs)

    def _check(self) -> None:
        super()._check()
        if bool(self.getLoss()) == bool(self.getLossConstructors()):
            raise ParameterError("Give one of loss= and loss_constructors=.")
        if self.getOptimizer() is None:
            raise ParameterError("The parameter optimizer= is missing, as torch.optim.SGD(model.parameters(), lr=0.1).")
        if self.getCallbacks():
            raise ParameterError("callbacks= are Keras' own; train_minibatch_fn= is called in each step of torch.")

    def _job(self, spec: Spec) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        parts = training.Parts(
            losses=_listed(self.getLoss()),
            constructors=_listed(self.getLossConstructors()),
            metrics=[_listed(each) for each in self.getMetrics() or []],
            shapes=shapes_of(self.getInputShapes(), spec.feature_cols, spec.data.columns),
            step=self.getTrainMinibatchFn(),
        )
        return training.train, (parts, self._both(), self._checkpoint(spec.run_id))

    def _both(self) -> bytes:
        """Model and optimizer. Pickled together, the parameters of one stay those of the other."""
        model = self.getModel()
        return bytes(dumps((model, optimizer_of(model, self.getOptimizer()))))

    def _made(self, spec: Spec, result: Any) -> TorchModel:
        history, checkpoint = result
        model, optimizer = loads(self._both())
        training.load(checkpoint, model, optimizer)
        model.eval()
        made: TorchModel = TorchModel(
            history=history,
            model=model,
            optimizer=optimizer,
            feature_columns=list(spec.feature_cols),
            label_columns=list(spec.label_cols),
            input_shapes=shapes_of(self.getInputShapes(), spec.feature_cols, spec.data.columns),
            run_id=spec.run_id,
            _metadata=dict(spec.data.columns),
            loss=self.getLoss(),
            loss_constructors=self.getLossConstructors(),
        )
        return made


class TorchModel(HorovodModel):
    """A trained ``torch.nn.Module``, see :class:`workbench.spark.common.model.HorovodModel`.

    Args:
        kwargs: ``history``, ``model``, ``optimizer``, ``feature_columns``, ``label_columns``, ``input_shapes``,
            ``run_id``, ``loss``, ``loss_constructors``.
    """

    optimizer = param("optimizer", "with its state at the end of the training")
    input_shapes = param("input_shapes", "shape of each feature, with -1 for samples")
    loss = param("loss", "that it was trained with")
    loss_constructors = param("loss_constructors", "functions that made the losses")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self._setDefault(loss=None, loss_constructors=None, optimizer=None)
        self.setParams(**kwargs)

    def _predictor(self) -> tuple[str, tuple[Any, ...]]:
        return predictor.__module__, (dumps(self.getModel()), self.getInputShapes(), dtype_of(self.getModel()))

    def _sizes(self) -> list[int]:
        import numpy as np

        about = [self.getOrDefault("_metadata")[name] for name in self.getFeatureColumns()]
        zeros = [np.zeros(() if each.kind == "scalar" else each.size)[None] for each in about]
        outputs = predictor(dumps(self.getModel()), self.getInputShapes(), dtype_of(self.getModel()))(zeros)
        return [each.size for each in outputs]


def optimizer_of(model: Any, optimizer: Any) -> Any:
    """The optimizer, or one like it where it was made for another model, as a copy.

    Raises:
        ParameterError: that model has other parameters.
    """
    mine = {id(each) for each in model.parameters()}
    if all(id(each) in mine for group in optimizer.param_groups for each in group["params"]):
        return optimizer
    made = type(optimizer)(model.parameters(), lr=1.0)
    try:
        made.load_state_dict(optimizer.state_dict())
    except ValueError as error:
        raise ParameterError(
            f"optimizer= was made for another model ({error}): make it of model='s parameters, as "
            f"torch.optim.{type(optimizer).__name__}(model.parameters(), …)."
        ) from None
    return made


def _listed(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, (list, tuple)) else [value]
