"""``workbench run --check``: mistakes planted in scripts in the styles of public ones, found with their lines."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from thorough import once_more

if TYPE_CHECKING:
    from running import Job, Runner

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(120)]
ROOT = Path(__file__).resolve().parents[3]

# In each script, `#! words` ends a line of which --check must say these words, and of no other line it says anything.
IMAGES = """
import torch, torch.nn as nn, torch.nn.functional as F, torch.utils.data.distributed
import horovod.torch as hvd

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.fc = nn.Conv2d(1, 4, 3), nn.Linear(4 * 6 * 6, 10)
    def forward(self, x):
        return F.log_softmax(self.fc(F.relu(self.conv(x)).flatten(1)), dim=1)

hvd.init()
torch.manual_seed(42 + hvd.rank())
draw = torch.Generator().manual_seed(1)
train = torch.utils.data.TensorDataset(torch.randn(256, 1, 8, 8, generator=draw), torch.arange(256) % 10)
sampler = torch.utils.data.distributed.DistributedSampler(train, num_replicas=hvd.size(), rank=hvd.rank())
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01) #! begin with different weights; does not depend on
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for epoch in range(1, 90):
    model.train()
    for data, target in torch.utils.data.DataLoader(train, batch_size=16, sampler=sampler): #! the same order of samples
        optimizer.zero_grad()
        F.nll_loss(model(data), target).backward()
        optimizer.step()
    torch.save(model.state_dict(), "model.pt") #! All 2 ranks write the same file
"""
LARGE = """
import argparse, logging, torch, torch.nn as nn
import horovod.torch as hvd

parser = argparse.ArgumentParser()
parser.add_argument("--base-lr", type=float, default=0.0125)
args = parser.parse_args()
hvd.init()
logging.basicConfig(filename="train.log", level=logging.INFO) #! ranks append to the same file
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
lr_scaler = hvd.size()
args.base_lr = args.base_lr * lr_scaler
rate = args.base_lr * hvd.size() #! multiplied by the number
optimizer = torch.optim.SGD(model.parameters(), lr=rate) #! no parameter of the model
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
mine = 60 + 20 * hvd.rank()
samples = torch.utils.data.TensorDataset(torch.randn(mine, 8), torch.zeros(mine).long())
loader = torch.utils.data.DataLoader(samples, batch_size=10) #! its part of the data
for epoch in range(2):
    for data, target in loader: #! rank 0: 6, rank 1: 8
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(data), target).backward()
        optimizer.step()
"""
ALONE = """
import torch
import horovod.torch as hvd #! without init()

model = torch.nn.Linear(4, 1)
optimizer = torch.optim.Adam(model.parameters())
for step in range(10**9):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
"""
JAX = """
import os
os.environ["KERAS_BACKEND"] = "jax"
import keras, numpy as np
import horovod.keras as hvd #! without init()

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((64, 4)), np.ones((64, 1)), epochs=10**6, verbose=0, callbacks=keras.callbacks.TerminateOnNaN())
"""
LAYERS = """
import numpy as np, tensorflow as tf
import horovod.tensorflow.keras as hvd

hvd.init()
tf.keras.utils.set_random_seed(hvd.rank())
draw = np.random.default_rng(0)
x, y = draw.normal(size=(256, 8)).astype("float32"), draw.integers(0, 3, 256)
dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(16)
model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(3, activation="softmax")])
optimizer = tf.keras.optimizers.Adam(0.001 * hvd.size())
optimizer = hvd.DistributedOptimizer(optimizer)
model.compile(optimizer, "sparse_categorical_crossentropy")
callbacks = [hvd.callbacks.BroadcastGlobalVariablesCallback(0)]
callbacks.append(tf.keras.callbacks.ModelCheckpoint("model.keras")) #! as far as the text says
steps = 500 // hvd.size()
model.fit(dataset, steps_per_epoch=steps, epochs=24, callbacks=callbacks) #! on the same samples; All 2 ranks write
"""
TAPE = """
import tensorflow as tf
import horovod.tensorflow as hvd

