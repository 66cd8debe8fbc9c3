"""torch's tensors, and gradients that come all at once, on GPUs: what the frameworks' folders hand over, and get back.

torch has no GPU here. Its CPU tensors are taken for tensors on the stand-in's GPUs: their addresses are handed over,
and what is done with these is queued on streams. torch itself computes at once, so a wait also waits for the GPU.
"""

from __future__ import annotations

import copy
import ctypes
from typing import Any

import numpy as np
import pytest
import torch
from gpu_world import WAYS, run
from thorough import once_more

import workbench as np_hvd
import workbench.torch as hvd
from workbench.job.context import HOLDER
from workbench.torch import tensors
from workbench.training.gradient_list import GradientList
from workbench.transport.gpu import device as gpu

pytestmark = pytest.mark.long

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.int32, torch.bool]


@pytest.fixture
def torch_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every torch tensor counts as one on this rank's GPU."""
    join = gpu.Arrival.join

    def joined(self: gpu.Arrival) -> None:
        join(self)
        if self.done is not None:
            self.done.synchronize()  # ``Gpu.wait`` is for the thread of the engine

    def over(array: Any, like: torch.Tensor) -> torch.Tensor:
        if not array.size:
            return torch.empty(array.shape, dtype=like.dtype)
        there: Any = (ctypes.c_uint8 * array.nbytes).from_address(array.data.ptr)
        there.owner = array  # lives as long as the tensor
        return torch.frombuffer(there, dtype=torch.uint8).view(like.dtype).reshape(array.shape)

    monkeypatch.setattr(tensors, "_gpu_of", lambda tensor: HOLDER.get().sets.gpu)
    monkeypatch.setattr(tensors, "TorchCaller", lambda gpu_of_rank: gpu.CUPY)
    monkeypatch.setattr(tensors, "_over_gpu", over)
    monkeypatch.setattr(gpu.Arrival, "join", joined)


@pytest.mark.parametrize(
    ("way", "dtype"),
    [
        ("nccl", torch.bfloat16),
        ("staged", torch.bool),
        ("mpi", torch.int32),
        *(once_more(way, dtype) for way in WAYS for dtype in DTYPES),
    ],
    ids=str,
)
@pytest.mark.usefixtures("torch_on_gpus")
def test_verbs_of_torch(way: str, dtype: torch.dtype) -> None:
    """Each verb gives torch tensors of the same dtype, in place and not, alone and as a group."""

    def mine(rank: int, rows: int = 2) -> torch.Tensor:
        return torch.tensor([[rank, 1]] * rows).to(dtype)

    def check() -> None:
        rank, total = hvd.rank(), (mine(0).float() + mine(1).float()).to(dtype)
        x = mine(rank)
        assert torch.equal(hvd.allreduce(x, op=hvd.Sum), total)
        assert torch.equal(x, mine(rank))
        assert hvd.allreduce_(x, op=hvd.Sum) is x
        assert torch.equal(x, total)
        group = hvd.grouped_allreduce([mine(rank), mine(rank, 3)], op=hvd.Sum)
        assert [tuple(each.shape) for each in group] == [(2, 2), (3, 2)]
        assert all(torch.equal(each[0], total[0]) for each in group)
        assert torch.equal(hvd.allgather(mine(rank, rank + 1)), torch.cat([mine(0, 1), mine(1, 2)]))
        assert torch.equal(hvd.broadcast(mine(rank), 1), mine(1))
        rows, counts = hvd.alltoall(mine(rank, 3), torch.tensor([1, 2], dtype=torch.int32))
        assert torch.equal(rows, torch.cat([mine(0, rank + 1), mine(1, rank + 1)]))
        assert counts.tolist() == [rank + 1] * 2
        assert torch.equal(hvd.reducescatter(mine(rank, 3), op=hvd.Sum), total[:1].expand(2 - rank, 2))

    run(2, check, way)


@pytest.mark.parametrize(
    ("way", "dtype", "within"),
    [
        ("nccl", torch.float32, 1e-6),
        ("staged", torch.bfloat16, 2e-2),
        *(once_more(way, torch.float32, 1e-6) for way in ("staged", "mpi")),
        *(once_more(way, torch.bfloat16, 2e-2) for way in ("nccl", "mpi")),
    ],
    ids=str,
)
@pytest.mark.usefixtures("torch_on_gpus")
def test_distributed_optimizer(way: str, dtype: torch.dtype, within: float) -> None:
    """Five steps on two ranks are five with the whole batch; from the second on one bucket is reduced in place."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3)
    base = torch.nn.Sequential(*layers).to(dtype)
    batches = torch.randn(5, 8, 6).to(dtype)

    def train(model: torch.nn.Module, optimizer: Any, part: slice) -> list[np.ndarray]:
        for batch in batches:
            optimizer.zero_grad()
            model(batch[part]).square().mean().backward()
            optimizer.step()
        return [param.detach().float().numpy() for param in model.parameters()]

    def rank() -> tuple[list[np.ndarray], bool]:
        model = copy.deepcopy(base)
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
        trained = train(model, optimizer, slice(4 * hvd.rank(), 4 * hvd.rank() + 4))
        (bucket,) = set(optimizer._distributed.grads.buckets.values())
        low = bucket.flat.data_ptr()
        high = low + bucket.flat.nbytes
        return trained, all(low <= param.grad.data_ptr() < high for param in model.parameters())

    ((first, inside), (second, also)), log = run(2, rank, way)
    assert inside
    assert also
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    model = copy.deepcopy(base)
    serial = train(model, torch.optim.SGD(model.parameters(), lr=0.1), slice(None))
    assert max(float(np.abs(a - b).max()) for a, b in zip(first, serial, strict=True)) <= within
    # In the first step four gradients travel by their names, as it happens in one batch or more; then one bucket.
    assert log.launches() <= 4
    assert log.count()["allReduce"] in (range(5, 9) if way == "nccl" else [0])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", [0, *map(once_more, range(1, 5))])
def test_gradients_that_come_at_once(way: str, seed: int) -> None:
    """Dense on the GPU, dense on the host and sparse on the GPU, over two passes: each is right, where it came from."""

    def steps() -> None:
        import cupy

        rank, reduce = np_hvd.rank(), GradientList(["a", "b", "c"], passes=2)
        for step in range(3):
            for passed in range(2):
                a = cupy.full((3, 2), rank + passed + step, dtype="float32")
                rows = cupy.full((rank + 1, 2), 1.0 + step, dtype="float32"), cupy.arange(rank + 1)
                result = reduce([a, np.full(4, rank + 1.0), rows])
            mean, host, (values, places) = result
            assert mean.tolist() == [[2 * step + 2.0] * 2] * 3
            assert isinstance(host, np.ndarray)
            assert host.tolist() == [3.0] * 4
            assert values.tolist() == [[(1.0 + step) / 2] * 2] * 6
            assert places.tolist() == [0, 0, 0, 1, 0, 1]

    run(2, steps, way, seed=seed)
