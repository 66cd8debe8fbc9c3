"""Distributed training with JAX, one process per rank: ``import workbench.jax as hvd``.

Every verb works at once and within ``jit``, on arrays and on pytrees.
"""

from workbench.common.extras import cure as _cure
from workbench.common.extras import need as _need

_need("workbench.jax", "jax", install=_cure("jax"))

from workbench.jax import elastic
from workbench.jax.ops import allgather, allreduce, alltoall, broadcast, reducescatter
from workbench.jax.optimizer import DistributedOptimizer, broadcast_parameters, distributed_value_and_grad
from workbench.jax.tensors import Compression
from workbench.job.objects import allgather_object, broadcast_object
from workbench.training import common
from workbench.training.common import *  # noqa: F403 - the names that all frameworks share

__all__ = [
    *common.__all__,
    "Compression",
    "DistributedOptimizer",
    "allgather",
    "allgather_object",
    "allreduce",
    "alltoall",
    "broadcast",
    "broadcast_object",
    "broadcast_parameters",
    "distributed_value_and_grad",
    "elastic",
    "reducescatter",
]
