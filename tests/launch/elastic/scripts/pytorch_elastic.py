"""A training as a user of Elastic Horovod writes it for PyTorch: it counts batches, commits, and adjusts its rate.

All ranks take the same batch of a step, so the weights at the end are those of one process that nothing happened to.
"""

import argparse
import time

import horovod.torch as hvd
import torch
import torch.nn.functional as F
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--pause", type=float, default=0.01)
parser.add_argument("--wide", type=int, default=16)
parser.add_argument("--sharded", action="store_true")
parser.add_argument("--overlap-forward", action="store_true")
parser.add_argument("--commit-every", type=int, default=1)
args = parser.parse_args()

hvd.init()
torch.manual_seed(hvd.rank())
torch.set_num_threads(1)
torch.set_default_dtype(torch.float64)  # so that sums in another order stay equal to 12 digits


def net():
    """With a layer whose statistics are those of all ranks, and one that has a buffer of its own."""
    return torch.nn.Sequential(
        torch.nn.Linear(8, args.wide),
        hvd.SyncBatchNorm(args.wide),
        torch.nn.ReLU(),
        torch.nn.Linear(args.wide, args.wide),
        torch.nn.BatchNorm1d(args.wide),
        torch.nn.Linear(args.wide, 3),
    )


def batch_of(step):
    """The same on every rank."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(16, 8, generator=generator)
    return x, (x.sum(1) > 0).long() + (x[:, 0] > 1).long()


model = net()
start = {name: value.clone() for name, value in model.state_dict().items()}
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
more = {"sharded": True} if args.sharded else {"overlap_forward": True} if args.overlap_forward else {}
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), **more)
resets = []


@hvd.elastic.run
def train(state):
    if state.batch == 0 and state.epoch == 0:
        state.start = {name: value.clone() for name, value in model.state_dict().items()}
    print(f"begins with {hvd.size()} at {state.batch}", flush=True)
    while state.batch < args.steps:
        x, y = batch_of(state.batch)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        state.batch += 1
        state.sizes.append(hvd.size())
        if state.batch % args.commit_every == 0:
            state.commit()
        else:
            state.check_host_updates()
        time.sleep(args.pause)
    state.epoch += 1


def on_state_reset():
    """As the documentation has it."""
    resets.append(hvd.size())
    for group in optimizer.param_groups:
        group["lr"] = 0.01


assert issubclass(HorovodInternalError, RuntimeError)
assert issubclass(HostsUpdatedInterrupt, RuntimeError)
state = hvd.elastic.TorchState(model, optimizer, batch=0, epoch=0, sizes=[], start=start)
state.register_reset_callbacks([on_state_reset])
train(state)

with torch.no_grad():
    flat = torch.cat([value.double().reshape(-1) for value in model.state_dict().values()])
assert (hvd.allgather(flat[None], name="flat") == flat).all(), "ranks differ"
hvd.shutdown()

alone = torch.nn.Sequential(
    *[torch.nn.BatchNorm1d(args.wide) if isinstance(each, hvd.SyncBatchNorm) else each for each in net()]
)
alone.load_state_dict(state.start)
plain = torch.optim.Adam(alone.parameters(), lr=0.01)
first = last = None
for step in range(args.steps):
    x, y = batch_of(step)
    plain.zero_grad()
    loss = F.cross_entropy(alone(x), y)
    loss.backward()
    plain.step()
    first, last = first or loss.item(), loss.item()
worst = max(float((a - b).detach().abs().max()) for a, b in zip(model.parameters(), alone.parameters(), strict=True))
assert worst < 1e-6, worst
assert last < first
print(f"done {state.batch} {len(state.sizes)} {sorted(set(state.sizes))} worst {worst:.1e}", flush=True)
