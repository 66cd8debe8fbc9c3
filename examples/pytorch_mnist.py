"""A complete training script: options, metrics, checkpoints by one rank, and going on from the last of them.

Start it::

    mpiexec -n 2 python examples/pytorch_mnist.py
    mpiexec -n 2 python examples/pytorch_mnist.py --fp16-allreduce --batches-per-allreduce 2
    mpiexec -n 2 python examples/pytorch_mnist.py --checkpoint-dir runs/mnist    # start it again: it goes on
    torchrun --nproc-per-node 2 examples/pytorch_mnist.py --data fashion-mnist --limit 6000

Here every rank keeps its batch size, so the global batch grows with the ranks (weak scaling), and the learning rate
with it; ``pytorch_horovod.py`` does the opposite. Only rank 0 writes: log lines to the terminal, checkpoints to the
disk.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, Subset
from torch.utils.data.distributed import DistributedSampler

import workbench.torch as hvd
from workbench import data


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=["digits", "fashion-mnist"], default="digits", help="real images, no network")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N images for training, and N for testing")
    parser.add_argument("--batch-size", type=int, default=32, help="per rank and pass")
    parser.add_argument("--test-batch-size", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=5, help="in all, with those before a resume")
    parser.add_argument("--lr", type=float, default=0.05, help="for one rank and one pass")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--log-interval", type=int, default=10, metavar="STEPS")
    parser.add_argument("--no-cuda", action="store_true", help="do not use GPUs")
    parser.add_argument("--fp16-allreduce", action="store_true", help="gradients travel with 16 bits")
    parser.add_argument("--use-adasum", action="store_true", help="combine the ranks' steps with Adasum")
    parser.add_argument("--gradient-predivide-factor", type=float, default=1.0, help="divide by it before the sum")
    parser.add_argument("--batches-per-allreduce", type=int, default=1, help="passes whose gradients travel together")
    parser.add_argument("--checkpoint-dir", type=Path, help="save here after each epoch, and resume from here")
    return parser.parse_args()


class Net(nn.Module):
    """Two convolutions, dropout, two linear layers; for images of any size. Returns log-probabilities."""

    def __init__(self, channels: int = 1, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveMaxPool2d(4), nn.Dropout2d(0.2),
        )  # fmt: skip
        self.classifier = nn.Sequential(nn.Flatten(), nn.Linear(512, 64), nn.ReLU(), nn.Dropout(0.2))
        self.last = nn.Linear(64, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(n, channels, height, width) to (n, classes)."""
        return F.log_softmax(self.last(self.classifier(self.features(x))), dim=1)


def pin_device(no_cuda: bool) -> torch.device:
    """This rank's GPU; without GPUs one core, which is one thread."""
    torch.set_num_threads(1)
    if no_cuda or not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def make_optimizer(args: argparse.Namespace, model: nn.Module) -> torch.optim.Optimizer:
    """SGD with a learning rate for the global batch.

    A sum over k batches deserves a k times larger step. Adasum finds the size of the step itself, so the number of
    ranks does not enter there.
    """
    scale = args.batches_per_allreduce * (1 if args.use_adasum else hvd.size())
    return torch.optim.SGD(model.parameters(), lr=args.lr * scale, momentum=args.momentum)


def distribute(args: argparse.Namespace, optimizer: torch.optim.Optimizer, model: nn.Module) -> torch.optim.Optimizer:
    """Let the optimizer combine the ranks' gradients, the way that the options say."""
    return hvd.DistributedOptimizer(
        optimizer,
        named_parameters=model.named_parameters(),
        compression=hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none,
        op=hvd.Adasum if args.use_adasum else hvd.Average,
        backward_passes_per_step=args.batches_per_allreduce,
        gradient_predivide_factor=args.gradient_predivide_factor,
    )


