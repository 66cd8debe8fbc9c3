"""Distributed training with PyTorch: ``import workbench.torch as hvd``."""

from typing import TYPE_CHECKING

from workbench.common.extras import cure as _cure
from workbench.common.extras import need as _need

_need("workbench.torch", "torch", install=_cure("torch"))

from workbench.job.built import has_gpu
from workbench.job.objects import allgather_object as allgather_object
from workbench.job.objects import broadcast_object as broadcast_object
from workbench.torch import elastic as elastic
from workbench.torch import ops, verbs
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
from workbench.training import common
from workbench.training.common import *  # noqa: F403 - the names that all frameworks share

_register()  # torch itself does so where this package is installed; from a folder on the path it does not
_check_has_gpu = has_gpu  # by this name scripts written for Horovod ask


if not TYPE_CHECKING:  # checkers see what is imported `as` itself, or by a star; lists they do not add up
    __all__ = [
        *common.__all__,
        *ops.__all__,
        *verbs.__all__,
        "Compression",
        "DiLoCo",
        "DistributedOptimizer",
        "LocalSGD",
        "SyncBatchNorm",
        "allgather_object",
        "broadcast_object",
        "broadcast_optimizer_state",
        "broadcast_parameters",
        "elastic",
        "full_parameters",
        "full_state_dict",
        "load_full_state_dict",
        "shard_parameters",
        "split_at_buckets",
        "write_in_buckets",
    ]

    def __dir__() -> list[str]:
        return sorted(__all__)
