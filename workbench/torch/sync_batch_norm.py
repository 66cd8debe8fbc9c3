"""Batch normalisation with the statistics of all ranks' batches, as if one rank had them all.

A rank with few samples has noisy statistics, and with one sample none. Per channel, over all ranks, with m_r values on
rank r and M = Σ m_r::

    forward     mean = Σ m_r·mean_r / M        var = Σ (s_r + m_r·(mean_r - mean)²) / M        s_r = Σ (x - mean_r)²
                y = (x - mean) / √(var + eps) · weight + bias

    backward    dx = weight/σ · (dy - Σdy / M - (x - mean)/σ² · Σ dy·(x - mean) / M)           sums over all ranks
                dweight = Σ dy·(x - mean)/σ        dbias = Σ dy                                sums over this rank

Two collectives per step and layer: forward gathers (m_r, mean_r, s_r), 2C+1 numbers per rank for C channels; backward
sums 2C numbers. Sums of squares would fit into an allreduce, too, but lose all digits where the mean is large.

The loss that is derived is the sum of all ranks' losses: a rank's ``dx`` holds what its samples do to the others'
losses by way of the statistics. ``dweight`` and ``dbias`` stay this rank's share, as those of any other layer:
DistributedOptimizer averages them (or sums them up, with ``op=Sum``), and reducing them here would do it twice. So
have Horovod and torch.nn.SyncBatchNorm.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import Function, once_differentiable

from workbench.errors import MismatchError
from workbench.job import api
from workbench.job.api import Sum
from workbench.torch import ops, verbs


class SyncBatchNorm(torch.nn.modules.batchnorm._BatchNorm):
    """``torch.nn.BatchNorm1d``, ``2d`` and ``3d`` over all ranks, on CPU and GPU; the batches may differ in size.

    In eval mode, and in a world of one, it is the plain batch norm and does not communicate. All ranks must run
    the layer equally often, forward and backward; a rank without data runs it on an empty batch.

    Args:
        num_features: C, of inputs of shape (N, C) or (N, C, …).
        eps: added to the variance.
        momentum: weight of the new batch in the running statistics; None for the average over all batches.
        affine: learn a weight and a bias per channel.
        track_running_stats: keep running statistics for eval mode; otherwise that takes the rank's own batch.

    Raises:
        ValueError: in training, the ranks have only one value per channel between them, on every rank.
        MismatchError: in training, channels or dtypes differ between ranks, on every rank.

    Example:
        >>> import workbench.torch as hvd
        >>> hvd.init()
        >>> SyncBatchNorm(1, affine=False)(torch.tensor([[1.0], [3.0]])).round(decimals=3)
        tensor([[-1.],
                [ 1.]])
        >>> hvd.shutdown()
    """

    def _check_input_dim(self, input: torch.Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"expected at least 2D input (got {input.dim()}D input)")
        if input.shape[1] != self.num_features:
            raise ValueError(f"expected input with {self.num_features} channels (got shape {list(input.shape)})")

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Normalise ``input``, shape (N, C, …), by the statistics of all ranks' inputs."""
        self._check_input_dim(input)
        if not self.training or api.size() == 1:
            # The base class does all the rest, counting batches included.
            return super().forward(input)
        output, mean, var, total = _Normalize.apply(input, self.weight, self.bias, self.eps)
        self._track(mean, var, total)
        return output  # type: ignore[no-any-return]

    def _track(self, mean: torch.Tensor, var: torch.Tensor, total: float) -> None:
        """Move the running statistics; their variance is the unbiased one, over M - 1."""
        if self.running_mean is None or self.running_var is None or self.num_batches_tracked is None:
            return
        with torch.no_grad():
            self.num_batches_tracked.add_(1)
            share = 1.0 / float(self.num_batches_tracked) if self.momentum is None else self.momentum
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
            self.running_var.lerp_((var * (total / (total - 1))).to(self.running_var.dtype), share)


class _Normalize(Function):
    """The formulas of the module, with a backward of their own: autograd cannot see the other ranks."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: Any, bias: Any, eps: float) -> Any:
        wide = _wide(x)
        mean, var, total = _statistics(wide)
        ctx.save_for_backward(x, weight, mean, (var + eps).rsqrt())
        ctx.total = total
        ctx.mark_non_differentiable(mean, var)
        y = F.batch_norm(wide, mean, var, _as(wide, weight), _as(wide, bias), training=False, eps=eps)
        return y.to(x.dtype), mean, var, total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: torch.Tensor, *_: Any) -> Any:
        x, weight, mean, inverse = ctx.saved_tensors
        dy, centred = _wide(dy), _wide(x) - _channels(mean, x)
        over = [dim for dim in range(x.dim()) if dim != 1]
        sums = torch.cat([dy.sum(over), (dy * centred).sum(over)])
        d_bias, d_weight = sums[: len(mean)], sums[len(mean) :] * inverse
        dx = None
        if ctx.needs_input_grad[0]:
            handle = verbs.allreduce_async(sums, op=Sum, name=f"sync_batch_norm.backward.{len(mean)}")
            dy_mean, dot_mean = (ops.synchronize(handle) / ctx.total).chunk(2)
            scale = inverse if weight is None else inverse * weight
            dx = (dy - _channels(dy_mean, x)) - centred * _channels(dot_mean * inverse * inverse, x)
            dx = (dx * _channels(scale, x)).to(x.dtype)
        if weight is None:
            return dx, None, None, None
        return dx, d_weight.to(weight.dtype), d_bias.to(weight.dtype), None


def _statistics(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, float]:
    """Mean and (biased) variance per channel over all ranks, and the number of values per channel."""
    channels, count = x.shape[1], x.numel() // x.shape[1]
    row = x.new_zeros(1, 2 * channels + 1)
    if count:
        over = [dim for dim in range(x.dim()) if dim != 1]
        var, mean = torch.var_mean(x.detach(), over, correction=0)
        row[0] = torch.cat([x.new_tensor([count]), mean, var * count])
    # Not a name per layer: all ranks run the layers in the same order, one after the other. Nor one per number of
    # channels, or ranks whose layers differ would wait for each other.
    try:
        rows = ops.synchronize(verbs.allgather_async(row, "sync_batch_norm.forward"))
    except MismatchError as error:
        raise MismatchError(
            "The ranks run different SyncBatchNorm layers, or in different dtypes. Build one model on all ranks. "
            f"Each rank sent 2C+1 numbers for C channels.\n{error}"
        ) from error
    counts, means, squares = rows.split([1, channels, channels], dim=1)
    total = float(counts.sum())
    if total < 2:
        raise ValueError(f"Expected more than 1 value per channel when training, but all ranks have {total:g} together")
    mean = (counts * means).sum(0) / total
    var = (squares + counts * (means - mean) ** 2).sum(0) / total
    return mean, var, total


def _wide(x: torch.Tensor) -> torch.Tensor:
    """Half precision as float32: sums over a batch need the digits."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def _as(x: torch.Tensor, parameter: torch.Tensor | None) -> torch.Tensor | None:
    return None if parameter is None else parameter.to(x.dtype)


def _channels(values: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """One value per channel, in a shape that goes with ``x``."""
    return values.view(1, -1, *[1] * (x.dim() - 2))
