"""``fully_shard`` (FSDP2) over the workbench's ranks: each rank keeps a part of each weight, gradient and moment.

Start it, in one of these ways::

    workbench run -np 2 python examples/fsdp.py
    torchrun --nproc-per-node 2 examples/fsdp.py                   # --backend gloo: over torch's own

or in a ``%%px`` cell of a notebook in this folder: ``import fsdp; fsdp.main(epochs=3)``.

A small transformer reads the rows of a digit as eight tokens. Its checkpoints are written while the next epoch trains,
and read by any number of ranks: start it again with more epochs. How they are read is in ``ddp.py``.
"""

import argparse

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from ddp import BATCH, evaluate, load, parts_of
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.utils.data import DataLoader, DistributedSampler

from workbench import data

WIDTH = 48


class Reader(nn.Module):
    """Eight rows of eight pixels, three blocks, ten classes."""

    def __init__(self):
        super().__init__()
        self.rows, self.place = nn.Linear(8, WIDTH), nn.Parameter(torch.randn(8, WIDTH) / 8)
        block = {"dropout": 0.0, "batch_first": True, "norm_first": True}
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(WIDTH, 4, 2 * WIDTH, **block) for _ in range(3))
        self.classes = nn.Linear(WIDTH, 10)

    def forward(self, images):
        x = self.rows(images.squeeze(1)) + self.place
        for block in self.blocks:
            x = block(x)
        return self.classes(x.mean(dim=1))


def main(epochs=4, checkpoint="fsdp-checkpoint", backend="workbench"):
    """All of it; see the file's beginning."""
    dist.init_process_group(backend)
    writers = dist.new_group()  # a thread writes the checkpoint: what it sends must not meet what the training sends
    torch.manual_seed(42)  # the same on all ranks: each cuts its part out of weights of its own
    images = data.digits()
    train_set, test_set = images.torch("train"), images.torch("test")
    sampler = DistributedSampler(train_set)
    loader = DataLoader(train_set, batch_size=BATCH // dist.get_world_size(), sampler=sampler)
    model = Reader()
    total = sum(weight.numel() for weight in model.parameters())
    for block in model.blocks:  # gathered one after the other, when it is needed
        fully_shard(block)
    fully_shard(model)  # the rest
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.003)  # after it: of the parts
    if dist.get_rank() == 0:
        mine = sum(weight.to_local().numel() for weight in model.parameters())
        print(f"rank 0 keeps {mine} of {total} weights", flush=True)
    written = None
    for epoch in range(load(model, optimizer, checkpoint), epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        result = evaluate(model, test_set)  # on all ranks: each call of the model gathers its weights
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: {result}", flush=True)
        if written:
            written.result()  # one at a time
        parts, place = parts_of(model, optimizer), f"{checkpoint}/{epoch + 1}"
        written = dcp.async_save(parts, checkpoint_id=place, process_group=writers)
    if written:
        written.result()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--checkpoint", default="fsdp-checkpoint", help="a folder that all ranks see")
    parser.add_argument("--backend", default="workbench")
    main(**vars(parser.parse_args()))
