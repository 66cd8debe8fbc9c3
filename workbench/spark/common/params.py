"""The parameters of the estimators and of their models, as Spark ML has parameters, under Horovod's names.

Each has a setter and a getter: ``estimator.setBatchSize(64).getBatchSize()``. Those of "no effect" belong to
Petastorm's readers, for which ``shards.py`` stands; they are kept, so that scripts written for Horovod run.
"""
# ruff: noqa: N802 - the methods have the names of Spark ML and Horovod

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from pyspark.ml.param.shared import HasOutputCols, Param, Params, TypeConverters


def param(name: str, text: str, converter: Callable[[Any], Any] | None = None) -> Any:
    """A parameter, to be a member of a class."""
    return Param(Params._dummy(), name, text, converter or TypeConverters.identity)


class Accessible(Params):  # type: ignore[misc]  # untyped
    """Parameters with a setter and a getter each, made of their names: ``batch_size`` has ``setBatchSize``.

    Attributes:
        _as_horovod: those whose accessors have another name in Horovod, in part by its slips.
    """

    _as_horovod: ClassVar[Mapping[str, str]] = {
        "train_reader_num_workers": "TrainReaderNumWorker",
        "val_reader_num_workers": "ValReaderNumWorker",
        "shuffle_buffer_size": "ShufflingBufferSize",
        "inmemory_cache_all": "InMemoryCacheAll",
    }

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name in [name for name, each in vars(cls).items() if isinstance(each, Param) and name[0] != "_"]:
            spelled = cls._as_horovod.get(name, "".join(word.capitalize() for word in name.split("_")))
            setattr(cls, f"set{spelled}", _setter(name))
            setattr(cls, f"get{spelled}", _getter(name))

    def setParams(self, **kwargs: Any) -> Any:
        return self._set(**{name: value for name, value in kwargs.items() if value is not None})


def _setter(name: str) -> Callable[[Any, Any], Any]:
    """A method that sets a parameter and returns its object."""

    def put(self: Any, value: Any) -> Any:
        return self._set(**{name: value})

    put.__doc__ = f"Set ``{name}``."
    return put


def _getter(name: str) -> Callable[[Any], Any]:
    """A method that returns a parameter's value."""

    def get(self: Any) -> Any:
        return self.getOrDefault(name)

    get.__doc__ = f"The value of ``{name}``."
    return get


class EstimatorParams(Accessible):
    """What all estimators can be told."""

    num_proc = param("num_proc", "number of ranks; spark.default.parallelism by default", TypeConverters.toInt)
    backend = param("backend", "where the ranks run, instead of num_proc")
    store = param("store", "where data, checkpoints and logs are stored")
    model = param("model", "the model to train; it is not changed")
    optimizer = param("optimizer", "its learning rate is multiplied by the number of ranks")
    loss = param("loss", "a function, or one for each label")
    loss_weights = param("loss_weights", "by label; equal by default", TypeConverters.toListFloat)
    metrics = param("metrics", "functions of outputs and labels")
    sample_weight_col = param("sample_weight_col", "column with each sample's weight", TypeConverters.toString)
    gradient_compression = param("gradient_compression", "for DistributedOptimizer(compression=…)")
    feature_cols = param("feature_cols", "columns that the model takes", TypeConverters.toListString)
    label_cols = param("label_cols", "columns that the model predicts", TypeConverters.toListString)
    continuous_cols = param("continuous_cols", "of NVTabular; refused", TypeConverters.toListString)
    categorical_cols = param("categorical_cols", "of NVTabular; refused", TypeConverters.toListString)
    validation = param("validation", "a share from 0 to 1, or a column that is true or positive in such rows")
    callbacks = param("callbacks", "Keras' own; refused by torch")
    batch_size = param("batch_size", "largest number of samples in a rank's step", TypeConverters.toInt)
    val_batch_size = param("val_batch_size", "the same of validation; batch_size by default", TypeConverters.toInt)
    epochs = param("epochs", "how often each sample is seen", TypeConverters.toInt)
    train_steps_per_epoch = param("train_steps_per_epoch", "by default all samples once", TypeConverters.toInt)
    validation_steps_per_epoch = param("validation_steps_per_epoch", "by default all samples", TypeConverters.toInt)
    verbose = param("verbose", "0: say nothing", TypeConverters.toInt)
    random_seed = param("random_seed", "seed of the order of samples, of dropout, of the split", TypeConverters.toInt)
    shuffle = param("shuffle", "draw each epoch's order", TypeConverters.toBoolean)
    partitions_per_process = param("partitions_per_process", "files of the data for each rank", TypeConverters.toInt)
    run_id = param("run_id", "name of the run; if it has a checkpoint, it continues from it", TypeConverters.toString)
    transformation_fn = param("transformation_fn", "gets a pandas.DataFrame of samples, returns a new one")
    transformation_removed_fields = param("transformation_removed_fields", "columns that it removes")
    transformation_edit_fields = param("transformation_edit_fields", "no effect: columns show their types themselves")
    label_shapes = param("label_shapes", "shape of each label, with -1 for samples; the output's by default")
    use_gpu = param("use_gpu", "train on the GPU of the local rank, if there is one", TypeConverters.toBoolean)
    backward_passes_per_step = param("backward_passes_per_step", "gradients summed per step", TypeConverters.toInt)
    train_reader_num_workers = param("train_reader_num_workers", "no effect")
    val_reader_num_workers = param("val_reader_num_workers", "no effect")
    reader_pool_type = param("reader_pool_type", "no effect")
    compress_sparse_cols = param("compress_sparse_cols", "no effect", TypeConverters.toBoolean)
    shuffle_buffer_size = param("shuffle_buffer_size", "no effect: see shuffle")
    inmemory_cache_all = param("inmemory_cache_all", "no effect", TypeConverters.toBoolean)
    mp_start_method = param("mp_start_method", "no effect")

    def __init__(self) -> None:
        super().__init__()
        nothing = {each.name: None for each in self.params}
        self._setDefault(
            **nothing
            | {
                "metrics": [],
                "callbacks": [],
                "batch_size": 32,
                "epochs": 1,
                "verbose": 1,
                "shuffle": True,
                "partitions_per_process": 10,
                "compress_sparse_cols": False,
                "train_reader_num_workers": 2,
                "val_reader_num_workers": 2,
                "reader_pool_type": "thread",
                "inmemory_cache_all": False,
                "use_gpu": True,
                "backward_passes_per_step": 1,
            }
        )


class ModelParams(HasOutputCols, Accessible):  # type: ignore[misc]  # untyped
    """What all trained models have."""

    history = param("history", "metrics of each epoch")
    model = param("model", "of the framework")
    feature_columns = param("feature_columns", "columns that the model takes")
    label_columns = param("label_columns", "columns that it predicts; outputCols are <label>__output by default")
    run_id = param("run_id", "of the run that has trained it", TypeConverters.toString)
    _metadata = param("_metadata", "types and sizes of the columns")

    def setOutputCols(self, value: list[str]) -> Any:
        """Name the columns that :meth:`transform` adds, one for each label."""
        return self._set(outputCols=value)

    def setLabelColoumns(self, value: list[str]) -> Any:
        """Horovod's spelling of ``setLabelColumns``."""
        return self._set(label_columns=value)
