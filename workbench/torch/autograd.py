"""Collectives that gradients flow through, by the rules of :mod:`workbench.training.derivatives`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd import Function

from workbench.core.messages import Kind
from workbench.job import api
from workbench.job.api import Average, ReduceOp
from workbench.job.process_sets import ProcessSet, global_process_set
from workbench.torch import ops
from workbench.torch.compression import Compression
from workbench.training.calls import Call, choose_op
from workbench.training.compression import Compressor
from workbench.training.derivatives import BackwardContext, rule_of


class _Collective(Function):
    """Any verb on any number of tensors; alltoall, of one, has the numbers of rows received as its second result."""

    @staticmethod
    def forward(ctx: Any, call: Call, *tensors: torch.Tensor) -> Any:
        results = api.wait_for(ops.begin, call, tensors)
        ctx.call, ctx.rows, ctx.received = call, [each.shape[0] if each.dim() else 0 for each in tensors], None
        if call.verb.splits:
            results = results[0]
            ctx.received = results[1].tolist()
            ctx.mark_non_differentiable(results[1])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        rule = rule_of(ctx.call)
        # Nothing else has a gradient.
        of = [i for i, g in enumerate(grads[: len(ctx.rows)]) if g.is_floating_point() or g.is_complex()]
        dy, rows = [grads[i].contiguous() for i in of], [ctx.rows[i] for i in of]
        dx = dict(
            zip(of, rule(BackwardContext(ctx.call, _Tensors(), dy, rows, ctx.received)) if of else [], strict=True)
        )
        return None, *(dx.get(i) for i in range(len(ctx.rows)))


class _Tensors:
    """Torch tensors; see :class:`workbench.training.derivatives.Verbs`."""

    def run(self, call: Call, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Differentiable, so a derivative has one itself. Complex numbers are reduced as pairs of reals."""
        paired = [call.verb.reduces and each.is_complex() for each in tensors]
        made = _Collective.apply(
            call,
            *(torch.view_as_real(t.resolve_conj()) if pair else t for t, pair in zip(tensors, paired, strict=True)),
        )
        pairs = [*paired, *[False] * (len(made) - len(paired))]  # alltoall's second result
        return [torch.view_as_complex(t) if pair else t for t, pair in zip(made, pairs, strict=True)]

    def zeros_like(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(tensor)

    def scaled(self, tensor: torch.Tensor, factor: float) -> torch.Tensor:
        """In its own dtype."""
        return tensor * factor


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
        prescale_factor, postscale_factor: multiply before and after the reduction, and round to the tensor's dtype at
            once: half precision in float32, integers in float64.

    Example:
        >>> import workbench.torch as hvd
        >>> hvd.init()
        >>> hvd.allreduce(torch.tensor([2.0]), op=hvd.Sum)
        tensor([2.])
        >>> hvd.shutdown()
    """
    call = Call(
        Kind.ALLREDUCE, name, choose_op(op, average), prescale_factor, postscale_factor, process_set=process_set
    )
    return _compressed(call, [tensor], compression)[0]


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
    call = Call(
        Kind.ALLREDUCE, name, choose_op(op, average), prescale_factor, postscale_factor, process_set=process_set
    )
    return _compressed(call, tensors, compression)


def allgather(
    tensor: torch.Tensor, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """Concatenate the ranks' tensors along the first dimension, which may differ; differentiable."""
    return grouped_allgather([tensor], name, process_set)[0]


def grouped_allgather(
    tensors: Sequence[torch.Tensor], name: str | None = None, process_set: ProcessSet = global_process_set
) -> list[torch.Tensor]:
    """As :func:`allgather` for several tensors; none starts before all are ready on every rank."""
    return _compressed(Call(Kind.ALLGATHER, name, process_set=process_set), tensors)


def broadcast(
    tensor: torch.Tensor, root_rank: int, name: str | None = None, process_set: ProcessSet = global_process_set
) -> torch.Tensor:
    """The root's tensor on every rank, in new memory; differentiable."""
    return _compressed(Call(Kind.BROADCAST, name, root=root_rank, process_set=process_set), [tensor])[0]


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
    n = process_set.size() or 1
    even = splits is None and tensor.dim() > 0 and tensor.shape[0] % n == 0  # else it is refused, or has its splits
    rows = (tensor.shape[0] // n,) * n if even else ops.rows_of(splits)
    made = _Collective.apply(Call(Kind.ALLTOALL, name, splits=rows, process_set=process_set), tensor)
    return made[0] if splits is None else made


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
    return grouped_reducescatter([tensor], name, compression, op, process_set, prescale_factor, postscale_factor)[0]


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
    call = Call(Kind.REDUCESCATTER, name, op, prescale_factor, postscale_factor, process_set=process_set)
    return _compressed(call, tensors, compression)


def _compressed(
    call: Call, tensors: Sequence[torch.Tensor], compression: Compressor = Compression.none
) -> list[torch.Tensor]:
    small = [compression.compress(tensor) for tensor in tensors]
    made = _Collective.apply(call, *(tensor for tensor, _ in small)) if small else []
    return [compression.decompress(tensor, ctx) for tensor, (_, ctx) in zip(made, small, strict=True)]


__all__ = [
    "allgather",
    "allreduce",
    "alltoall",
    "broadcast",
    "grouped_allgather",
    "grouped_allreduce",
    "grouped_reducescatter",
    "reducescatter",
]
