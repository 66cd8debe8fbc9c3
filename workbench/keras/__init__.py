"""Distributed training with Keras: ``import workbench.keras as hvd``.

::

    hvd.init()
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3 * hvd.size()))
    model.compile(optimizer, loss)
    model.fit(my_shard, callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0),
                                   hvd.callbacks.MetricAverageCallback()])

Keras 3 runs on TensorFlow, torch and JAX. Keras 2 is ``keras`` beside TensorFlow 2.15, or ``tf_keras`` where
TF_USE_LEGACY_KERAS=1 makes it ``tf.keras``; see :mod:`workbench.keras.flavour`.
"""

from workbench.common.extras import cure as _cure
from workbench.common.extras import need as _need

_need("workbench.keras", "keras", install=_cure("tensorflow"))

from workbench.job.objects import allgather_object, broadcast_object
from workbench.keras import callbacks, elastic
from workbench.keras.backend import Compression
from workbench.keras.functions import (
    allgather,
    allreduce,
    broadcast,
    broadcast_global_variables,
    broadcast_variables,
    load_model,
    reducescatter,
)
from workbench.keras.optimizer import DistributedOptimizer, PartialDistributedOptimizer
from workbench.training import common
from workbench.training.common import *  # noqa: F403 - the names that all frameworks share

__all__ = [
    *common.__all__,
    "Compression",
    "DistributedOptimizer",
    "PartialDistributedOptimizer",
    "allgather",
    "allgather_object",
    "allreduce",
    "broadcast",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_variables",
    "callbacks",
    "elastic",
    "load_model",
    "reducescatter",
]
