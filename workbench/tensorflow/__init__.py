"""Distributed training with TensorFlow: ``import workbench.tensorflow as hvd``.

Eagerly, within ``tf.function``, and in the graphs and sessions of ``tf.compat.v1``. For Keras' ``fit`` see
:mod:`workbench.keras`, here :mod:`workbench.tensorflow.keras`. Any TensorFlow from 2.15 on will do, with Keras 2 or 3.
"""

from workbench.common.extras import cure as _cure
from workbench.common.extras import need as _need

_need("workbench.tensorflow", "tensorflow", install=_cure("tensorflow"))

from workbench.tensorflow import elastic
from workbench.tensorflow.gradient_tape import DistributedGradientTape, PartialDistributedGradientTape
from workbench.tensorflow.optimizer import DistributedOptimizer
from workbench.tensorflow.sync_batch_norm import SyncBatchNormalization
from workbench.tf.functions import (
    BroadcastGlobalVariablesHook,
    allgather_object,
    broadcast_global_variables,
    broadcast_object,
    broadcast_object_fn,
    broadcast_variables,
)
from workbench.tf.ops import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    broadcast_,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    local_rank_op,
    local_size_op,
    process_set_included_op,
    rank_op,
    reducescatter,
    size_op,
)
from workbench.tf.tensors import Compression
from workbench.training import common
from workbench.training.common import *  # noqa: F403 - the names that all frameworks share

__all__ = [
    *common.__all__,
    "BroadcastGlobalVariablesHook",
    "Compression",
    "DistributedGradientTape",
    "DistributedOptimizer",
    "PartialDistributedGradientTape",
    "SyncBatchNormalization",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_",
    "broadcast_global_variables",
    "broadcast_object",
    "broadcast_object_fn",
    "broadcast_variables",
    "elastic",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "local_rank_op",
    "local_size_op",
    "process_set_included_op",
    "rank_op",
    "reducescatter",
    "size_op",
]
