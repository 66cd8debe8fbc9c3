"""Distributed training with PyTorch: ``import workbench.torch as hvd``."""

import typing

from workbench.common.extras import cure as _cure
from workbench.common.extras import need as _need
from workbench.common.faces import public as _public

_need("workbench.torch", "torch", install=_cure("torch"))

from workbench.job.built import has_gpu as _check_has_gpu  # noqa: F401 - so scripts written for Horovod call it
from workbench.job.objects import allgather_object as allgather_object
from workbench.job.objects import broadcast_object as broadcast_object
from workbench.torch import elastic as elastic
from workbench.torch.compiled import split_at_buckets as split_at_buckets
from workbench.torch.compression import Compression as Compression
from workbench.torch.functions import broadcast_optimizer_state as broadcast_optimizer_state
from workbench.torch.functions import broadcast_parameters as broadcast_parameters
from workbench.torch.linear import write_in_buckets as write_in_buckets
from workbench.torch.low_communication import DiLoCo as DiLoCo
from workbench.torch.low_communication import LocalSGD as LocalSGD
from workbench.torch.ops import *  # noqa: F403
from workbench.torch.optimizer import DistributedOptimizer as DistributedOptimizer
from workbench.torch.sharded.full_parameters import full_parameters as full_parameters
from workbench.torch.sharded.full_parameters import full_state_dict as full_state_dict
from workbench.torch.sharded.full_parameters import load_full_state_dict as load_full_state_dict
from workbench.torch.sharded.stage3 import shard_parameters as shard_parameters
from workbench.torch.sync_batch_norm import SyncBatchNorm as SyncBatchNorm
from workbench.torch.verbs import *  # noqa: F403
from workbench.torch_plugin import register as _register
from workbench.training.common import *  # noqa: F403 - the names that all frameworks share

_register()  # torch itself does so where this package is installed; from a folder on the path it does not

if not typing.TYPE_CHECKING:  # checkers see what is imported `as` itself, or by a star
    __all__ = _public(globals(), "elastic")

    def __dir__() -> list[str]:
        return __all__
