"""Collectives that gradients flow through.

The derivative of a collective is a collective again: of a sum, the sum of the ranks' gradients; of an average, their
average; of a gather, this rank's slice of their average; of a broadcast, their average on the root and zero
elsewhere; of an all-to-all, the all-to-all back. Where averages stand for sums, the loss is understood as the
average of the ranks' losses, as Horovod has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import Function

from workbench import api
from workbench.api import Average, ReduceOp, Sum
from workbench.process_sets import ProcessSet, global_process_set
from workbench.torch import ops
from workbench.torch.compression import Compression
from workbench.training.calls import choose_op
from workbench.training.compression import Compressor

_LINEAR = (Average, Sum)


class _Allreduce(Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str | None, op: ReduceOp, pre: float, post: float, pset: ProcessSet
    ) -> Any:
        ctx.args = op, pre, post, pset
        return api.wait_for(ops.allreduce_async, tensor, None, name, op, pre, post, pset)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        op, pre, post, pset = ctx.args
        if op not in _LINEAR:
            raise NotImplementedError(f"{op.value} has no gradient here: use Average or Sum, or detach the input.")
        dense = grads[0].contiguous()
        reduced = allreduce(dense, op=op, prescale_factor=pre, postscale_factor=post, process_set=pset)
        return reduced, None, None, None, None, None


class _GroupedAllreduce(Function):
    @staticmethod
    def forward(
        ctx: Any, name: str | None, op: ReduceOp, pre: float, post: float, pset: ProcessSet, *tensors: torch.Tensor
    ) -> Any:
        ctx.args = op, pre, post, pset
        return tuple(api.wait_for(ops.grouped_allreduce_async, tensors, None, name, op, pre, post, pset))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        op, pre, post, pset = ctx.args
        if op not in _LINEAR:
            raise NotImplementedError(f"{op.value} has no gradient here: use Average or Sum, or detach the input.")
        dense = [grad.contiguous() for grad in grads]
        reduced = grouped_allreduce(dense, op=op, prescale_factor=pre, postscale_factor=post, process_set=pset)
        return None, None, None, None, None, *reduced


class _Allgather(Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, name: str | None, pset: ProcessSet) -> Any:
        ctx.rows, ctx.pset = tensor.shape[0] if tensor.dim() else 0, pset
        return api.wait_for(ops.allgather_async, tensor, name, pset)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        total = allreduce(grads[0].contiguous(), op=Average, process_set=ctx.pset)
        rows = allgather(torch.tensor([ctx.rows]), process_set=ctx.pset)
        start = int(rows[: ctx.pset.rank()].sum())
        return total.narrow(0, start, ctx.rows), None, None


class _GroupedAllgather(Function):
    @staticmethod
    def forward(ctx: Any, name: str | None, pset: ProcessSet, *tensors: torch.Tensor) -> Any:
        ctx.rows, ctx.pset = [tensor.shape[0] if tensor.dim() else 0 for tensor in tensors], pset
        return tuple(api.wait_for(ops.grouped_allgather_async, tensors, name, pset))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        floats = [i for i, grad in enumerate(grads) if grad.is_floating_point()]  # the others have no gradient
        totals = grouped_allreduce([grads[i].contiguous() for i in floats], op=Average, process_set=ctx.pset)
        starts = allgather(torch.tensor([ctx.rows]), process_set=ctx.pset)[: ctx.pset.rank()].sum(0).tolist()
        mine = {i: total.narrow(0, starts[i], ctx.rows[i]) for i, total in zip(floats, totals, strict=True)}
        return None, None, *(mine.get(i) for i in range(len(grads)))


class _Broadcast(Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, root_rank: int, name: str | None, pset: ProcessSet) -> Any:
        ctx.root, ctx.pset = root_rank, pset
        return api.wait_for(ops.broadcast_async, tensor, root_rank, name, pset)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        total = allreduce(grads[0].contiguous(), op=Average, process_set=ctx.pset)
        return (total if api.rank() == ctx.root else torch.zeros_like(total)), None, None, None


class _Alltoall(Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, splits: Any, name: str | None, pset: ProcessSet) -> Any:
        n, ctx.pset = pset.size() or 1, pset
        even = splits is None and tensor.dim() > 0 and tensor.shape[0] % n == 0  # else it is refused, or has its splits
        rows = [tensor.shape[0] // n] * n if even else splits
        received, ctx.back = api.wait_for(ops.alltoall_async, tensor, rows, name, pset)
        if splits is None:
            return received
        ctx.mark_non_differentiable(ctx.back)
        return received, ctx.back

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return alltoall(grads[0].contiguous(), ctx.back, process_set=ctx.pset)[0], None, None, None


class _Reducescatter(Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, name: str | None, op: ReduceOp, pre: float, post: float, pset: ProcessSet
    ) -> Any:
        ctx.args = op, pre, post, pset
        return api.wait_for(ops.reducescatter_async, tensor, name, op, pset, pre, post)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        op, pre, post, pset = ctx.args
        if op not in _LINEAR:
            raise NotImplementedError(f"{op.value} has no gradient here: use Average or Sum, or detach the input.")
        gathered = allgather(grads[0].contiguous(), process_set=pset)
        return gathered * (pre * post * ((pset.size() or 1) if op is Sum else 1)), None, None, None, None, None


class _GroupedReducescatter(Function):
    @staticmethod
    def forward(
        ctx: Any, name: str | None, op: ReduceOp, pre: float, post: float, pset: ProcessSet, *tensors: torch.Tensor
    ) -> Any:
        ctx.args = op, pre, post, pset
        return tuple(api.wait_for(ops.grouped_reducescatter_async, tensors, name, op, pset, pre, post))

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        op, pre, post, pset = ctx.args
        if op not in _LINEAR:
            raise NotImplementedError(f"{op.value} has no gradient here: use Average or Sum, or detach the input.")
        factor = pre * post * ((pset.size() or 1) if op is Sum else 1)
        gathered = grouped_allgather([grad.contiguous() for grad in grads], process_set=pset)
        return None, None, None, None, None, *(each * factor for each in gathered)


def allreduce(
    tensor: torch.Tensor,
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> torch.Tensor:
    """Reduce over all ranks into new memory; differentiable for Average and Sum.

    Args:
        tensor: the same shape and dtype on every rank.
        name, op, average: see :mod:`workbench.torch.ops`.
        compression: ``Compression.none``, ``.fp16`` or ``.bf16``.
        prescale_factor, postscale_factor: multiply before and after the reduction.

    Example:
        >>> import workbench.torch as hvd
        >>> hvd.init()
        >>> hvd.allreduce(torch.tensor([2.0]), op=hvd.Sum)
        tensor([2.])
        >>> hvd.shutdown()
    """
    small, ctx = compression.compress(tensor)
    reduced = _Allreduce.apply(small, name, choose_op(op, average), prescale_factor, postscale_factor, process_set)
    return compression.decompress(reduced, ctx)  # type: ignore[no-any-return]


def grouped_allreduce(
    tensors: Sequence[torch.Tensor],
    average: bool | None = None,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: ReduceOp | None = None,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
    process_set: ProcessSet = global_process_set,
) -> list[torch.Tensor]:
    """As :func:`allreduce` for several tensors; none starts before all are ready on every rank."""
    if not tensors:
        return []
    small = [compression.compress(tensor) for tensor in tensors]
    args = (name, choose_op(op, average), prescale_factor, postscale_factor, process_set)
    reduced = _GroupedAllreduce.apply(*args, *(tensor for tensor, _ in small))
    return [compression.decompress(tensor, ctx) for tensor, (_, ctx) in zip(reduced, small, strict=True)]


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenate the ranks' tensors along the first dimension, which may differ; differentiable."""
    return _Allgather.apply(tensor, name, process_set)  # type: ignore[no-any-return]


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """As :func:`allgather` for several tensors; none starts before all are ready on every rank."""
    return list(_GroupedAllgather.apply(name, process_set, *tensors)) if tensors else []


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The root's tensor on every rank, in new memory; differentiable."""
    return _Broadcast.apply(tensor, root_rank, name, process_set)  # type: ignore[no-any-return]


