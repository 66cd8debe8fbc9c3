"""Runs a section of docs/how-to/trackers.md, and prints from rank 0 what the tracker has got of all ranks.

workbench run -np 2 python tracked.py PAGE SECTION
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

PAGE, SECTION = sys.argv[1:]
BEGINS = {"tensorboard": "from torch.utils.tensorboard", "keras": "import keras"}
BLOCKS = re.findall(r"^```python\n(.*?)^```$", Path(PAGE).read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def train(epoch: int) -> tuple[float, float]:
    """This rank's loss and accuracy; the ranks' mean loss is epoch + 1/2."""
    return float(epoch + hvd.rank()), 1.0


def train_with(params: dict[str, float], epoch: int) -> float:
    """This rank's loss, which is the less, the nearer the learning rate is to 0.1."""
    steps.append((params["lr"], epoch))
    return abs(params["lr"] - 0.1) + hvd.rank()


def events() -> Any:
    """What is in the one file that TensorBoard would read."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (path,) = Path("runs").rglob("*tfevents*")
    return EventAccumulator(str(path)).Reload()


def of_tensorboard() -> Any:
    """The losses."""
    return [each.value for each in events().Scalars("loss")]


def of_keras() -> Any:
    """The losses, and those that all ranks have."""
    import tensorflow as tf

    return [tf.make_ndarray(each.tensor_proto).item() for each in events().Tensors("epoch_loss")]


def of_mlflow() -> Any:
    """The losses of the one run."""
    client = space["mlflow"].MlflowClient()
    (run,) = client.search_runs(["0"])
    return [each.value for each in client.get_metric_history(run.info.run_id, "loss")]


def of_wandb() -> Any:
    """The losses of the one run; nothing reads this file but a service, and they stand there as text."""
    (path,) = Path("wandb").glob("offline-run-*/*.wandb")
    return [float(each) for each in sorted({*re.findall(rb"loss\x82\x01\x03(\d\.\d)", path.read_bytes())})]


def of_optuna() -> Any:
    """How the trials have ended, and the best."""
    study = space["study"]
    return [each.state.name for each in study.trials], len(steps), study.best_value


steps: list[tuple[float, int]] = []
space: dict[str, Any] = {"train": train, "train_with": train_with}
exec(BLOCKS[0], space)
hvd = space["hvd"]
if SECTION == "keras":
    import keras
    import numpy as np

    import workbench.keras

    x = np.random.default_rng(hvd.rank()).normal(size=(32, 4))
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(workbench.keras.DistributedOptimizer(keras.optimizers.SGD(0.01)), "mse")
    space |= {"x": x, "y": x.sum(1), "model": model}
exec(next(each for each in BLOCKS if each.startswith(BEGINS.get(SECTION, f"import {SECTION}"))), space)
everyone = hvd.allgather_object([steps, space["history"].history["loss"] if SECTION == "keras" else []])
assert all(each == everyone[0] for each in everyone)
OF: dict[str, Callable[[], Any]] = {
    "tensorboard": of_tensorboard,
    "keras": of_keras,
    "mlflow": of_mlflow,
    "wandb": of_wandb,
    "optuna": of_optuna,
}
if hvd.rank() == 0:
    print("RESULT", json.dumps([OF[SECTION](), everyone[0][1]]))
