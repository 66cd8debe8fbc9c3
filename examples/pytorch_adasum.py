"""Adasum: a learning rate that is right for one rank is right for any number of them.

Start it (the number of ranks is a power of two)::

    mpiexec -n 2 python examples/pytorch_adasum.py
    torchrun --nproc-per-node 4 examples/pytorch_adasum.py

With ``op=hvd.Average`` the learning rate has to be scaled by hand. Left as it is, the ranks make one rank's steps,
only with less noise; times the number of ranks it gains speed, and may become too large. Adasum looks at the angle
between the ranks' steps a and b::

    (1 - a.b / 2|a|^2) a + (1 - a.b / 2|b|^2) b

Equal steps are averaged, steps at right angles are added up. So the learning rate stays that of one rank, and the
training gets nearly as far as with the scaled one, or farther where scaling was too much.
Source: S. Maleki et al., "Scaling Distributed Training with Adaptive Summation", arXiv:2006.02924, 2020.

The table shows the loss on the test images after equally many steps, for each learning rate of ``--lr``.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

import workbench.torch as hvd
from workbench import data

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--lr", type=float, nargs="+", default=[0.1, 0.4], metavar="RATE", help="for one rank")
parser.add_argument("--steps", type=int, default=60)
parser.add_argument("--batch-size", type=int, default=16, help="per rank")
parser.add_argument("--seed", type=int, default=0)
args = parser.parse_args()

hvd.init()
torch.set_num_threads(1)
device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)

images = data.digits()
train_x, train_y = (torch.from_numpy(each).to(device) for each in images.arrays("train"))
test_x, test_y = (torch.from_numpy(each).to(device) for each in images.arrays("test"))


def train(op, lr):
    """Train a small network from the same start on the same batches; return loss and accuracy on the test images."""
    torch.manual_seed(args.seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).to(device)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters(), op=op)
    draw = torch.Generator().manual_seed(args.seed + 1 + hvd.rank())  # each rank draws its own images
    for _ in range(args.steps):
        batch = torch.randint(len(train_x), (args.batch_size,), generator=draw).to(device)
        optimizer.zero_grad()
        F.cross_entropy(model(train_x[batch]), train_y[batch]).backward()
        optimizer.step()
    with torch.no_grad():
        guess = model(test_x)
    loss, accuracy = F.cross_entropy(guess, test_y), (guess.argmax(dim=1) == test_y).double().mean()
    # Nothing is left to average: all ranks have the same weights and look at the same images. If not, this would tell.
    losses = hvd.allgather(loss.cpu().reshape(1), name=f"{op}.{lr}")
    if (losses != losses[0]).any():
        raise RuntimeError(f"The replicas differ: the ranks' losses are {losses.tolist()}")
    return loss.item(), accuracy.item()


if hvd.rank() == 0:
    print(f"{hvd.size()} ranks, {args.steps} steps of {hvd.size()} x {args.batch_size} images")
    print(f"{'learning rate':<24}{'op':<10}{'loss':>8}{'accuracy':>10}", flush=True)
for lr in args.lr:
    for op, name, factor in [
        (hvd.Average, "Average", 1),
        (hvd.Average, "Average", hvd.size()),
        (hvd.Adasum, "Adasum", 1),
    ]:
        loss, accuracy = train(op, lr * factor)
        if hvd.rank() == 0:
            rate = f"{lr:g} x {factor}"
            print(f"{rate:<24}{name:<10}{loss:>8.4f}{accuracy:>10.4f}", flush=True)
hvd.shutdown()
