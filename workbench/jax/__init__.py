"""Distributed training with JAX, one process per rank: ``import workbench.jax as hvd``.

Every verb works at once and within ``jit``, on arrays and on pytrees.
"""

import jax as _jax

from workbench import api as _api
from workbench.jax.compression import Compression
from workbench.jax.ops import allgather, allreduce, alltoall, broadcast, reducescatter
from workbench.jax.optimizer import DistributedOptimizer, broadcast_parameters, distributed_value_and_grad
from workbench.training import common
from workbench.training.common import *  # noqa: F403 - the names that all frameworks share
from workbench.training.objects import allgather_object, broadcast_object


def shutdown() -> None:
    """Leave the job, as :func:`workbench.shutdown`, after what JAX has only begun has come to its end."""
    _jax.effects_barrier()
    _api.shutdown()


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
    "reducescatter",
]
