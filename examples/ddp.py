"""DistributedDataParallel over the workbench's ranks: plain torch, but for the name of the backend and the images.

Start it, in one of these ways::

    workbench run -np 2 python examples/ddp.py
    torchrun --nproc-per-node 2 examples/ddp.py                    # --backend gloo: over torch's own

or in a ``%%px`` cell of a notebook in this folder: ``import ddp; ddp.main(epochs=3)``.

After each epoch the ranks write a checkpoint together. Start it again with more epochs, and with another number of
ranks: it goes on from there, and comes to the same model, for all ranks together take 60 images in a step.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from workbench import data

BATCH = 60


def parts_of(model, optimizer):
    """What a checkpoint has: by names that are the same for each wrapper and each number of ranks."""
    weights, moments = get_state_dict(model, optimizer)
    return {"model": weights, "optimizer": moments}


def load(model, optimizer, folder):
    """Go on from the newest checkpoint that is complete; how many epochs are done."""
    done = max((int(each.parent.name) for each in Path(folder).glob("*/.metadata")), default=0)
    if done:
        parts = parts_of(model, optimizer)
        dcp.load(parts, checkpoint_id=f"{folder}/{done}")
        set_state_dict(model, optimizer, model_state_dict=parts["model"], optim_state_dict=parts["optimizer"])
    return done


def evaluate(model, images):
    """Loss and accuracy over all ranks; each image counts once."""
    x, y = (part[dist.get_rank() :: dist.get_world_size()] for part in images.tensors)
    with torch.no_grad():
        guess = model(x)
    right = (guess.argmax(dim=1) == y).sum()
    totals = torch.tensor([F.cross_entropy(guess, y, reduction="sum").item(), right.item(), len(y)])
    dist.all_reduce(totals)
    return f"loss {totals[0] / totals[2]:.4f}, accuracy {totals[1] / totals[2]:.3f}"


def main(epochs=4, checkpoint="ddp-checkpoint", backend="workbench"):
    """All of it; see the file's beginning."""
    dist.init_process_group(backend)
    torch.manual_seed(42)
    images = data.digits()
    train_set, test_set = images.torch("train"), images.torch("test")
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=BATCH // dist.get_world_size(), sampler=sampler)
    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    model = DistributedDataParallel(net)  # sends rank 0's weights
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(load(model, optimizer, checkpoint), epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()  # gradients are averaged meanwhile
            optimizer.step()
        result = evaluate(model, test_set)  # on all ranks
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: {result}", flush=True)
        dcp.save(parts_of(model, optimizer), checkpoint_id=f"{checkpoint}/{epoch + 1}")  # each rank writes a part
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--checkpoint", default="ddp-checkpoint", help="a folder that all ranks see")
    parser.add_argument("--backend", default="workbench")
    main(**vars(parser.parse_args()))
