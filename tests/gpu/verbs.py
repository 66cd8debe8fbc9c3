"""Every verb, on every dtype and many shapes, against what torch computes on the CPU.

A program that each rank runs: ``python tests/gpu/verbs.py`` prints a line of JSON, the number of checks and what was
wrong. What the ranks give are small whole numbers, so no order of adding them rounds, and every rank knows them all.
With ``--device cpu`` it needs no GPU; then numpy's arrays stand for cupy's.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch

import workbench
import workbench.torch as hvd
from workbench.collectives.ring import chunk_lengths
from workbench.errors import UnsupportedTensorError
from workbench.job.context import HOLDER

Shape = tuple[int, ...]
DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
}
SHAPES: list[Shape] = [(), (0,), (1,), (7,), (0, 3), (3, 5), (257, 129)]
ROWS: list[Shape] = [shape for shape in SHAPES if shape]


@dataclass
class World:
    """The ranks as one of them sees them, and what was wrong. A wrong result ends nothing: the others go on as well.

    Args:
        device: ``cuda:0`` or so, or ``cpu``.
        dtype: of what travels now.
    """

    device: torch.device
    dtype: torch.dtype = torch.float32
    checks: int = 0
    wrong: list[str] = field(default_factory=list)

    @property
    def ranks(self) -> range:
        """All of them."""
        return range(hvd.size())

    @property
    def floats(self) -> bool:
        """Is the dtype one of floating-point numbers?"""
        return self.dtype.is_floating_point

    @property
    def ops(self) -> list[hvd.ReduceOp]:
        """What can be done with the dtype."""
        always = [hvd.Sum, hvd.Min, hvd.Max, hvd.Product]
        return always if self.dtype is torch.bool else [hvd.Average, *always]

    def given(self, rank: int, shape: Shape, salt: int = 0) -> torch.Tensor:
        """What a rank gives, on the CPU."""
        numbers = (torch.arange(prod(shape)) * 3 + 2 * rank + salt) % 5
        if self.dtype is torch.bool:
            numbers = numbers % 2
        elif self.dtype is not torch.uint8:
            numbers = numbers - 2
        return numbers.to(self.dtype).reshape(shape)

    def mine(self, shape: Shape, salt: int = 0) -> torch.Tensor:
        """What this rank gives, on the device."""
        return self.given(hvd.rank(), shape, salt).to(self.device)

    def reduced(self, shape: Shape, op: hvd.ReduceOp, salt: int = 0) -> torch.Tensor:
        """What all ranks' tensors become, by torch on the CPU."""
        parts = torch.stack([self.given(rank, shape, salt) for rank in self.ranks])
        if self.dtype is torch.bool:
            return parts.any(0) if op in (hvd.Sum, hvd.Max) else parts.all(0)
        wide = parts.to(torch.float64 if self.floats else torch.int64)
        if op is hvd.Average:
            total = wide.sum(0)
            return (total / len(parts) if self.floats else total.div(len(parts), rounding_mode="trunc")).to(self.dtype)
        combine = {hvd.Sum: torch.sum, hvd.Min: torch.amin, hvd.Max: torch.amax, hvd.Product: torch.prod}[op]
        return combine(wide, 0).to(self.dtype)

    def same(self, what: str, got: Any, wanted: torch.Tensor, beside: bool = True, **tolerance: float) -> None:
        """Note it where a result is another than it should be: dtype, shape, device or values."""
        self.checks += 1
        found = []
        if not isinstance(got, torch.Tensor) or got.device != self.device:
            found.append(f"{getattr(got, 'device', type(got))} instead of {self.device}")
        try:
            torch.testing.assert_close(got.detach().cpu(), wanted, equal_nan=True, **tolerance)
        except (AssertionError, AttributeError) as error:
            found.append(" ".join(str(error).split())[:300])
        if not beside:
            found.append("not the memory that it should be")
        self.wrong += [f"{what}, {self.dtype}, {tuple(wanted.shape)}: {each}" for each in found]


def allreduce(world: World) -> None:
    """Into new memory, in place, and by a handle; the input stays as it is."""
    for shape in SHAPES:
        for op in world.ops:
            x, wanted = world.mine(shape), world.reduced(shape, op)
            world.same(f"allreduce {op.name}", hvd.allreduce(x, op=op), wanted)
            world.same("the input of allreduce", x, world.given(hvd.rank(), shape))
            world.same(f"allreduce_async {op.name}", hvd.synchronize(hvd.allreduce_async(x, op=op)), wanted)
            got = hvd.allreduce_(x, op=op)
            world.same(f"allreduce_ {op.name}", x, wanted, beside=got is x)


def scaled(world: World) -> None:
    """With factors before and after. Powers of two, which no rounding and no cutting shows."""
    if world.dtype is torch.bool:
        return
    for shape in ROWS:
        factors = {"prescale_factor": 4.0, "postscale_factor": 0.25}
        got = hvd.allreduce(world.mine(shape), op=hvd.Sum, **factors)
        world.same("allreduce with factors", got, world.reduced(shape, hvd.Sum))


