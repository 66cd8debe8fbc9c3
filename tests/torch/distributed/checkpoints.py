"""Four ranks save a model of ``fully_shard`` in a folder, the argument; two and three of them go on from it."""

import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint import state_dict as states
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

folder = sys.argv[1]
torch.set_num_threads(1)
X = torch.randn(24, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
dist.init_process_group("workbench")
rank, writers = dist.get_rank(), dist.new_group()


def make(kind, seed, mesh=None):
    """A plain model, or one that the ranks of a mesh share, and its optimizer."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 13), nn.Tanh(), nn.Linear(13, 5)).double()
    if kind == "ddp":
        model = DistributedDataParallel(model, process_group=mesh.get_group())
    for layer in (model[0], model[2], model) if kind == "fsdp" else ():
        fully_shard(layer, mesh=mesh)
    return model, torch.optim.Adam(model.parameters(), lr=0.05)


def train(model, optimizer, n=1):
    """Three steps."""
    for _ in range(3):
        optimizer.zero_grad()
        model(X[rank::n] if n > 1 else X).square().mean().backward()
        optimizer.step()


def parts(*pair):
    """What a checkpoint has."""
    return dict(zip(("model", "optimizer"), states.get_state_dict(*pair), strict=True))


def close(model, wanted):
    """All of it, on each rank."""
    for found, each in zip(model.parameters(), wanted.parameters(), strict=True):
        full = found.full_tensor() if hasattr(found, "full_tensor") else found
        torch.testing.assert_close(full.detach(), each.detach(), rtol=0, atol=1e-12)


half, serial = make("serial", 1), make("serial", 1)
for plain in (half, serial, serial):
    train(*plain)
everybody = DeviceMesh("cpu", range(4))
pair = make("fsdp", 1, everybody)
train(*pair, 4)
dcp.save(parts(*pair), checkpoint_id=f"{folder}/saved")
written = dcp.async_save(parts(*pair), checkpoint_id=f"{folder}/async", process_group=writers)
train(*pair, 4)  # meanwhile
written.result()
close(pair[0], serial[0])
for n in (2, 3):
    mesh = DeviceMesh("cpu", range(n))
    for kind, name in (("fsdp", "saved"), ("ddp", "saved"), ("fsdp", "async")) if rank < n else ():
        other = make(kind, 5, mesh)
        found = parts(*other)
        dcp.load(found, checkpoint_id=f"{folder}/{name}", process_group=mesh.get_group())
        states.set_state_dict(*other, model_state_dict=found["model"], optim_state_dict=found["optimizer"])
        close(other[0], half[0])
        train(*other, n)
        close(other[0], serial[0])
sharded, _ = make("fsdp", 5, everybody)
options = states.StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
states.set_model_state_dict(sharded, half[0].state_dict() if rank == 0 else {}, options=options)
close(sharded, half[0])
dist.barrier()
dist.destroy_process_group()
print("all equal", flush=True)
