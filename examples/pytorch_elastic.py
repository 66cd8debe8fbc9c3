"""Elastic training: what is trained is committed now and then, and a failure costs what came after the last commit.

Start it::

    mpiexec -n 2 python examples/pytorch_elastic.py
    mpiexec -n 2 python examples/pytorch_elastic.py --fail-at 2:3    # epoch 2, step 3: the last rank has a failure
    torchrun --nproc-per-node 2 examples/pytorch_elastic.py

With ``--fail-at`` one rank raises the error that a broken connection raises. All ranks go back to the last commit, meet
anew, and do the rest of the epoch: no image is skipped, and while the number of ranks stays, the result is the very one
of a run without the failure.

A learning rate that goes with the number of ranks is set again after every reset, when there may be more or fewer.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Subset

import workbench.torch as hvd
from workbench import data
from workbench.torch import elastic

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch-size", type=int, default=24, help="per rank")
parser.add_argument("--batches-per-commit", type=int, default=5, help="a commit costs a copy of the state")
parser.add_argument("--lr", type=float, default=0.05, help="for one rank")
parser.add_argument("--seed", type=int, default=42)
parser.add_argument("--fail-at", metavar="EPOCH:STEP", help="let the last rank fail there, once")
args = parser.parse_args()

hvd.init()
torch.set_num_threads(1)
torch.manual_seed(args.seed + hvd.rank())
device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)

images = data.digits()
train_set, test_set = images.torch("train"), images.torch("test")
sampler = elastic.ElasticSampler(train_set, seed=args.seed)
loader = DataLoader(train_set, batch_size=args.batch_size, sampler=sampler)

model = nn.Sequential(nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10)).to(device)
optimizer = torch.optim.SGD(model.parameters(), lr=args.lr * hvd.size(), momentum=0.5)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())

failures = [tuple(map(int, args.fail_at.split(":")))] if args.fail_at else []


def maybe_fail(epoch, step):
    """Stand in for a cable that is pulled out, on the last rank and once."""
    if failures and failures[0] == (epoch, step) and hvd.rank() == hvd.size() - 1:
        failures.clear()
        raise hvd.HorovodInternalError("this rank was told to fail here (--fail-at)")


def evaluate():
    """Loss and accuracy over all ranks; each test image counts once."""
    mine = Subset(test_set, range(hvd.rank(), len(test_set), hvd.size()))
    totals = torch.zeros(3, dtype=torch.float64)
    with torch.no_grad():
        for x, y in DataLoader(mine, batch_size=256):
            guess = model(x.to(device)).cpu()
            loss, right = F.cross_entropy(guess, y, reduction="sum"), (guess.argmax(dim=1) == y).sum()
            totals += torch.tensor([loss.item(), right.item(), len(y)], dtype=torch.float64)
    loss, right, count = hvd.allreduce(totals, name="test", op=hvd.Sum).tolist()
    return f"Loss: {loss / count:.6f} accuracy: {right / count:.6f} ({right:.0f} of {count:.0f} images)"


# The state begins with its first sync, in train(): rank 0's model, optimizer, sampler and epoch become everybody's. No
# collective may stand before that call, for a rank that joins later starts there.
state = elastic.TorchState(model=model, optimizer=optimizer, sampler=sampler, epoch=1)


def on_reset():
    """The ranks may have become more or fewer."""
    if hvd.rank() == 0:
        print(f"Reset: {hvd.size()} ranks go on in epoch {state.epoch}", flush=True)
    for group in optimizer.param_groups:
        group["lr"] = args.lr * hvd.size()


state.register_reset_callbacks([on_reset])


@elastic.run
def train(state):
    """Train from where the state is. After a reset this begins anew, with what the last commit had."""
    while state.epoch <= args.epochs:
        for step, (x, y) in enumerate(loader, start=1):
            optimizer.zero_grad()
            F.cross_entropy(model(x.to(device)), y.to(device)).backward()
            maybe_fail(state.epoch, step)
            optimizer.step()
            state.sampler.record_batch(step - 1, args.batch_size)
            if step % args.batches_per_commit == 0:
                state.commit()
        result = evaluate()
        if hvd.rank() == 0:
            print(f"Epoch: {state.epoch} {result}", flush=True)
        state.epoch += 1
        state.sampler.set_epoch(state.epoch)  # at the end: at the beginning it would forget what is done
        state.commit()


train(state)
hvd.shutdown()