def grouped_allreduce(world: World) -> None:
    """Many at once, which are packed into one buffer; odd lengths, and an empty one among them."""
    shapes: list[Shape] = [*SHAPES, (13,), (2, 3, 5), (4097,)]
    for op in world.ops:
        tensors = [world.mine(shape, i) for i, shape in enumerate(shapes)]
        wanted = [world.reduced(shape, op, i) for i, shape in enumerate(shapes)]
        for got, want in zip(hvd.grouped_allreduce(tensors, op=op), wanted, strict=True):
            world.same(f"grouped_allreduce {op.name}", got, want)
        for got, tensor, want in zip(hvd.grouped_allreduce_(tensors, op=op), tensors, wanted, strict=True):
            world.same(f"grouped_allreduce_ {op.name}", tensor, want, beside=got is tensor)


def adasum(world: World) -> None:
    """Of the same vector on every rank that vector comes out."""
    if not world.floats or hvd.size() & (hvd.size() - 1):
        return
    for shape in [(7,), (257, 129)]:
        x = world.given(0, shape).to(world.device)
        world.same("allreduce Adasum", hvd.allreduce(x, op=hvd.Adasum), world.given(0, shape))


def broadcast(world: World) -> None:
    """From the first and from the last rank, into new memory and in place."""
    for shape in SHAPES:
        for root in {0, hvd.size() - 1}:
            x, wanted = world.mine(shape), world.given(root, shape)
            world.same("broadcast", hvd.broadcast(x, root), wanted)
            world.same("the input of broadcast", x, world.given(hvd.rank(), shape))
            got = hvd.broadcast_(x, root)
            world.same("broadcast_", x, wanted, beside=got is x)


def allgather(world: World) -> None:
    """Equally many rows of all ranks, and of each another number; one tensor, and two as a group."""
    for shape in ROWS:
        for more in (0, 1):
            shapes = [(shape[0] + more * rank, *shape[1:]) for rank in world.ranks]
            x, y = (world.mine(shapes[hvd.rank()], salt) for salt in (0, 1))
            first, second = (torch.cat([world.given(r, shapes[r], salt) for r in world.ranks]) for salt in (0, 1))
            world.same("allgather", hvd.allgather(x), first)
            for got, wanted in zip(hvd.grouped_allgather([x, y]), (first, second), strict=True):
                world.same("grouped_allgather", got, wanted)


def alltoall(world: World) -> None:
    """Evenly, and with splits, some of which are 0."""
    n, me = hvd.size(), hvd.rank()
    for shape in ROWS:
        even = (n * shape[0], *shape[1:])
        wanted = torch.cat([world.given(rank, even)[me * shape[0] : (me + 1) * shape[0]] for rank in world.ranks])
        world.same("alltoall", hvd.alltoall(world.mine(even)), wanted)
        splits = [[(rank + to + shape[0]) % 3 for to in world.ranks] for rank in world.ranks]  # [sender][receiver]
        shapes = [(sum(mine), *shape[1:]) for mine in splits]
        got, received = hvd.alltoall(world.mine(shapes[me]), torch.tensor(splits[me], dtype=torch.int32))
        wanted = torch.cat([world.given(rank, shapes[rank]).split(splits[rank])[me] for rank in world.ranks])
        world.same("alltoall with splits", got, wanted)
        if received.tolist() != [splits[rank][me] for rank in world.ranks]:
            world.wrong.append(f"alltoall: received splits {received.tolist()}")


def reducescatter(world: World) -> None:
    """Of any number of rows; one tensor, and two as a group. The input stays as it is."""
    for shape in ROWS:
        rows = chunk_lengths(shape[0], hvd.size())
        for op in world.ops:
            x, y = (world.mine(shape, salt) for salt in (0, 1))
            first, second = (world.reduced(shape, op, salt).split(rows)[hvd.rank()] for salt in (0, 1))
            world.same(f"reducescatter {op.name}", hvd.reducescatter(x, op=op), first)
            world.same("the input of reducescatter", x, world.given(hvd.rank(), shape))
            for got, wanted in zip(hvd.grouped_reducescatter([x, y], op=op), (first, second), strict=True):
                world.same(f"grouped_reducescatter {op.name}", got, wanted)


def special(world: World) -> None:
    """What is no number is not hidden, and what is not whole is averaged within the dtype's precision."""
    if not world.floats:
        return
    x = torch.ones(9, dtype=world.dtype)
    if hvd.rank() == 0:
        x[3] = float("nan")
    wanted = torch.ones(9, dtype=world.dtype)
    wanted[3] = float("nan")
    for op in (hvd.Min, hvd.Max, hvd.Average, hvd.Product):
        world.same(f"NaN, {op.name}", hvd.allreduce(x.to(world.device), op=op), wanted)
    parts = [torch.rand(1001, generator=torch.Generator().manual_seed(rank)).to(world.dtype) for rank in world.ranks]
    mean = torch.stack(parts).double().mean(0).to(world.dtype)
    rounded = 4 * torch.finfo(world.dtype).eps
    world.same("a mean", hvd.allreduce(parts[hvd.rank()].to(world.device)), mean, rtol=rounded, atol=0.0)


