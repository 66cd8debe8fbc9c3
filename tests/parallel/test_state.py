"""The same start on every rank: parameters, optimizer state and objects, compared across ranks and with the root's."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch._dynamo  # torch does it in the first step, which would take up to 20 s of that test's minute
from thorough import diagonal
from torch import nn

import workbench.torch as hvd


def same(one: Any, other: Any) -> bool:
    """Equal in structure, dtypes, shapes and every bit."""
    if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
        return one.dtype is other.dtype and torch.equal(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)


def assert_root_s(now: Any, before: Any, root: int) -> None:
    """Every rank has now what the root had before."""
    wanted = hvd.allgather_object(before)[root]
    assert same(now, wanted), (now, wanted)


def model_of(rank: int) -> nn.Module:
    """A model with batch norm (integer buffers), another one on every rank."""
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))
    model(torch.randn(2 + rank, 3, 3, 3))  # the running statistics differ, too
    return model


def rooted(n: int) -> list[int]:
    """The roots to try: the first and the last rank."""
    return sorted({0, n - 1})


# --- parameters ---------------------------------------------------------------------------------------

TAKE: dict[str, Callable[[nn.Module], Any]] = {
    "state_dict": lambda model: model.state_dict(),
    "named_parameters": lambda model: model.named_parameters(),
    "list of pairs": lambda model: list(model.named_parameters()),
    "list of tensors": lambda model: list(model.parameters()),
    "dict": lambda model: dict(model.named_parameters()),
}


@pytest.mark.parametrize("what", TAKE)
def test_broadcast_parameters(what: str, rank: int, n: int) -> None:
    """In every form that Horovod takes, all ranks have the root's values afterwards, in the same memory."""
    for root in rooted(n):
        model = model_of(rank)
        before = copy.deepcopy(model.state_dict())
        places = [parameter.data_ptr() for parameter in model.parameters()]
        hvd.broadcast_parameters(TAKE[what](model), root_rank=root)
        if what == "state_dict":
            assert_root_s(model.state_dict(), before, root)
        else:
            assert_root_s([p.data for p in model.parameters()], [before[k] for k, _ in model.named_parameters()], root)
        assert places == [parameter.data_ptr() for parameter in model.parameters()]
        assert all(parameter.requires_grad and parameter.is_leaf for parameter in model.parameters())


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64], ids=str
)
def test_broadcast_parameters_of_any_layout(dtype: torch.dtype, rank: int, n: int) -> None:
    """Transposed, strided and channels_last memory, 0-d and empty tensors keep their strides and get the values."""
    generator = torch.Generator().manual_seed(rank)
    numbers = torch.randint(0, 2 if dtype is torch.bool else 100, (2, 3, 4, 5), generator=generator).to(dtype)
    tensors = {
        "transposed": numbers[0, 0].clone().t(),
        "strided": numbers.clone()[:, ::2, :, 1::2],
        "channels_last": numbers.clone().contiguous(memory_format=torch.channels_last),
        "row": numbers.clone()[1],
        "0-d": numbers[0, 0, 0, 0].clone(),
        "empty": torch.empty(0, 3, dtype=dtype),
    }
    before, strides = copy.deepcopy(tensors), {name: tensor.stride() for name, tensor in tensors.items()}
    hvd.broadcast_parameters(tensors, root_rank=n - 1)
    assert_root_s(tensors, before, n - 1)
    assert strides == {name: tensor.stride() for name, tensor in tensors.items()}


def test_broadcast_parameters_leaves_the_neighbours_alone(rank: int, n: int) -> None:
    """Of a tensor that is a part of a larger one, only this part changes."""
    whole = torch.full((4, 6), float(rank))
    hvd.broadcast_parameters({"part": whole[1:3, ::2]}, root_rank=n - 1)
    assert (whole[1:3, ::2] == n - 1).all()
    whole[1:3, ::2] = rank
    assert (whole == rank).all()


def test_broadcast_parameters_with_tied_weights(rank: int, n: int) -> None:
    """Two names for one parameter stay one parameter."""
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    model[1].weight = model[0].weight
    before = model[0].weight.detach().clone()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    assert model[0].weight is model[1].weight
    assert_root_s(model[0].weight.data, before, 0)


def test_broadcast_parameters_refuses_other_things() -> None:
    """A number, a single tensor or a dict of numbers is a ValueError at once, not a hang."""
    for wrong in (3, torch.ones(2), "model", {"lr": 0.1}, [1, 2], None):
        with pytest.raises(ValueError, match="broadcast_parameters"):
            hvd.broadcast_parameters(wrong, root_rank=0)


# --- optimizer state ----------------------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[Any, float], torch.optim.Optimizer]] = {
    "SGD": lambda p, lr: torch.optim.SGD(p, lr=lr),
    "SGD momentum": lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9, nesterov=True),
    "Adam": lambda p, lr: torch.optim.Adam(p, lr=lr, betas=(0.8, 0.9)),
    "Adam amsgrad": lambda p, lr: torch.optim.Adam(p, lr=lr, amsgrad=True),
    "AdamW": lambda p, lr: torch.optim.AdamW(p, lr=lr),
    "Adagrad": lambda p, lr: torch.optim.Adagrad(p, lr=lr),
    "RMSprop": lambda p, lr: torch.optim.RMSprop(p, lr=lr, centered=True, momentum=0.5),
    "LBFGS": lambda p, lr: torch.optim.LBFGS(p, lr=lr, max_iter=3),
}


