"""Gradients through collectives, against the closed forms of Horovod's definitions.

The gradient of an allreduce is the allreduce of the gradients with the same op; of an allgather the average of
the gradients, cut to this rank's rows; of a broadcast the average on the root and zero elsewhere; of an
all-to-all the all-to-all back; of a reduce-scatter the allgather, times the number of ranks for Sum.
"""

from __future__ import annotations

import pytest
import torch

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


def test_allreduce(rank: int, n: int) -> None:
    """Sum: the sum of the ranks' gradients; Average: their average; scale factors count once more."""
    total = sum(weights(r, 5, 2) for r in range(n))
    for op, whole in ((hvd.Sum, total), (hvd.Average, total / n)):
        tensor = leaf(5, 2)
        assert torch.allclose(gradient(hvd.allreduce(tensor, op=op), weights(rank, 5, 2), tensor), whole, rtol=1e-12)
    tensor = leaf(5, 2)
    result = hvd.allreduce(tensor, op=hvd.Sum, prescale_factor=0.5, postscale_factor=3.0)
    assert torch.allclose(gradient(result, weights(rank, 5, 2), tensor), 1.5 * total, rtol=1e-12)


@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_allreduce_with_compression(compression: str, rank: int, n: int) -> None:
    """The gradient flows through the casts, in the input's dtype; whole numbers stay exact."""
    tensor = torch.full((3,), float(rank), requires_grad=True)
    result = hvd.allreduce(tensor, op=hvd.Sum, compression=getattr(hvd.Compression, compression))
    assert result.tolist() == [n * (n - 1) / 2] * 3
    grad = gradient(result, torch.full((3,), float(rank + 1)), tensor)
    assert grad.dtype is torch.float32
    assert grad.tolist() == [n * (n + 1) / 2] * 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_large_result_can_be_changed_in_place(dtype: torch.dtype, rank: int, n: int) -> None:
    """Its memory is the system's huge pages, and to autograd it is a tensor like another."""
    x = torch.full((1 << 22,), rank + 1.0, dtype=dtype, requires_grad=True)
    result = hvd.allreduce(x, name="in place", op=hvd.Sum)
    result += 1
    result.sum().backward()
    assert result.detach().unique().tolist() == [n * (n + 1) / 2 + 1]
    assert x.grad is not None
    assert x.grad.unique().tolist() == [n]


def test_grouped_allreduce(rank: int, n: int) -> None:
    """As for single tensors; also when the loss uses only some members of the group."""
    first, second = leaf(4), leaf(2, 3)
    one, two = hvd.grouped_allreduce([first, second], op=hvd.Sum)
    ((one * weights(rank, 4)).sum() + (two * weights(rank, 2, 3)).sum()).backward()
    assert torch.allclose(first.grad, sum(weights(r, 4) for r in range(n)), rtol=1e-12)
    assert torch.allclose(second.grad, sum(weights(r, 2, 3) for r in range(n)), rtol=1e-12)
    first, second = leaf(4), leaf(2, 3)
    one, _ = hvd.grouped_allreduce([first, second], op=hvd.Average)
    (one * weights(rank, 4)).sum().backward()
    assert torch.allclose(first.grad, sum(weights(r, 4) for r in range(n)) / n, rtol=1e-12)
    assert second.grad is None or not second.grad.any()


def test_allgather(rank: int, n: int) -> None:
    """This rank's rows of the average of all gradients, for rows that differ and for none at all."""
    counts = [2 * r for r in range(n)]  # rank 0 has none
    tensor = leaf(counts[rank], 3)
    whole = sum(weights(r, sum(counts), 3) for r in range(n)) / n
    start = sum(counts[:rank])
    grad = gradient(hvd.allgather(tensor), weights(rank, sum(counts), 3), tensor)
    assert torch.allclose(grad, whole[start : start + counts[rank]], rtol=1e-12)


def test_grouped_allgather(rank: int, n: int) -> None:
    """As for single tensors, each with its own rows; a member that is no float has no gradient."""
    counts = [[r, 2] for r in range(n)]  # of the first, rank 0 has none
    tensors = [leaf(counts[rank][0], 3), leaf(counts[rank][1])]
    one, two, whole = hvd.grouped_allgather([*tensors, torch.arange(rank + 1)])
    assert not whole.requires_grad
    rows = [sum(each[i] for each in counts) for i in range(2)]
    ((one * weights(rank, rows[0], 3)).sum() + (two * weights(rank, rows[1])).sum()).backward()
    for i, shape in enumerate(((rows[0], 3), (rows[1],))):
        total, start = sum(weights(r, *shape) for r in range(n)) / n, sum(each[i] for each in counts[:rank])
        assert torch.allclose(tensors[i].grad, total[start : start + counts[rank][i]], rtol=1e-12)
    assert hvd.grouped_allgather([]) == []


