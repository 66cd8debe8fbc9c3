"""Gradients through collectives, against the closed forms of Horovod's definitions.

The gradient of an allreduce is the allreduce of the gradients with the same op; of an allgather the average of
the gradients, cut to this rank's rows; of a broadcast the average on the root and zero elsewhere; of an
all-to-all the all-to-all back; of a reduce-scatter the allgather, times the number of ranks for Sum.
"""

from __future__ import annotations

import pytest
import torch
from thorough import quick

import workbench.torch as hvd


def weights(rank: int, *shape: int) -> torch.Tensor:
    """What a rank's loss multiplies the result with: its gradient there."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rank), dtype=torch.float64)


def leaf(*shape: int) -> torch.Tensor:
    """An input that wants a gradient."""
    return torch.randn(*shape, dtype=torch.float64, requires_grad=True)


def gradient(result: torch.Tensor, factor: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """The gradient of ``(result · factor).sum()`` with respect to ``tensor``."""
    (result * factor).sum().backward()
    assert tensor.grad is not None
    return tensor.grad


@pytest.mark.parametrize("dtype", quick([torch.float32, torch.bfloat16], torch.float32))
def test_a_large_result_can_be_changed_in_place(dtype: torch.dtype, rank: int, n: int) -> None:
    """Its memory was used before, and to autograd it is a tensor like another."""
    x = torch.full((1 << 22,), rank + 1.0, dtype=dtype, requires_grad=True)
    result = hvd.allreduce(x, name="in place", op=hvd.Sum)
    result += 1
    result.sum().backward()
    assert result.detach().unique().tolist() == [n * (n + 1) / 2 + 1]
    assert x.grad is not None
    assert x.grad.unique().tolist() == [n]


def test_a_gradient_that_is_not_contiguous(rank: int, n: int) -> None:
    """The gradient of a transposed or expanded result is no contiguous memory; it travels all the same."""
    for verb in (hvd.allreduce, hvd.allgather, lambda t: hvd.broadcast(t, 0), hvd.alltoall, hvd.reducescatter):
        tensor = leaf(2 * n, 3)
        verb(tensor).t().sum().backward()
        assert tensor.grad.shape == tensor.shape
        assert tensor.grad.isfinite().all()


def test_no_gradient_is_asked_for(rank: int, n: int) -> None:
    """Of a tensor without requires_grad the result has no history."""
    tensor = torch.ones(3)
    for result in (hvd.allreduce(tensor), hvd.allgather(tensor), hvd.broadcast(tensor, 0)):
        assert not result.requires_grad


def test_a_loss_over_all_ranks_trains_as_one(rank: int, n: int) -> None:
    """Two steps of a model whose loss uses the gathered batch (as contrastive losses do) equal the serial run.

    With Horovod's convention the gradient of the gathered features is averaged; the sum over ranks of the
    parameter gradients is then the gradient of the one loss.
    """
    data = torch.randn(3 * n, 4, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    start = torch.randn(4, 2, generator=torch.Generator().manual_seed(8), dtype=torch.float64)

    def loss(features: torch.Tensor) -> torch.Tensor:
        return (features @ features.t()).tanh().mean()

    serial, parallel = start.clone().requires_grad_(), start.clone().requires_grad_()
    for _ in range(2):
        (grad,) = torch.autograd.grad(loss(data @ serial), serial)
        (part,) = torch.autograd.grad(loss(hvd.allgather(data[3 * rank : 3 * rank + 3] @ parallel)), parallel)
        serial = (serial - 0.1 * grad).detach().requires_grad_()
        parallel = (parallel - 0.1 * hvd.allreduce(part, op=hvd.Sum)).detach().requires_grad_()
        assert torch.allclose(parallel, serial, rtol=0, atol=1e-12)