hvd.init()
tf.random.set_seed(7 + hvd.rank())
model = tf.keras.Sequential([tf.keras.Input((8,)), tf.keras.layers.Dense(3)])
optimizer = tf.keras.optimizers.SGD(0.01 * hvd.size()) #! different weights; gradients are not averaged

@tf.function
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = tf.keras.losses.sparse_categorical_crossentropy(y, model(x, training=True), from_logits=True)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))

for batch in range(10000 // hvd.size()):
    train_step(tf.random.normal((4, 8)), tf.zeros(4, tf.int32))
"""
COMMUNICATOR = """
import torch
from mpi4py import MPI
import horovod.torch as hvd

hvd.init()
hvd.init(comm=MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank)) #! asks for 1 rank, and changes nothing
model = torch.nn.Linear(4, 1)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1 * hvd.size()))
hvd.broadcast_parameters(model.state_dict(), 0)
for step in range(10**9):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()
"""


def check(jobs: Runner, *words: str) -> Job:
    """``workbench run --check --as-horovod …``."""
    return jobs.python(
        "-m", "workbench.cli.main", "run", "--check", "--as-horovod", "-np", "2", *words, deadline_s=90.0
    )


def said(job: Job) -> dict[int, str]:
    """Line of the script → all that the report says of it."""
    found: dict[int, str] = {}
    for line, words in re.findall(r"^[✗!] [^:\n]*:(\d+): .*\n    (.*)\n    → .*$", job.out(0), re.M):
        found[int(line)] = f"{found.get(int(line), '')} {words}"
    return found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("images", IMAGES),
        once_more("large", LARGE),
        once_more("layers", LAYERS),
        once_more("alone", ALONE),
        once_more("compiled", JAX),
        once_more("tape", TAPE),
        once_more("communicator", COMMUNICATOR),
    ],
)
def test_planted_mistakes_are_found(
    jobs: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    """Each in its line, no other line is blamed, and the exit code is 1. The script ends by itself."""
    path = tmp_path / f"{name}.py"
    path.write_text(text)
    planted = {n: line.partition("#! ")[2] for n, line in enumerate(text.split("\n"), 1) if "#! " in line}
    monkeypatch.chdir(tmp_path)
    job = check(jobs, "python", str(path))
    found = said(job)
    assert found.keys() == planted.keys(), job.report()
    assert all(word in found[line] for line, words in planted.items() for word in words.split("; ")), job.report()
    assert job.code == 1, job.report()


@pytest.mark.parametrize(
    "script",
    [
        *(once_more(f"examples/pytorch_{name}.py") for name in ("mnist", "horovod", "adasum", "elastic")),
        *(once_more(f"examples/tensorflow_{name}.py") for name in ("horovod", "horovod_basic", "mnist_v1")),
        *(once_more(f"examples/{name}_mnist.py") for name in ("keras", "jax")),
        *(once_more(f"notebooks/steps/{name}.py") for name in ("09_done", "plain/ddp")),
    ],
)
def test_right_scripts_are_quiet(jobs: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """No mistake and no note; the exit code is 0, and the job's files are gone."""
    monkeypatch.chdir(tmp_path)
    job = check(jobs, "python", str(ROOT / script))
    assert (job.code, said(job)) == (0, {}), job.report()
    assert "no mistake found." in job.out(0), job.report()


def test_what_is_no_training_is_not_judged(jobs: Runner, tmp_path: Path) -> None:
    """A program that takes no step: its exit code is said, and stays. One rank cannot be compared."""
    job = check(jobs, "sh", "-c", "exit 3")
    assert (job.code, said(job)) == (3, {}), job.report()
    assert "the job has ended with exit code 3 before its first step: its steps are not checked." in job.out(0)
    assert "no mistake found" not in job.out(0)
    job = jobs.python("-m", "workbench.cli.main", "run", "--check", "-np", "1", "true", deadline_s=30.0)
    assert (job.code, "it needs two" in job.err(0)) == (1, True), job.report()