def test_broadcast(rank: int, n: int) -> None:
    """The average of all gradients on the root, zero elsewhere, from every root."""
    whole = sum(weights(r, 4) for r in range(n)) / n
    for root in range(n):
        tensor = leaf(4)
        grad = gradient(hvd.broadcast(tensor, root), weights(rank, 4), tensor)
        assert torch.allclose(grad, whole if rank == root else torch.zeros(4, dtype=torch.float64), rtol=1e-12)


def test_broadcast_of_what_is_not_finite(rank: int, n: int) -> None:
    """Elsewhere than on the root the gradient is zero, whatever it is there."""
    tensor = leaf(2)
    grad = gradient(hvd.broadcast(tensor, 0), torch.tensor([float("inf"), 1.0]), tensor)
    assert grad.tolist() == ([float("inf"), 1.0] if rank == 0 else [0.0, 0.0])


def test_alltoall(rank: int, n: int) -> None:
    """Every row's gradient comes back to where the row came from."""
    splits = [[(r + to) % 3 for to in range(n)] for r in range(n)]
    received = [sum(splits[r][to] for r in range(n)) for to in range(n)]
    back = []
    for to in range(n):  # my rows for rank ``to`` lie in its result behind those of the ranks before me
        start = sum(splits[r][to] for r in range(rank))
        back.append(weights(to, received[to], 2)[start : start + splits[rank][to]])
    tensor = leaf(sum(splits[rank]), 2)
    result, _ = hvd.alltoall(tensor, torch.tensor(splits[rank], dtype=torch.int32))
    assert torch.equal(gradient(result, weights(rank, received[rank], 2), tensor), torch.cat(back))


def test_alltoall_without_splits(rank: int, n: int) -> None:
    """The even form has a gradient as well."""
    tensor = leaf(2 * n, 2)
    wanted = torch.cat([weights(to, 2 * n, 2)[2 * rank : 2 * rank + 2] for to in range(n)])
    assert torch.equal(gradient(hvd.alltoall(tensor), weights(rank, 2 * n, 2), tensor), wanted)


def test_alltoall_of_other_rows_without_splits(rank: int, n: int) -> None:
    """Each rank cuts its own rows evenly; every row's gradient comes back, however many the others have."""
    received = n * (n + 1) // 2
    wanted = []
    for to in range(n):
        start = rank * (rank + 1) // 2
        wanted.append(weights(to, received, 2)[start : start + rank + 1])
    tensor = leaf((rank + 1) * n, 2)
    assert torch.equal(gradient(hvd.alltoall(tensor), weights(rank, received, 2), tensor), torch.cat(wanted))


def test_reducescatter(rank: int, n: int) -> None:
    """The ranks' gradients one behind the other; times the number of ranks for Sum. Rows are uneven."""
    rows = 2 * n + 1
    counts = [rows // n + (r < rows % n) for r in range(n)]
    gathered = torch.cat([weights(r, counts[r], 3) for r in range(n)])
    for op, factor in ((hvd.Average, 1), (hvd.Sum, n)):
        tensor = leaf(rows, 3)
        grad = gradient(hvd.reducescatter(tensor, op=op), weights(rank, counts[rank], 3), tensor)
        assert torch.allclose(grad, factor * gathered, rtol=1e-12)


def test_grouped_reducescatter(rank: int, n: int) -> None:
    """As for single tensors, each by itself."""
    shapes = [(2 * n + 1, 3), (n,)]
    for op, factor in ((hvd.Average, 1), (hvd.Sum, n)):
        tensors = [leaf(*shape) for shape in shapes]
        results = hvd.grouped_reducescatter(tensors, op=op)
        sum((each * weights(rank, *each.shape)).sum() for each in results).backward()
        for tensor, (rows, *tail) in zip(tensors, shapes, strict=True):
            counts = [rows // n + (r < rows % n) for r in range(n)]
            gathered = torch.cat([weights(r, counts[r], *tail) for r in range(n)])
            assert torch.allclose(tensor.grad, factor * gathered, rtol=1e-12)
    assert hvd.grouped_reducescatter([]) == []


def test_a_gradient_that_is_not_contiguous(rank: int, n: int) -> None:
    """The gradient of a transposed or expanded result is no contiguous memory; it travels all the same."""
    for verb in (hvd.allreduce, hvd.allgather, lambda t: hvd.broadcast(t, 0), hvd.alltoall, hvd.reducescatter):
        tensor = leaf(2 * n, 3)
        verb(tensor).t().sum().backward()
        assert tensor.grad.shape == tensor.shape
        assert tensor.grad.isfinite().all()


@pytest.mark.parametrize("op", [hvd.Min, hvd.Max, hvd.Product], ids=lambda op: op.value)
def test_an_op_without_gradient_says_so(op: object, rank: int, n: int) -> None:
    """Min, Max and Product raise in backward, on every rank, instead of giving something wrong."""
    tensor = leaf(3)
    result = hvd.allreduce(tensor, op=op)
    with pytest.raises(NotImplementedError, match="no gradient"):
        result.sum().backward()


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
