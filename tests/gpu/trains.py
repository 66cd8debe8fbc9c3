"""Does training on all ranks give what one rank gives with the whole batch, and do gradients stay where they lie?

A program that each rank runs. Every rank trains a copy by itself as well, on the batches of all ranks together. With
``--device cpu`` it needs no GPU.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import workbench.torch as hvd

STEPS, STEADY, BATCH = 8, 3, 8  # from this step on nothing is new; images of one rank in one step


def network(dtype: torch.dtype, device: torch.device) -> nn.Module:
    """Two convolutions and a linear layer: the same weights wherever it is made."""
    torch.manual_seed(7)
    layers = [nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten()]
    model = nn.Sequential(*layers, nn.Linear(128, 10))
    return model.to(device=device, dtype=dtype, memory_format=torch.channels_last)


def batch(step: int, rank: int, dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """A rank's images and labels."""
    source = torch.Generator().manual_seed(1000 * step + rank)
    x, y = torch.randn(BATCH, 3, 16, 16, generator=source), torch.randint(0, 10, (BATCH,), generator=source)
    return x.to(device=device, dtype=dtype, memory_format=torch.channels_last), y.to(device)


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    """SGD with momentum."""
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


@contextmanager
def no_waiting(device: torch.device, steady: bool) -> Iterator[None]:
    """Within the block torch raises where its CPU would wait for the GPU."""
    watched = steady and device.type == "cuda"
    if watched:
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        if watched:
            torch.cuda.set_sync_debug_mode("default")


def train_alone(dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """The weights after all steps on the batches of all ranks."""
    model = network(dtype, device)
    optimizer = optimizer_of(model)
    for step in range(STEPS):
        parts = [batch(step, rank, dtype, device) for rank in range(hvd.size())]
        optimizer.zero_grad()
        F.cross_entropy(model(torch.cat([x for x, _ in parts])).float(), torch.cat([y for _, y in parts])).backward()
        optimizer.step()
    return flat(model)


def train_together(
    dtype: torch.dtype, device: torch.device, keep_grads: bool, compression: str
) -> tuple[torch.Tensor, int, int]:
    """The weights after all steps; how many gradients lie in buckets on the device, and how many there are."""
    model = network(dtype, device)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer: Any = hvd.DistributedOptimizer(
        optimizer_of(model), model.named_parameters(), compression=getattr(hvd.Compression, compression)
    )
    for step in range(STEPS):
        x, y = batch(step, hvd.rank(), dtype, device)
        with no_waiting(device, step >= STEADY):
            optimizer.zero_grad(set_to_none=not keep_grads)
            F.cross_entropy(model(x).float(), y).backward()
            optimizer.step()
        if step == 0:
            hvd.broadcast_optimizer_state(optimizer, root_rank=0)  # the momentum, which is the same on all ranks anyway
    inside = sum(lies_in(param.grad, optimizer._distributed.grads.buckets.get(name)) for name, param in named(model))
    return flat(model), inside, len(named(model))


def lies_in(grad: torch.Tensor, bucket: Any) -> bool:
    """Is the gradient's memory a part of the bucket's, on its device?"""
    if bucket is None or bucket.flat.device != grad.device:
        return False
    begin = bucket.flat.data_ptr()
    return begin <= grad.data_ptr() < begin + bucket.flat.numel() * bucket.flat.element_size()


def named(model: nn.Module) -> list[tuple[str, torch.Tensor]]:
    """The parameters with their names."""
    return list(model.named_parameters())


def flat(model: nn.Module) -> torch.Tensor:
    """All weights, one behind the other, as float32."""
    return torch.cat([param.detach().float().reshape(-1) for param in model.parameters()])


def main() -> None:
    """Train on one rank; print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--keep-grads", action="store_true", help="zero them instead of setting them to None")
    parser.add_argument("--compression", default="none")
    args = parser.parse_args()
    hvd.init()
    device = torch.device(args.device)
    if args.device == "cuda":
        device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
        torch.cuda.set_device(device)
        torch.backends.cudnn.allow_tf32 = False  # the two runs have batches of different sizes, but the same precision
    dtype = getattr(torch, args.dtype)
    serial = train_alone(dtype, device)
    together, inside, gradients = train_together(dtype, device, args.keep_grads, args.compression)
    ranks = hvd.allgather(together.reshape(1, -1))
    result = {
        "from_serial": ((together - serial).abs().max() / serial.abs().max()).item(),
        "moved": ((together - flat(network(dtype, device))).abs().max() / serial.abs().max()).item(),
        "ranks_equal": bool((ranks == ranks[0]).all()),
        "in_buckets": inside,
        "gradients": gradients,
    }
    hvd.shutdown()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
