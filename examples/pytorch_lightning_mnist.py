"""A training with Lightning: its Trainer writes the loop, and the workbench's strategy averages the gradients.

Start it::

    mpiexec -n 2 python examples/pytorch_lightning_mnist.py
    mpiexec -n 2 python examples/pytorch_lightning_mnist.py --data fashion-mnist --limit 6000
    mpiexec -n 2 python examples/pytorch_lightning_mnist.py --checkpoint runs/mnist.ckpt

It needs Lightning: ``pip install ".[lightning]"``. Network and data are those of ``pytorch_mnist.py``. As there, the
global batch grows with the ranks, and the learning rate with it. Every rank has all images in memory, and takes its
share of them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import lightning.pytorch as pl
import torch
import torch.nn.functional as F
from pytorch_mnist import Net
from torch.utils.data import DataLoader, Subset
from torch.utils.data.distributed import DistributedSampler

import workbench.torch as hvd
from workbench import data
from workbench.torch.lightning import WorkbenchStrategy


def options() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", choices=["digits", "fashion-mnist"], default="digits", help="real images, no network")
    parser.add_argument("--limit", type=int, metavar="N", help="at most N images for training, and N for testing")
    parser.add_argument("--batch-size", type=int, default=32, help="per rank")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.05, help="for one rank")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--checkpoint", type=Path, metavar="FILE", help="save here at the end")
    return parser.parse_args()


class Classifier(pl.LightningModule):
    """What Lightning calls in each step."""

    def __init__(self, classes: int, lr: float) -> None:
        super().__init__()
        self.save_hyperparameters()  # in the checkpoint: load_from_checkpoint() needs no arguments
        self.net = Net(classes=classes)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """An ordinary optimizer. The strategy makes it a DistributedOptimizer, and begins with rank 0's weights."""
        return torch.optim.SGD(self.parameters(), lr=self.hparams.lr * hvd.size(), momentum=0.9)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        """The loss of this rank's batch; gradients are averaged while backward runs."""
        x, y = batch
        return F.nll_loss(self.net(x), y)

    def on_test_epoch_start(self) -> None:
        """Nothing has been counted yet."""
        self.totals = torch.zeros(3)

    def test_step(self, batch: list[torch.Tensor], index: int) -> None:
        """Add up this rank's loss, right answers and images."""
        x, y = batch
        guess = self.net(x)
        loss, right = F.nll_loss(guess, y, reduction="sum"), (guess.argmax(dim=1) == y).sum()
        self.totals += torch.tensor([loss.item(), right.item(), len(y)])

    def on_test_epoch_end(self) -> None:
        """Of all ranks: sums and counts travel, so that each image counts exactly once."""
        loss, right, count = hvd.allreduce(self.totals, name="test", op=hvd.Sum).tolist()
        if hvd.rank() == 0:
            print(f"Test Loss: {loss / count:.6f} Accuracy: {right:.0f}/{count:.0f} = {right / count:.4f}", flush=True)


def loaders(args: argparse.Namespace, images: data.Data) -> tuple[DataLoader, DataLoader]:
    """Training images by a sampler, whose epoch Lightning sets; for testing every size-th image.

    Lightning's own sampler would give all ranks equally many test images, and so some images twice.
    """
    train_set = images.torch("train")
    test_set = Subset(images.torch("test"), range(hvd.rank(), len(images.test_x), hvd.size()))
    sampler = DistributedSampler(train_set, num_replicas=hvd.size(), rank=hvd.rank(), seed=args.seed)
    return DataLoader(train_set, args.batch_size, sampler=sampler), DataLoader(test_set, 1000)


def main() -> None:
    """Train, test, and save."""
    args = options()
    hvd.init()
    torch.set_num_threads(1)
    torch.manual_seed(args.seed + hvd.rank())  # for dropout; the first weights are rank 0's
    images = data.digits() if args.data == "digits" else data.fashion_mnist()
    if args.limit:
        images = images.limit(min(args.limit, len(images.train_x)), min(args.limit, len(images.test_x)))
    train_loader, test_loader = loaders(args, images)

    model = Classifier(len(images.classes), args.lr)
    trainer = pl.Trainer(
        strategy=WorkbenchStrategy(),
        devices=1,  # of each rank
        use_distributed_sampler=False,  # the loaders have theirs
        max_epochs=args.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, train_loader)
    trainer.test(model, test_loader, verbose=False)
    if args.checkpoint:
        trainer.save_checkpoint(args.checkpoint)  # all ranks call it, and rank 0 writes
    hvd.shutdown()


if __name__ == "__main__":
    main()