def train(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int, seed: int) -> None:
    """A few steps that fill the optimizer's state; nothing is exchanged."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        data = torch.randn(4, 3, generator=generator)

        def closure(data: torch.Tensor = data) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(data).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)


@pytest.mark.parametrize(("name", "steps"), diagonal(OPTIMIZERS, [(3, 2), (3, 0), (0, 3), (0, 0)], most=4))
def test_broadcast_optimizer_state(name: str, steps: tuple[int, int], rank: int, n: int) -> None:
    """All ranks have the root's state and hyperparameters, used or fresh on either side, and go on alike."""
    for root in rooted(n):
        torch.manual_seed(rank)
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
        optimizer = OPTIMIZERS[name](model.parameters(), 0.01 * (rank + 1))
        train(model, optimizer, steps[0] if rank == root else steps[1], seed=rank)
        before = copy.deepcopy(optimizer.state_dict())
        hvd.broadcast_parameters(model.state_dict(), root_rank=root)
        hvd.broadcast_optimizer_state(optimizer, root_rank=root)
        assert_root_s(optimizer.state_dict(), before, root)
        assert optimizer.param_groups[0]["lr"] == 0.01 * (root + 1)
        train(model, optimizer, 2, seed=99)  # the same data on every rank
        assert_root_s(optimizer.state_dict(), optimizer.state_dict(), root)
        assert_root_s(model.state_dict(), copy.deepcopy(model.state_dict()), root)


def test_broadcast_optimizer_state_of_a_distributed_optimizer(rank: int, n: int) -> None:
    """A wrapped optimizer is filled as well, and several groups keep their own settings."""
    torch.manual_seed(rank)
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))
    groups = [
        {"params": model[0].parameters(), "lr": 0.1 + rank},
        {"params": model[1].parameters(), "weight_decay": 0.5},
    ]
    inner = torch.optim.Adam(groups, lr=0.2 + rank)
    if rank == 0:
        train(model, inner, 3, seed=0)
    before = copy.deepcopy(inner.state_dict())
    optimizer = hvd.DistributedOptimizer(inner, named_parameters=model.named_parameters())
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0, model=model)
    assert_root_s(optimizer.state_dict(), before, 0)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.2]
    train(model, optimizer, 2, seed=rank)
    assert_root_s(model.state_dict(), copy.deepcopy(model.state_dict()), 0)


def test_broadcast_optimizer_state_in_bfloat16(rank: int, n: int) -> None:
    """State in bfloat16 travels bit by bit."""
    torch.manual_seed(rank)
    model = nn.Linear(3, 4).to(torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    model(torch.randn(2, 3, dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict())
    hvd.broadcast_optimizer_state(optimizer, root_rank=n - 1)
    assert_root_s(optimizer.state_dict(), before, n - 1)
    assert optimizer.state[model.weight]["momentum_buffer"].dtype is torch.bfloat16


# --- objects ------------------------------------------------------------------------------------------


def test_broadcast_object(rank: int, n: int) -> None:
    """Any object arrives, from every root, large ones too; the root keeps its own."""
    for root in range(n):
        own = {"rank": rank, "nested": [None, (1.5, "text"), {rank}], "tensor": torch.full((2,), float(rank))}
        got = hvd.broadcast_object(own, root_rank=root)
        assert same({**got, "nested": []}, {"rank": root, "nested": [], "tensor": torch.full((2,), float(root))})
        assert got["nested"] == [None, (1.5, "text"), {root}]
        assert rank != root or got is own
    assert hvd.broadcast_object(list(range(200_000)) if rank == 0 else None) == list(range(200_000))
    assert hvd.broadcast_object("x" * 7, 0, name="named") == hvd.broadcast_object("x" * 7, 0, "named")
    assert hvd.broadcast_object(None, 0) is None


def test_code_travels(rank: int, n: int) -> None:
    """A lambda and a class made in a function, which the other ranks do not have, arrive and run."""
    if rank == 0:
        secret = 40

        class Local:
            def answer(self, more: int) -> int:
                return secret + more

        def recursive(k: int) -> int:
            return 1 if k == 0 else k * recursive(k - 1)

        sent: Any = (lambda x: x + secret, Local, Local(), recursive)
    else:
        sent = None
    function, kind, instance, recursive_too = hvd.broadcast_object(sent, root_rank=0)
    assert function(2) == 42
    assert kind().answer(2) == 42
    assert isinstance(instance, kind)
    assert recursive_too(5) == 120


def test_allgather_object(rank: int, n: int) -> None:
    """Every rank's object by rank, whatever their sizes; functions too."""
    assert hvd.allgather_object("x" * 1000 * rank) == ["x" * 1000 * r for r in range(n)]
    assert hvd.allgather_object({"rank": rank}, name="named") == [{"rank": r} for r in range(n)]
    assert [function() for function in hvd.allgather_object(lambda: rank * 10)] == [10 * r for r in range(n)]
    assert hvd.allgather_object(None) == [None] * n


def test_an_object_that_cannot_travel(rank: int, n: int) -> None:
    """An object that no pickler takes is an error where it is; after it the ranks are still in step."""
    import threading

    with pytest.raises(TypeError, match="pickle"):
        hvd.allgather_object(threading.Lock())
    assert hvd.allgather_object(rank) == list(range(n))
