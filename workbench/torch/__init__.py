"""Distributed training with PyTorch: ``import workbench.torch as hvd``."""

from workbench.built import has_gpu
from workbench.common.moved import moved
from workbench.torch import elastic
from workbench.torch.autograd import (
    allgather,
    allreduce,
    alltoall,
    broadcast,
    grouped_allgather,
    grouped_allreduce,
    grouped_reducescatter,
    reducescatter,
)
from workbench.torch.functions import broadcast_optimizer_state, broadcast_parameters
from workbench.torch.ops import (
    allgather_async,
    allreduce_,
    allreduce_async,
    allreduce_async_,
    alltoall_async,
    broadcast_,
    broadcast_async,
    broadcast_async_,
    grouped_allgather_async,
    grouped_allreduce_,
    grouped_allreduce_async,
    grouped_allreduce_async_,
    grouped_reducescatter_async,
    poll,
    reducescatter_async,
    sparse_allreduce_async,
    synchronize,
)
from workbench.torch.optimizer import DistributedOptimizer
from workbench.torch.sync_batch_norm import SyncBatchNorm
from workbench.torch.tensors import Compression
from workbench.training import common
from workbench.training.common import *  # noqa: F403 - the names that all frameworks share
from workbench.training.objects import allgather_object, broadcast_object

_check_has_gpu = has_gpu  # by this name scripts written for Horovod ask

moved("workbench.torch.compression", "workbench.torch.tensors")
moved("workbench.torch.gradients", "workbench.torch.optimizer.gradient_hooks")  # lesson 06 has shown them
moved("workbench.torch.topk", "workbench.torch.optimizer.topk")

__all__ = [
    *common.__all__,
    "Compression",
    "DistributedOptimizer",
    "SyncBatchNorm",
    "allgather",
    "allgather_async",
    "allgather_object",
    "allreduce",
    "allreduce_",
    "allreduce_async",
    "allreduce_async_",
    "alltoall",
    "alltoall_async",
    "broadcast",
    "broadcast_",
    "broadcast_async",
    "broadcast_async_",
    "broadcast_object",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "elastic",
    "grouped_allgather",
    "grouped_allgather_async",
    "grouped_allreduce",
    "grouped_allreduce_",
    "grouped_allreduce_async",
    "grouped_allreduce_async_",
    "grouped_reducescatter",
    "grouped_reducescatter_async",
    "poll",
    "reducescatter",
    "reducescatter_async",
    "sparse_allreduce_async",
    "synchronize",
]
