"""From a DataFrame to a trained model: what the estimators of all frameworks have in common.

::

    fit(df) ─► columns checked ─► Parquet in the store ─► ranks: each its share, averaged gradients ─► model
                                                            │ after each epoch
                                                            └─► checkpoint in the store
"""

from __future__ import annotations

import abc
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from pyspark.ml import Estimator
from pyspark.sql import SparkSession

from workbench.errors import LaunchError, WorkbenchError
from workbench.spark import session
from workbench.spark.common.backend import Backend, SparkBackend
from workbench.spark.common.columns import names_of
from workbench.spark.common.data import TrainingData, there, written
from workbench.spark.common.params import EstimatorParams
from workbench.spark.common.spec import Spec
from workbench.spark.common.store import Store


class ParameterError(WorkbenchError, ValueError):
    """A parameter of an estimator is missing, or does not go with another."""


class HorovodEstimator(Estimator, EstimatorParams, metaclass=abc.ABCMeta):  # type: ignore[misc]  # untyped
    """Trains a model on ranks, as a stage of a Spark ML pipeline."""

    def fit(self, dataset: Any, params: Any = None) -> Any:
        """Train a copy of the model.

        Args:
            dataset: a DataFrame with the columns that ``feature_cols`` and ``label_cols`` name.
            params: replace parameters, for this call.

        Returns:
            A transformer with the trained model.

        Raises:
            DataFrameError: a column is missing, null somewhere, of another type, or of several lengths.
            StoreError: the store cannot be written, as without room.
            LaunchError, PeerLostError, RankFailedError: see :func:`workbench.spark.run`.
        """
        return super().fit(dataset, params)

    def fit_on_parquet(self, params: Mapping[Any, Any] | None = None, dataset_idx: int | None = None) -> Any:
        """Train on the Parquet that is in the store already, at ``store.get_train_data_path(dataset_idx)``.

        Args:
            params: replace parameters, for this call.
            dataset_idx: the dataset's number.

        Raises:
            DataFrameError, StoreError: as :meth:`fit`.
        """
        if params:
            return self.copy(dict(params)).fit_on_parquet(dataset_idx=dataset_idx)
        self._check()
        backend, store = self._backend(), self.getStore()
        spark = SparkSession.builder.getOrCreate()
        validates = bool(self.getValidation())
        return self._train(backend, there(spark, self._names(), store, backend.num_processes(), validates, dataset_idx))

    def _fit(self, dataset: Any) -> Any:
        self._check()
        backend, store = self._backend(), self.getStore()
        ranks, files = backend.num_processes(), self.getPartitionsPerProcess()
        seed = self.getRandomSeed()
        with written(dataset, self._names(), store, ranks, files, self.getValidation(), seed) as data:
            return self._train(backend, data)

    def _train(self, backend: Backend, data: TrainingData) -> Any:
        run_id = self.getRunId() or f"{self.uid}_{time.strftime('%Y%m%d%H%M%S')}_{secrets.token_hex(4)}"
        spec = self._spec(data, run_id)
        func, args = self._job(spec)
        return self._made(spec, backend.run(func, (spec, *args), env=self._env())[0])

    @abc.abstractmethod
    def _job(self, spec: Spec) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        """What each rank calls, and its arguments after ``spec``."""

    @abc.abstractmethod
    def _made(self, spec: Spec, result: Any) -> Any:
        """The transformer, of what rank 0 returned."""

    def _env(self) -> Mapping[str, str]:
        """Further environment variables of the ranks."""
        return {}

    def _names(self) -> list[str]:
        return names_of(self.getFeatureCols(), self.getLabelCols(), self.getSampleWeightCol())

    def _backend(self) -> Backend:
        session.context()
        backend, n = self.getBackend(), self.getNumProc()
        if backend is not None and n is not None:
            raise ParameterError('At most one of parameters "backend" and "num_proc" may be specified.')
        return backend or SparkBackend(n, verbose=self.getVerbose())

    def _check(self) -> None:
        """Look at the parameters, before anything is written.

        Raises:
            ParameterError: one is missing, or does not go with another.
        """
        if self.getModel() is None:
            raise ParameterError("The parameter model= is missing: give the model to train.")
        if not isinstance(self.getStore(), Store):
            raise ParameterError(
                f"The parameter store= is {self.getStore()!r}: give Store.create(folder), of a folder that all "
                "nodes share."
            )
        for name in ("continuous_cols", "categorical_cols", "data_module"):
            if self.hasParam(name) and self.getOrDefault(name):
                raise ParameterError(f"{name}= belongs to NVTabular, which the workbench does not use. Leave it out.")
        for name in ("batch_size", "epochs", "backward_passes_per_step", "partitions_per_process"):
            if self.getOrDefault(name) < 1:
                raise ParameterError(f"{name}={self.getOrDefault(name)}: it is at least 1.")
        weights = self.getLossWeights()
        if weights and len(weights) != len(self.getLabelCols() or ()):
            raise ParameterError(f"loss_weights={weights}: one for each label of {self.getLabelCols()}.")

    def _spec(self, data: TrainingData, run_id: str) -> Spec:
        shared = {name: self.getOrDefault(name) for name in Spec.__dataclass_fields__ if self.hasParam(name)}
        shared |= {"data": data, "run_id": run_id, "val_batch_size": self.getValBatchSize() or self.getBatchSize()}
        return Spec(**shared)

    def _checkpoint(self, run_id: str) -> bytes | None:
        """Of an earlier run of this name."""
        store: Store = self.getStore()
        folder = store.get_checkpoint_path(run_id)
        path = f"{folder}/{store.get_checkpoint_filename()}"
        return store.read(path) if folder and store.exists(path) else None

    def write(self) -> Any:
        """Refused: functions and models of a framework are code, and code that is read from a folder is not run here.

        Raises:
            LaunchError: always.
        """
        raise LaunchError(
            f"{type(self).__name__} holds functions and a model, which Spark ML can only save as pickled code. Save "
            "the trained weights: torch.save(fitted.getModel().state_dict(), …), or fitted.getModel().save(….keras)."
        )