def alltoall(
    tensor: torch.Tensor,
    splits: torch.Tensor | Sequence[int] | None = None,
    name: str | None = None,
    process_set: ProcessSet = global_process_set,
) -> Any:
    """Send ``splits[i]`` rows to rank i; differentiable.

    Returns:
        The rows received; with ``splits`` a pair of these and the number received from each rank.
    """
    return _Alltoall.apply(tensor, splits, name, process_set)


def reducescatter(
    tensor: torch.Tensor,
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> torch.Tensor:
    """Reduce, and keep this rank's rows; differentiable for Average and Sum."""
    small, ctx = compression.compress(tensor)
    reduced = _Reducescatter.apply(small, name, op, prescale_factor, postscale_factor, process_set)
    return compression.decompress(reduced, ctx)  # type: ignore[no-any-return]


def grouped_reducescatter(
    tensors: Sequence[torch.Tensor],
    name: str | None = None,
    compression: Compressor = Compression.none,
    op: ReduceOp = Average,
    process_set: ProcessSet = global_process_set,
    prescale_factor: float = 1.0,
    postscale_factor: float = 1.0,
) -> list[torch.Tensor]:
    """As :func:`reducescatter` for several tensors; none starts before all are ready on every rank."""
    if not tensors:
        return []
    small = [compression.compress(tensor) for tensor in tensors]
    args = name, op, prescale_factor, postscale_factor, process_set
    reduced = _GroupedReducescatter.apply(*args, *(tensor for tensor, _ in small))
    return [compression.decompress(tensor, ctx) for tensor, (_, ctx) in zip(reduced, small, strict=True)]
