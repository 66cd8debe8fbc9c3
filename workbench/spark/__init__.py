"""Ranks in the tasks of Apache Spark, under Horovod's names: ``import workbench.spark``.

::

    spark = SparkSession.builder.getOrCreate()
    workbench.spark.run(train, args=(0.1,), num_proc=4)        # what train returns, by rank

    estimator = workbench.spark.torch.TorchEstimator(num_proc=4, store=Store.create("/shared/work"), model=model, …)
    estimator.fit(training_data).transform(other_data)

=================  ==================================================================
``run.py``         a function on ranks in Spark's tasks; in an elastic job, too
``offers.py``      the Spark job behind it: tasks that offer a slot each
``session.py``     the user's Spark session: its version, slots, addresses, lost tasks
``common/``        what the estimators share: parameters, store, data, prediction
``torch, keras``   an estimator for each
=================  ==================================================================

Spark's tasks only hold the slots, and carry the standard streams of the ranks. The ranks are processes of their own
beside them, as with any other launcher. Each node needs the same environment as the driver, at the same path.
"""

from typing import TYPE_CHECKING

from workbench.common.faces import when_asked as _when_asked
from workbench.spark.run import run as run
from workbench.spark.run import run_elastic as run_elastic

if TYPE_CHECKING:
    from workbench.spark import common as common
    from workbench.spark import keras as keras
    from workbench.spark import torch as torch
else:
    __all__ = ["run", "run_elastic"]
    _MODULES = ("common", "keras", "torch")  # the last two need Keras, and torch
    __getattr__ = _when_asked(__name__, *_MODULES)

    def __dir__() -> list[str]:
        return [*__all__, *_MODULES]