def mixed(world: World) -> None:
    """Several dtypes in one group, with a neighbour on the CPU."""
    before, tensors, wanted = world.dtype, [], []
    for dtype in dict.fromkeys((before, torch.float32, torch.bfloat16, torch.int16)):
        world.dtype = dtype
        tensors.append(world.mine((5, 3)))
        wanted.append(world.reduced((5, 3), hvd.Sum))
    world.dtype = before
    on_cpu = hvd.allreduce_async(torch.ones(3), op=hvd.Sum, name="on the CPU")
    for got, want in zip(hvd.grouped_allreduce(tensors, op=hvd.Sum), wanted, strict=True):
        world.same("mixed group", got, want)
    if hvd.synchronize(on_cpu).tolist() != [hvd.size()] * 3:
        world.wrong.append("a tensor on the CPU beside them")


def process_set(world: World) -> None:
    """Of the last rank alone, and gone afterwards."""
    last = hvd.size() - 1
    if last == 0 or world.dtype is not torch.float32:
        return
    alone = hvd.add_process_set([last])
    if alone.included():
        world.same("a set of one", hvd.allreduce(world.mine((7,)), process_set=alone), world.given(last, (7,)))
    hvd.remove_process_set(alone)
    world.same("after the set", hvd.allreduce(world.mine((7,)), op=hvd.Sum), world.reduced((7,), hvd.Sum))


def refused(world: World) -> None:
    """A tensor that is not contiguous is refused, with what to do about it; nothing is left in flight."""
    for begin in (hvd.allreduce_, lambda x: hvd.broadcast_(x, 0), hvd.allgather, hvd.reducescatter, hvd.alltoall):
        world.checks += 1
        try:
            begin(world.mine((4, 6)).t())
            world.wrong.append(f"{world.dtype}: a transposed tensor was taken")
        except UnsupportedTensorError as error:
            if "contiguous" not in str(error):
                world.wrong.append(str(error))


def arrays(world: World) -> None:
    """cupy's own arrays, by the verbs of ``import workbench``; any layout."""
    if world.dtype is torch.bfloat16:
        return
    if world.device.type == "cpu":
        import numpy as library
    else:
        import cupy as library

    def of(tensor: torch.Tensor) -> Any:
        return library.asarray(tensor.numpy())

    def same(what: str, got: Any, wanted: torch.Tensor) -> None:
        on_host = got if world.device.type == "cpu" else got.get()
        world.same(f"array: {what}", torch.from_numpy(on_host).to(world.device), wanted)

    n, me = hvd.size(), hvd.rank()
    for shape in [(0,), (7,), (6, 5)]:
        mine = of(world.given(me, shape))
        for op in world.ops:
            same(f"allreduce {op.name}", workbench.allreduce(mine, op=op), world.reduced(shape, op))
            wanted = world.reduced(shape, op).split(chunk_lengths(shape[0], n))[me]
            same(f"reducescatter {op.name}", workbench.reducescatter(mine, op=op), wanted)
        same("broadcast", workbench.broadcast(mine, n - 1), world.given(n - 1, shape))
        same("allgather", workbench.allgather(mine), torch.cat([world.given(rank, shape) for rank in world.ranks]))
        even = (2 * n, *shape[1:])
        got, _ = workbench.alltoall(of(world.given(me, even)))
        same("alltoall", got, torch.cat([world.given(rank, even).split(2)[me] for rank in world.ranks]))
    across = of(world.given(me, (6, 5))).T
    same("transposed", workbench.allreduce(across, op=hvd.Sum), world.reduced((6, 5), hvd.Sum).t())


CHECKS: dict[str, Callable[[World], None]] = {
    check.__name__: check
    for check in (
        *(allreduce, scaled, grouped_allreduce, adasum, broadcast, allgather, alltoall, reducescatter),
        *(special, mixed, process_set, refused, arrays),
    )
}


def every_check(world: World) -> Iterator[str]:
    """All checks on all dtypes; says before each what comes."""
    for name, check in CHECKS.items():
        for dtype_name, dtype in DTYPES.items():
            yield f"{name} {dtype_name}"
            world.dtype = dtype
            check(world)


def here(device: str = "cuda") -> torch.device:
    """This rank's device, by its local rank; it becomes torch's and cupy's current one."""
    if device == "cpu":
        return torch.device("cpu")
    found = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(found)
    import cupy

    cupy.cuda.Device(found.index).use()
    return found


def main() -> None:
    """Run on one rank; print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    hvd.init()
    world = World(here(args.device))
    for _ in every_check(world):
        pass
    found = way()
    hvd.shutdown()
    print(json.dumps({"way": found, "checks": world.checks, "wrong": world.wrong[:100]}))


def way() -> str:
    """Who moves the bytes of tensors on GPUs, as the timeline writes it; "" without a backend for them."""
    sets = HOLDER.get().sets
    return sets.backend(0, "cuda").name if sets.gpu is not None else ""


if __name__ == "__main__":
    main()
