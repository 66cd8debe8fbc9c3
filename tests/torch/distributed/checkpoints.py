"""Four ranks save a model of ``fully_shard`` in a folder, the argument; two and three of them go on from it."""

from __future__ import annotations

import sys
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

folder = sys.argv[1]
torch.set_num_threads(1)
X = torch.randn(24, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))


def make(seed: int) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """A plain model and its optimizer."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 13), nn.Tanh(), nn.Linear(13, 5)).double()
    return model, torch.optim.Adam(model.parameters(), lr=0.05)


def distributed(mesh: DeviceMesh, seed: int, kind: str = "fsdp") -> tuple[nn.Module, torch.optim.Optimizer]:
    """The same, shared by the ranks of a mesh."""
    model, _ = make(seed)
    if kind == "ddp":
        model = DistributedDataParallel(model, process_group=mesh.get_group())
    else:
        for layer in (model[0], model[2], model):
            fully_shard(layer, mesh=mesh)
    return model, torch.optim.Adam(model.parameters(), lr=0.05)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, rank: int = 0, n: int = 1) -> None:
    """Three steps."""
    for _ in range(3):
        optimizer.zero_grad()
        model(X[rank::n]).square().mean().backward()
        optimizer.step()


def parts(*pair: Any) -> dict[str, Any]:
    """What a checkpoint has."""
    return dict(zip(("model", "optimizer"), get_state_dict(*pair), strict=True))


def close(model: nn.Module, wanted: nn.Module) -> None:
    """All of it, on each rank."""
    for found, each in zip(model.parameters(), wanted.parameters(), strict=True):
        full = found.full_tensor() if hasattr(found, "full_tensor") else found
        torch.testing.assert_close(full.detach(), each.detach(), rtol=0, atol=1e-12)


dist.init_process_group("workbench")
rank, writers = dist.get_rank(), dist.new_group()
serial, half = make(1), make(1)
train(*half)
train(*serial)
train(*serial)

pair = distributed(DeviceMesh("cpu", range(4)), 1)
train(*pair, rank, 4)
dcp.save(parts(*pair), checkpoint_id=f"{folder}/saved")
written = dcp.async_save(parts(*pair), checkpoint_id=f"{folder}/async", process_group=writers)
train(*pair, rank, 4)  # meanwhile
written.result()
close(pair[0], serial[0])

for n in (2, 3):
    mesh = DeviceMesh("cpu", range(n))
    for kind, name in (("fsdp", "saved"), ("ddp", "saved"), ("fsdp", "async")) if rank < n else ():
        other = distributed(mesh, 5, kind)
        found = parts(*other)
        dcp.load(found, checkpoint_id=f"{folder}/{name}", process_group=mesh.get_group())
        set_state_dict(*other, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
        close(other[0], half[0])
        train(*other, rank, n)
        close(other[0], serial[0])

sharded, _ = distributed(DeviceMesh("cpu", range(4)), 5)
full = half[0].state_dict() if rank == 0 else {}
set_model_state_dict(sharded, full, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))
close(sharded, half[0])
dist.barrier()
dist.destroy_process_group()
print("all equal", flush=True)
