"""Distributed training with JAX, one process per rank: ``import workbench.jax as hvd``.

Every verb works at once and within ``jit``, on arrays and on pytrees.
"""

import typing

from workbench.common.extras import cure as _cure
from workbench.common.extras import need as _need
from workbench.common.faces import public as _public

_need("workbench.jax", "jax", install=_cure("jax"))

from workbench.jax import elastic as elastic
from workbench.jax.optimizer import DistributedOptimizer as DistributedOptimizer
from workbench.jax.optimizer import broadcast_parameters as broadcast_parameters
from workbench.jax.optimizer import distributed_value_and_grad as distributed_value_and_grad
from workbench.jax.tensors import Compression as Compression
from workbench.jax.verbs import *  # noqa: F403
from workbench.job.objects import allgather_object as allgather_object
from workbench.job.objects import broadcast_object as broadcast_object
from workbench.training.common import *  # noqa: F403 - the names that all frameworks share

if not typing.TYPE_CHECKING:  # checkers see what is imported `as` itself, or by a star
    __all__ = _public(globals(), "elastic")

    def __dir__() -> list[str]:
        return __all__
