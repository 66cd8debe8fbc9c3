"""Where gradients lie, and what a steady step costs: no copy, no new memory, one announcement for each bucket."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from bag import Pair
from thorough import diagonal, quick
from torch import nn

import workbench.torch as hvd
from workbench.core.messages import Announce, Event, Request
from workbench.job.context import HOLDER
from workbench.torch.tensors import view

BUCKET_BYTES = 20_000


class Stack(nn.Module):
    """Layers that fill some buckets, one of them in channels_last and one in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3).to(memory_format=torch.channels_last)
        self.layers = nn.ModuleList(nn.Linear(40, 40) for _ in range(6))
        self.scale = nn.Parameter(torch.ones(5, dtype=torch.bfloat16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pictures = x[:, :27].reshape(-1, 3, 3, 3).contiguous(memory_format=torch.channels_last)
        total = self.conv(pictures).sum()
        for layer in self.layers:
            x = layer(x).tanh()
        return x.square().mean() + total.square() + self.scale.float().square().sum()


def trained(**options: Any) -> tuple[Stack, hvd.DistributedOptimizer]:
    """A model and its optimizer, after the three steps in which buckets are made and used first."""
    torch.manual_seed(1)
    model = Stack()
    inner = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), **options)
    for _ in range(3):
        step(model, optimizer)
    return model, optimizer


def step(model: Stack, optimizer: hvd.DistributedOptimizer, set_to_none: bool = True) -> None:
    """One step on numbers of this rank's own."""
    optimizer.zero_grad(set_to_none=set_to_none)
    model(torch.randn(4, 40)).backward()
    optimizer.step()


def buckets(optimizer: hvd.DistributedOptimizer) -> list[Any]:
    """The buckets that there are."""
    return list(dict.fromkeys(optimizer._distributed.grads.buckets.values()))


def place(tensor: torch.Tensor) -> int:
    """Where the tensor's first element lies in the shared memory of this rank."""
    flat = tensor.detach().as_strided((tensor.numel(),), (1,))
    return HOLDER.get().sets.everybody.shared.offset(view(flat))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("set_to_none", quick([True, False], True))
def test_gradients_lie_in_shared_memory(set_to_none: bool, n: int, job_with: Callable[..., None]) -> None:
    """After the first steps every gradient is a part of a bucket, in the same memory after every step."""
    job_with(BUCKET_BYTES=BUCKET_BYTES, EAGER_BYTES=0)
    model, optimizer = trained()
    places = None
    for _ in range(4):
        step(model, optimizer, set_to_none)
        now = {name: param.grad.data_ptr() for name, param in model.named_parameters()}
        assert places in (None, now)
        places = now
        for name, param in model.named_parameters():
            assert param.grad.stride() == param.stride(), name
            assert (place(param.grad) >= 0) == ("SHM" in HOLDER.get().sets.everybody.name), name
            array = optimizer._distributed.grads.buckets[name].array
            assert 0 <= param.grad.data_ptr() - array.ctypes.data < array.nbytes, name
    assert len(buckets(optimizer)) > 2


@pytest.mark.ranks(2)
def test_backward_writes_into_the_buckets_by_itself(n: int, job_with: Callable[..., None]) -> None:
    """With set_to_none=False a gradient is in its place already when backward has finished it: nothing is copied."""
    job_with(BUCKET_BYTES=BUCKET_BYTES, EAGER_BYTES=0)
    model, optimizer = trained()

    def written() -> list[int]:
        # Of the bucket's own tensors, which count what is done to them; autograd works on those in .grad.
        return [bucket.views[name]._version for name, bucket in optimizer._distributed.grads.buckets.items()]

    step(model, optimizer, set_to_none=False)
    before = written()
    step(model, optimizer, set_to_none=False)
    assert written() == before
    step(model, optimizer, set_to_none=True)
    assert all(now > then for now, then in zip(written(), before, strict=True))


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("nbytes", "sharded"), diagonal([BUCKET_BYTES, 1 << 20], [False, True]))
def test_one_announcement_for_each_bucket(
    nbytes: int, sharded: bool, n: int, job_with: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A steady step announces each bucket once, as a number; sharded also who has which gradient, and the parameters.

    After some steps the progress of the ranks is compared: a request in full carries it.
    """
    job_with(BUCKET_BYTES=nbytes, EAGER_BYTES=0, SLOTS=0)
    model, optimizer = trained(sharded=sharded)
    control: Any = HOLDER.get().engine._control
    sent: list[Announce] = []
    send = control.send

    def note(event: Event) -> None:
        if isinstance(event, Announce):
            sent.append(event)
        send(event)

    step(model, optimizer)
    monkeypatch.setattr(control, "send", note)
    for _ in range(3):
        sent.clear()
        step(model, optimizer)
        messages = list(sent)
        items = [item for event in messages for item in event.items]
        extra = 1 + len(buckets(optimizer)) if sharded else 0  # the parameters of each are gathered
        assert len(items) == len(buckets(optimizer)) + extra
        in_full = [item for item in items if isinstance(item, Request)]
        assert all(item.progress for item in in_full)
        assert len(in_full) <= 1
        assert len(messages) <= len(items)


@pytest.mark.ranks(2)
def test_a_step_makes_no_new_memory(n: int, in_memory: bool, job_with: Callable[..., None]) -> None:
    """However many steps, and however often optimizers are made for a model, no more shared memory is taken."""
    if not in_memory:
        pytest.skip("needs shared memory")
    job_with(BUCKET_BYTES=BUCKET_BYTES, EAGER_BYTES=0)
    node = HOLDER.get().sets.everybody.shared._node

    def next_place() -> int:
        return int(node.own.offset(node.own.allocate(100)))

    model, optimizer = trained()
    steady = next_place()
    for _ in range(3):
        for _ in range(3):
            step(model, optimizer)
            assert next_place() == steady
        model.zero_grad()
        inner = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        optimizer = hvd.DistributedOptimizer(inner, model.named_parameters())
        for _ in range(3):
            step(model, optimizer)
        assert next_place() <= steady


def test_large_buckets_equal_the_serial_run(n: int) -> None:
    """Buckets that are longer than a segment are reduced where they lie, and every element is right."""
    wide = nn.Linear(700, 700, bias=False, dtype=torch.float64)
    nn.init.zeros_(wide.weight)
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(wide.parameters(), lr=1.0), wide.named_parameters())
    mine = torch.from_numpy(np.random.default_rng(hvd.rank()).integers(-8, 8, (700, 700)).astype(np.float64))
    mean = sum(np.random.default_rng(rank).integers(-8, 8, (700, 700)) for rank in range(n)) / n
    for step_ in range(4):
        optimizer.zero_grad(set_to_none=bool(step_ % 2))
        (wide.weight * mine * (step_ + 1)).sum().backward()
        optimizer.step()
        np.testing.assert_allclose(wide.weight.grad.numpy(), mean * (step_ + 1), rtol=0, atol=1e-12)


def test_a_dropped_optimizer_leaves_its_gradients(n: int) -> None:
    """A gradient that somebody keeps is still the same when model and optimizer are gone."""
    pair = Pair(n)
    for i in range(3):
        pair.step(i)
    kept = pair.bag.get_parameter("always").grad
    expected = pair.twin.get_parameter("always").grad.clone()
    del pair
    hvd.allreduce(torch.ones(100_000))
    assert torch.allclose(kept, expected, rtol=0, atol=1e-12)