def train(args, model, device, loader, optimizer, epoch) -> None:
    """One epoch. A batch of the loader is one step; it is worked through in parts of ``--batch-size`` images."""
    # Seed, epoch and rank decide about this epoch's dropout: ranks differ, and a resumed run repeats the original.
    torch.manual_seed(args.seed + epoch * hvd.size() + hvd.rank())
    model.train()
    loader.sampler.set_epoch(epoch)
    for step, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        total = 0.0
        for part_x, part_y in zip(x.split(args.batch_size), y.split(args.batch_size), strict=True):
            # The parts' gradients are summed up. Weighted by size, their sum is the gradient of the whole batch's mean.
            loss = F.nll_loss(model(part_x.to(device)), part_y.to(device)) * (len(part_x) / len(x))
            loss.backward()
            total += loss.item()
        optimizer.step()
        if step % args.log_interval == 0 and hvd.rank() == 0:
            done = f"{100 * step / len(loader):.0f}%"
            print(f"Train Epoch: {epoch} [step {step}/{len(loader)} ({done})]  Loss: {total:.6f}", flush=True)


def test(model, device, loader, epoch) -> None:
    """Loss and accuracy over all ranks' images; sums and counts travel, so that each image counts exactly once."""
    model.eval()
    totals = torch.zeros(3, dtype=torch.float64)
    with torch.no_grad():
        for x, y in loader:
            guess = model(x.to(device)).cpu()
            loss, right = F.nll_loss(guess, y, reduction="sum"), (guess.argmax(dim=1) == y).sum()
            totals += torch.tensor([loss.item(), right.item(), len(y)], dtype=torch.float64)
    loss, right, count = hvd.allreduce(totals, name="test", op=hvd.Sum).tolist()
    if hvd.rank() == 0:
        print(f"Test Epoch: {epoch} Loss: {loss / count:.6f} Accuracy: {right:.0f}/{count:.0f} = {right / count:.4f}")


def save(folder: Path, epoch: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Called on rank 0 only: all have the same weights, and several writers would spoil the file.

    It is written under another name first, so that a run that ends in the middle leaves no half checkpoint.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"checkpoint-{epoch}.pt"
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)
    print(f"Saved {path.name}", flush=True)


def resume(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load the last checkpoint on rank 0, which may be the only one that sees the folder; tell all which epoch it is.

    Returns:
        The number of epochs that are done; 0 if there is no checkpoint.
    """
    last = 0
    if hvd.rank() == 0:
        last = max((int(path.stem.rpartition("-")[2]) for path in folder.glob("checkpoint-*.pt")), default=0)
        if last:
            saved = torch.load(folder / f"checkpoint-{last}.pt", map_location="cpu", weights_only=True)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            print(f"Resume after epoch {last}", flush=True)
    return hvd.broadcast_object(last, root_rank=0, name="resume")


def loaders(args: argparse.Namespace, images: data.Data) -> tuple[DataLoader, DataLoader]:
    """Training images by a sampler that deals them anew in each epoch; for testing every size-th image."""
    train_set: Dataset = images.torch("train")
    test_set = Subset(images.torch("test"), range(hvd.rank(), len(images.test_x), hvd.size()))
    sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank(), seed=args.seed)
    per_step = args.batch_size * args.batches_per_allreduce
    return DataLoader(train_set, per_step, sampler=sampler), DataLoader(test_set, args.test_batch_size)


def main() -> None:
    """Train, test after each epoch, and keep checkpoints."""
    args = options()
    hvd.init()
    device = pin_device(args.no_cuda)
    torch.manual_seed(args.seed + hvd.rank())
    images = data.digits() if args.data == "digits" else data.fashion_mnist()  # if it must be loaded, one rank does it
    if args.limit:
        images = images.limit(min(args.limit, len(images.train_x)), min(args.limit, len(images.test_x)))
    train_loader, test_loader = loaders(args, images)

    model = Net(images.train_x.shape[1], len(images.classes)).to(device)
    optimizer = make_optimizer(args, model)
    done = resume(args.checkpoint_dir, model, optimizer) if args.checkpoint_dir else 0
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    hvd.broadcast_optimizer_state(optimizer, root_rank=0)
    optimizer = distribute(args, optimizer, model)

    for epoch in range(done + 1, args.epochs + 1):
        train(args, model, device, train_loader, optimizer, epoch)
        test(model, device, test_loader, epoch)
        if args.checkpoint_dir and hvd.rank() == 0:
            save(args.checkpoint_dir, epoch, model, optimizer)
    hvd.shutdown()


if __name__ == "__main__":
    main()
