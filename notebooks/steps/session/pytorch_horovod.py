"""The practical session: one training, shared out over the ranks. Compare the time per epoch and the accuracy.

Start it::

    mpiexec -n 1 python examples/pytorch_horovod.py
    mpiexec -n 2 python examples/pytorch_horovod.py
    mpiexec -n 2 python examples/pytorch_horovod.py --data fashion-mnist --limit 6000 --epochs 2
    torchrun --nproc-per-node 2 examples/pytorch_horovod.py

The *global* batch stays the same, whatever the number of ranks (strong scaling), so the training does, too: the same
images in the same steps, and the same accuracy up to rounding. Only the time shrinks: T = G / W + C(W), with G the time
of one worker, W the number of workers, and C what communication costs. ``make practical`` makes the table of it.

The network of the session is ``--model resnet50 --image-size 224``, for which one wants GPUs. Batch norm takes its
statistics from the local batch, so with it the accuracy does depend, a little, on the number of ranks.
"""

import argparse
import time

import torch
import torch.nn.functional as F
from resnet import resnet
from torch import nn
from torch.utils.data import DataLoader, Subset
from torch.utils.data.distributed import DistributedSampler

import workbench.torch as hvd
from workbench import data

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--data", choices=["digits", "fashion-mnist"], default="digits", help="real images, no network")
parser.add_argument("--model", choices=["cnn", "resnet18", "resnet50"], default="cnn")
parser.add_argument("--image-size", type=int, metavar="PIXELS", help="enlarge the images to this height and width")
parser.add_argument("--epochs", type=int, default=4)
parser.add_argument("--batch-size", type=int, default=96, help="of all ranks together")
parser.add_argument("--limit", type=int, metavar="N", help="take at most N images for training, and N for testing")
parser.add_argument("--lr", type=float, default=5e-3)
parser.add_argument("--seed", type=int, default=42)
args = parser.parse_args()


# ---------------------------------------------------------------------------------------------------------------------
# 1. Initialize: from here on each process knows its rank. Random numbers (weights, dropout, augmentation) are to differ
#    between ranks, or all would augment alike. The order of the images is the sampler's business, which has a seed of
#    its own, the same on every rank.
hvd.init()
torch.manual_seed(args.seed + hvd.rank())

# ---------------------------------------------------------------------------------------------------------------------
# 2. Adapt the batch: the global batch is constant, each rank takes its share of it.
if args.batch_size % hvd.size():
    parser.error(f"--batch-size {args.batch_size} cannot be shared evenly by {hvd.size()} ranks")
local_batch = args.batch_size // hvd.size()

# ---------------------------------------------------------------------------------------------------------------------
# 3. Pin one accelerator per rank: the GPU with the number of the local rank (some batch systems show each rank only its
#    own, hence the modulo). Without GPUs an accelerator is a core: one thread per rank, or they would fight for them.
torch.set_num_threads(1)
device = torch.device("cpu")
if torch.cuda.is_available():
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)

# ---------------------------------------------------------------------------------------------------------------------
# 4. Data, in two steps: the shard (which images are this rank's) and the local batch (what goes to the device at once).
#    All ranks may ask for the data at the same time: if they must be downloaded, one does it and the others wait.
images = data.digits() if args.data == "digits" else data.fashion_mnist()
if args.limit:
    images = images.limit(min(args.limit, len(images.train_x)), min(args.limit, len(images.test_x)))
train, test = images.torch("train"), images.torch("test")

# For training the sampler repeats a few images, so that all ranks make equally many steps. In a test each image has to
# count once and only once: rank r takes the images r, r + size, r + 2 size, ..., and some ranks may have one less.
sampler = DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank(), seed=args.seed)
mine = Subset(test, range(hvd.rank(), len(test), hvd.size()))
train_loader = DataLoader(train, batch_size=local_batch, sampler=sampler, pin_memory=device.type == "cuda")
test_loader = DataLoader(mine, batch_size=256)


def prepare(x, y):
    """One batch on the device, in the wanted size."""
    x, y = x.to(device), y.to(device)
    return (F.interpolate(x, size=(args.image_size, args.image_size)), y) if args.image_size else (x, y)


# ---------------------------------------------------------------------------------------------------------------------
# 5. Build the network on each device. It ends in *log*-probabilities, which is what nll_loss wants. Rank 0's weights
#    and optimizer state become everybody's, and the optimizer averages the gradients from now on.
def cnn(channels, classes, width=64):
    """Three convolutions: seconds per epoch on one core."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(4 * width, classes),
    )  # fmt: skip


channels, classes = images.train_x.shape[1], len(images.classes)
network = cnn(channels, classes) if args.model == "cnn" else resnet(args.model, channels, classes)
model = nn.Sequential(network, nn.LogSoftmax(dim=1)).to(device)
optimizer = torch.optim.Adam(model.parameters(), lr=args.lr)

hvd.broadcast_parameters(model.state_dict(), root_rank=0)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(
    optimizer, named_parameters=model.named_parameters(), op=hvd.Average, gradient_predivide_factor=1
)

# ---------------------------------------------------------------------------------------------------------------------
# 6. Train. The ranks start the clock together, and the slowest one's time is the epoch's: the others wait for it.
#    The first epoch takes longer, because much is set up on first use.
for epoch in range(1, args.epochs + 1):
    model.train()
    sampler.set_epoch(epoch)  # without this every epoch has the same order
    hvd.barrier()
    start = time.perf_counter()
    for batch in train_loader:
        x, y = prepare(*batch)
        optimizer.zero_grad()
        F.nll_loss(model(x), y).backward()
        optimizer.step()
    seconds = torch.tensor(time.perf_counter() - start, dtype=torch.float64)
    print(f"Epoch: {epoch} {hvd.allreduce(seconds, name='seconds', op=hvd.Max).item():.2f} sec.", flush=True)

# ---------------------------------------------------------------------------------------------------------------------
# 7. Evaluate. Sums and counts travel, not means: shards may differ by an image, and a mean of means would be wrong.
#    Batch norm's statistics are each rank's own; rank 0's are taken, so that all ranks test one and the same model.
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
model.eval()
totals = torch.zeros(3, dtype=torch.float64)
with torch.no_grad():
    for batch in test_loader:
        x, y = prepare(*batch)
        guess = model(x)
        loss, right = F.nll_loss(guess, y, reduction="sum"), (guess.argmax(dim=1) == y).sum()
        totals += torch.tensor([loss.item(), right.item(), len(y)], dtype=torch.float64)
loss, right, count = hvd.allreduce(totals, name="test", op=hvd.Sum).tolist()
print(f"Loss:  {loss / count:.6f}  accuracy:  {right / count:.6f}  ({right:.0f} of {count:.0f} images)", flush=True)
hvd.shutdown()
