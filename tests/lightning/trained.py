"""Trainings with Lightning's Trainer and Fabric, alone or on several ranks: prints what came out, as JSON, from rank 0.

python trained.py auto FOLDER                                one process
workbench run -np 2 python trained.py workbench FOLDER       our ranks
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torchmetrics
from doc_blocks import ROOT, blocks
from fabric_trained import trained_with_fabric
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import workbench.torch as hvd
from workbench.errors import MismatchError

STRATEGY, FOLDER = sys.argv[1:]
BLOCKS = [each for each in blocks(ROOT / "docs" / "how-to" / "convert.md", "python") if "torch.lightning" in each.text]
ROWS, BATCH = 64, 16
X = torch.randn(ROWS, 8, generator=torch.Generator().manual_seed(1)).double()
Y = X.sum(1, keepdim=True)


def net() -> Any:
    """Three layers, in float64."""
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1)).double()


class Regression(pl.LightningModule):
    """Automatic optimization: accumulation, clipping, a schedule, metrics."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(RANK)  # other weights on each rank: rank 0's have to win
        self.net = net()
        self.error = torchmetrics.MeanSquaredError().double()

    def training_step(self, batch: Any, _: int) -> Any:
        x, y = batch
        loss = ((self.net(x) - y) ** 2).mean()
        self.log("loss", loss, sync_dist=True, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        x, y = batch
        self.error(self.net(x), y)
        self.log("error", self.error, on_epoch=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), 1e-2)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}


class TwoOptimizers(pl.LightningModule):
    """Manual optimization: each half has an optimizer, and gradients of two backward passes are added."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        torch.manual_seed(RANK)
        self.one, self.two = net(), net()

    def training_step(self, batch: Any, _: int) -> None:
        x, y = batch
        for half, optimizer in zip((self.one, self.two), self.optimizers(), strict=True):
            optimizer.zero_grad()
            for part in (0, 1):  # the second backward adds to what the first has averaged
                self.manual_backward(((half(x) - y) ** 2).mean() / (2 + part))
            self.clip_gradients(optimizer, gradient_clip_val=0.5)
            optimizer.step()

    def configure_optimizers(self) -> Any:
        return [torch.optim.SGD(self.one.parameters(), 0.05), torch.optim.Adam(self.two.parameters(), 0.01)]


class Mixed(Regression):
    """In float32, of which Lightning makes bfloat16 where it multiplies."""

    def __init__(self) -> None:
        super().__init__()
        self.float()

    def training_step(self, batch: Any, _: int) -> Any:
        x, y = (each.float() for each in batch)
        return ((self.net(x) - y) ** 2).mean()

    validation_step = None  # type: ignore[assignment]


class Drifting(Regression):
    """Each rank halves its learning rate by a number of its own."""

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("mine", float(RANK == 0) / (1 + self.current_epoch), sync_dist=False)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), 0.5)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "mine"}}


def loader() -> Any:
    """In order, so that the batches of all ranks together are those of one process."""
    data = TensorDataset(X, Y)
    return DataLoader(data, BATCH // SIZE, sampler=DistributedSampler(data, SIZE, RANK, shuffle=False))


def trainer(strategy: str = STRATEGY, **options: Any) -> Any:
    """On one device, or on this rank's part of the job."""
    quiet: dict[str, Any] = {
        "logger": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "accelerator": "cpu",
    }
    devices = SIZE if strategy == "ddp" else 1
    return pl.Trainer(strategy=strategy, devices=devices, use_distributed_sampler=False, **quiet, **options)


def trained(model: Any, **options: Any) -> Any:
    """A trainer that has fitted the model."""
    made = trainer(default_root_dir=Path(FOLDER) / type(model).__name__, **options)
    made.fit(model, loader(), loader())
    return made


def of(fitted: Any) -> dict[str, Any]:
    """Weights, metrics, learning rate."""
    model = fitted.lightning_module
    return {
        "weights": [value.flatten().tolist() for value in model.state_dict().values() if value.is_floating_point()],
        "metrics": {name: float(value) for name, value in fitted.callback_metrics.items()},
        "rate": fitted.optimizers[0].param_groups[0]["lr"],
        "same": len({str(each) for each in hvd.allgather_object(str([*model.parameters()]))}) == 1,
    }


if STRATEGY == "workbench":
    import workbench.torch.lightning  # registers the name
hvd.init()
RANK, SIZE = hvd.rank(), hvd.size()
found: dict[str, Any] = {}
stop = pl.callbacks.EarlyStopping("error", patience=1, min_delta=100.0)
first = trained(Regression(), max_epochs=3, accumulate_grad_batches=2, gradient_clip_val=0.5)
found["automatic"] = of(first)
found["files"] = len(list(Path(FOLDER).rglob("*.ckpt")))
path = first.checkpoint_callback.best_model_path
again = Regression()
resumed = trainer(max_epochs=5, enable_checkpointing=False, callbacks=[stop])
resumed.fit(again, loader(), loader(), ckpt_path=path)
found["resumed"] = {**of(resumed), "epochs": resumed.current_epoch}
found["manual"] = of(trained(TwoOptimizers(), max_epochs=2))
found["fabric"] = trained_with_fabric(STRATEGY, Path(FOLDER))
if SIZE > 1:
    for name, strategy in (("mixed", STRATEGY), ("mixed by DDP", "ddp")):
        fitted = trainer(strategy, precision="bf16-mixed", max_epochs=3, enable_checkpointing=False)
        fitted.fit(Mixed(), loader())
        assert fitted.world_size == SIZE
        found[name] = of(fitted)["weights"]
    try:
        trained(Drifting(), max_epochs=4, enable_checkpointing=False)
    except MismatchError as error:
        found["drifted"] = str(error)
    try:
        workbench.torch.lightning.WorkbenchStrategy(backward_passes_per_step=2)
    except ValueError as error:
        found["refused"] = str(error)
    os.chdir(FOLDER)  # loggers write here
    space = {"pl": pl, "model": Mixed(), "loader": loader(), "loss_of": torch.nn.functional.mse_loss}
    with redirect_stdout(sys.stderr):
        exec(BLOCKS[0].code, space)
        model = net()
        exec(BLOCKS[1].code, space | {"model": model, "optimizer": torch.optim.SGD(model.parameters(), 0.1)})
    hvd.barrier()
    found["logs"] = len(list(Path("lightning_logs").iterdir()))
if RANK == 0:
    print(json.dumps(found))
