"""torch.compile around models and steps, each against an eager serial run, in buckets, with overlap where there can be.

With the inductor, which calls a C++ compiler for seconds, and in mixtures among the slow tests.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from overlap import SMALL, in_buckets, tower, train_overlapped
from serial import MAKES, assert_equal, batches, distributed, mse, part, twins
from torch import nn

import workbench.torch as hvd

# torch's compiler imports what torch itself has deprecated, and looks at the gradients of what it traces.
pytestmark = [
    pytest.mark.processes("torch compiles for one thread at a time, and says so to the whole process"),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
]
COMPILER = next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None)
INDUCTOR = pytest.param(
    "inductor",
    marks=[
        pytest.mark.slow,
        pytest.mark.skipif(COMPILER is None or sys.platform == "win32", reason="the inductor needs a C++ compiler"),
    ],
)
SLOW_TOO = pytest.param("aot_eager", marks=pytest.mark.slow)
compilers = pytest.mark.parametrize("backend", ["aot_eager", INDUCTOR])
tracers = pytest.mark.parametrize("backend", ["eager", SLOW_TOO, INDUCTOR])  # where it is what is traced that counts
slow_compilers = pytest.mark.parametrize("backend", [SLOW_TOO, INDUCTOR])


@pytest.fixture(autouse=True)
def afresh(job_with: Callable[..., None]) -> Iterator[None]:
    """Several buckets for a small model, and nothing compiled before."""
    job_with(**SMALL)
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.thorough
@pytest.mark.parametrize("backend", [pytest.param("eager", marks=pytest.mark.slow), "aot_eager", INDUCTOR])
def test_a_whole_model(backend: str, n: int) -> None:
    """One graph hands its gradients over at its end, to the buckets: right, and nothing to overlap with.

    The backend "eager" runs the traced operations one by one, so it overlaps.
    """
    train_overlapped(n, prepare=lambda model: torch.compile(model, backend=backend), overlaps=backend == "eager")


@compilers
def test_split_at_buckets(backend: str, n: int) -> None:
    """A model that is compiled in parts is reduced part by part, while backward runs."""
    train_overlapped(n, prepare=lambda model: torch.compile(model, backend=hvd.split_at_buckets(backend)))


@pytest.mark.thorough
@compilers
def test_block_by_block(backend: str, n: int) -> None:
    """So is one whose blocks are compiled one by one."""

    def prepare(model: Any) -> nn.Module:
        for block in model:
            block.compile(backend=backend)
        return model

    train_overlapped(n, prepare=prepare)


@pytest.mark.thorough
def test_a_backend_that_is_a_function(n: int) -> None:
    """split_at_buckets() takes what torch.compile takes, and without buckets there is nothing to split."""
    graphs: list[Any] = []

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    train_overlapped(n, prepare=lambda model: torch.compile(model, backend=hvd.split_at_buckets(count)))
    assert len(graphs) > 1


def test_without_buckets_nothing_is_split(n: int, job_with: Callable[..., None]) -> None:
    """With WORKBENCH_BUCKET_BYTES=0 each gradient travels by itself, and the model is one graph."""
    job_with(BUCKET_BYTES=0)
    graphs: list[Any] = []

    def count(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    torch.compile(tower(), backend=hvd.split_at_buckets(count))(torch.ones(1, 4, dtype=torch.float64))
    assert len(graphs) == 1


@pytest.mark.thorough
@pytest.mark.parametrize("sharded", [False, pytest.param(True, marks=pytest.mark.slow)])
@tracers
def test_a_compiled_step(backend: str, sharded: bool, n: int) -> None:
    """The wrapped optimizer's arithmetic is compiled; what waits for other ranks is not traced."""
    torch._dynamo.utils.counters.clear()
    train_overlapped(n, stepper=lambda one: torch.compile(one.step, backend=backend), sharded=sharded)
    assert torch._dynamo.utils.counters["stats"]["calls_captured"] > 0


@slow_compilers
def test_an_optimizer_that_was_compiled_before(backend: str, n: int) -> None:
    """Its compiled step is what the wrapper calls. Compiled Adam counts in float32, also without us."""

    def make(params: Any) -> torch.optim.Optimizer:
        optimizer = MAKES["Adam"](params)
        optimizer.step = torch.compile(optimizer.step, backend=backend)  # type: ignore[method-assign]
        return optimizer

    train_overlapped(n, make, its_make=MAKES["Adam"], tolerance=1e-5)


@pytest.mark.thorough
@tracers
def test_a_compiled_training_step(backend: str, n: int) -> None:
    """zero_grad, forward, backward and step in one compiled function."""
    model, serial = twins(tower)
    optimizer, reference = distributed(model), MAKES["SGD"](serial.parameters())

    @torch.compile(backend=backend)
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = mse(model, x, y)
        loss.backward()
        optimizer.step()
        return loss

    for x, y in batches(n, 5):
        step(part(x), part(y))
        reference.zero_grad()
        mse(serial, x, y).backward()
        reference.step()
        assert_equal(model, serial)
    assert n == 1 or in_buckets(model, optimizer)


@slow_compilers
def test_all_of_it_together(backend: str, n: int) -> None:
    """Compiled in parts, under bfloat16 autocast, with a fused optimizer: near the eager serial run's."""

    def loss(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return (model(x.float()) - y.float()).square().mean()

    train_overlapped(
        n,
        lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, fused=True),
        lambda: tower().float(),
        lambda model: torch.compile(model, backend=hvd.split_at_buckets(backend)),
        loss,
        tolerance=2**-8,
    )
