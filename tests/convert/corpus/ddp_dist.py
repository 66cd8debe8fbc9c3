# DistributedDataParallel with torch.distributed as dist: metrics summed, gradients clipped, the model under another name.
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset, DistributedSampler


def run():
    rank = int(os.environ["RANK"])
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch.manual_seed(0)
    x = torch.randn(60, 5)
    y = x.sum(1, keepdim=True)
    data = TensorDataset(x, y)
    sampler = DistributedSampler(data, shuffle=True)
    loader = DataLoader(data, batch_size=6, sampler=sampler)
    net = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 1))
    ddp_net = DistributedDataParallel(net, find_unused_parameters=False)
    criterion = nn.MSELoss()
    optimizer = torch.optim.Adam(ddp_net.parameters(), lr=0.01)
    for epoch in range(3):
        sampler.set_epoch(epoch)
        total = torch.zeros(1)
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = criterion(ddp_net(inputs), targets)
            loss.backward()
            nn.utils.clip_grad_norm_(ddp_net.parameters(), 0.5)
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total, op=dist.ReduceOp.SUM)
        if dist.get_rank() == 0:
            print(f"epoch {epoch}: {total.item() / len(loader) / dist.get_world_size():.4f}")
    dist.barrier()
    if rank == 0:
        torch.save(ddp_net.module.state_dict(), "net.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    run()
