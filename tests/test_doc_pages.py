"""The pages of docs/ are true: their blocks are run, or held to what there is."""

from __future__ import annotations

import importlib
import inspect
import re
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from doc_blocks import ROOT, blocks, check_command, check_names, check_options, commands, found
from thorough import once_more

import workbench
from workbench.cli import main as cli
from workbench.cluster import Cluster

PAGES = sorted(path for room in ("how-to", "reference", "explanation") for path in (ROOT / "docs" / room).glob("*.md"))
PYTHON = {path.stem: blocks(path, "python") for path in PAGES}

# What the text around a block says in words.
TORCH = """
import numpy as np
import torch
import workbench
import workbench.torch as hvd
from torch.utils.data import DataLoader, TensorDataset

hvd.init()
torch.manual_seed(0)
model = torch.nn.Linear(4, 2)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
loss_of = torch.nn.functional.cross_entropy

def one_epoch(model, optimizer):
    optimizer.zero_grad()
    loss_of(model(torch.ones(2, 4)), torch.zeros(2, dtype=torch.long)).backward()
    optimizer.step()
"""
BEFORE = {
    "checkpoints": "sampler = hvd.elastic.ElasticSampler(range(8))\n"
    "train = hvd.elastic.run(lambda state: state.commit())",
    "data": """
import io, pathlib, tarfile
data = validation = TensorDataset(torch.ones(9, 4), torch.zeros(9, dtype=torch.long))
pathlib.Path("shards").mkdir()
def content(i):
    file = io.BytesIO()
    np.save(file, np.ones(4, np.float32))
    return {f"{i}.npy": file.getvalue(), f"{i}.cls": b"1"}
for number in range(3):
    with tarfile.open(f"shards/{number}.tar", "w") as tar:
        for i in range(5):
            for name, each in content(i).items():
                member = tarfile.TarInfo(name)
                member.size = len(each)
                tar.addfile(member, io.BytesIO(each))
""",
    "ddp": "",
    "debug": "loss = torch.ones(1)",
    "exact-elastic": "data = TensorDataset(torch.ones(128, 4), torch.zeros(128, dtype=torch.long))\nsteps = 2",
    "rank-dies": "",
    "straggler": "one_epoch(model, optimizer)",
}
AFTER = {"exact-elastic": "train(hvd.elastic.TorchState(model=model, optimizer=optimizer))"}
ENGINES = ("notebook", "start")
FRAMEWORKS = ("frameworks",)
TWO = ("faster",)
ALONE = ("inference",)
ERRORS = ("fsdp-errors",)
TF_DATA = PYTHON["data"].pop()  # run below
ONLY_READ = {
    "convert": "needs Lightning and HuggingFace's packages; tests/lightning and tests/programs run them",
    "gpus": "needs a GPU; tests/gpu does it",
    "learn": "asks a learner; tests/course/evidence answers",
    "hosts": "needs other hosts; tests/launch/hosts has some",
    "predict": "measures for seconds on an idle machine; tests/calibration does it",
    "ray": "needs Ray; tests/on_ray does it",
    "slurm": "needs Slurm; tests/cluster has a stand-in",
    "spark": "needs Spark; tests/spark does it",
    "trackers": "needs trackers; tests/programs installs and runs them",
}
EXPLAINED = {
    "RayExecutor": "workbench.ray.RayExecutor",
    "TorchEstimator": "workbench.spark.torch.TorchEstimator",
    "Store": "workbench.spark.common.store.Store",
}
ELSEWHERE = {"conda", "export", "helm", "kubectl", "nbgrader", "py-spy", "salloc", "srun"}


def test_each_page_with_python_is_run_or_says_why_not() -> None:
    """A new page is in one of these lists."""
    assert {page for page, found in PYTHON.items() if found} == {
        *BEFORE,
        *ENGINES,
        *FRAMEWORKS,
        *TWO,
        *ALONE,
        *ERRORS,
        *ONLY_READ,
    }


# Those of other frameworks are run below; imported here, these leave threads.
HEAVY = {"convert", "trackers"}  # Lightning, HuggingFace's packages, TensorFlow
LIGHT = {*PYTHON} - HEAVY - {*FRAMEWORKS}


@pytest.mark.parametrize("pages", [LIGHT, once_more(HEAVY)], ids=["light", "heavy"])
def test_what_python_names_exists(pages: set[str]) -> None:
    """Each block is valid Python, and takes of the workbench only what it has, with arguments that it takes."""
    pytest.importorskip("torch")
    for block in [block for page in pages for block in PYTHON[page]]:
        check_names(block, EXPLAINED)


def test_commands_are_understood() -> None:
    """Each sub-command, option, target of make and extra exists; those within sentences, too."""
    for path in PAGES:
        for command in commands(path):
            check_command(command, ELSEWHERE)
        for words in re.findall(r"`workbench ([a-z][^`]*)`", path.read_text(encoding="utf-8")):
            check_options(words)


def test_names_within_sentences_exist() -> None:
    """Such as `hvd.barrier()`, `cluster.status()` and `engines.rescue()`."""
    pytest.importorskip("torch")
    text = "\n".join(path.read_text(encoding="utf-8") for path in PAGES)
    for name in re.findall(r"`(?:workbench|cluster)\.([a-z]\w*(?:\.\w+)*)\(", text):
        found(f"workbench.{name}" if f"`workbench.{name}(" in text else f"workbench.cluster.{name}")
    for name in re.findall(r"`hvd\.([a-zA-Z]\w*(?:\.\w+)*)", text):
        found(f"workbench.torch.{name}")
    for name in re.findall(r"`engines\.(\w+)", text):
        assert hasattr(Cluster, name) or f"self.{name} =" in inspect.getsource(Cluster)


def run(folder: Path, code: str) -> str:
    """What a script prints that must succeed."""
    (folder / "page.py").write_text(code)
    done = subprocess.run([sys.executable, "page.py"], cwd=folder, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def scripts(page: str) -> str:
    """The blocks of a page, one behind the other, behind what its text takes for granted."""
    return "\n".join([BEFORE[page], *(block.code for block in PYTHON[page]), AFTER.get(page, ""), f"print('{page}')"])


@pytest.mark.process
@pytest.mark.timeout(120)
def test_blocks_for_scripts_run(warm_torch: None, tmp_path: Path) -> None:
    """Page by page on one rank, in a job of its own each."""
    pytest.importorskip("torch")
    (tmp_path / "checkpoints").mkdir()
    pages = {page: TORCH + scripts(page) + "\nhvd.shutdown()\n" for page in BEFORE}
    code = f"for code in {list(pages.values())!r}:\n    exec(code, {{'__name__': 'page'}})\n"
    assert set(run(tmp_path, code).split()) >= set(pages)


@pytest.mark.process
@pytest.mark.timeout(120)
def test_errors_are_those_that_their_page_explains(warm_torch: None, tmp_path: Path) -> None:
    """Each heading with a message is in what torch says there; what the page writes instead runs."""
    pytest.importorskip("torch")
    (page,) = ERRORS
    code = "import workbench\nworkbench.init()\n" + "\n".join(block.code for block in PYTHON[page])
    said = run(tmp_path, code)
    messages = re.findall(r"^## `(.*)`$", (ROOT / "docs" / "how-to" / f"{page}.md").read_text(), re.MULTILINE)
    assert len(messages) == 6
    assert [each for each in messages if each not in said] == []


def test_what_is_measured_is_planned_on_two_ranks(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """The block measures for a shorter time here, and may doubt what it finds."""
    torch = pytest.importorskip("torch")
    hvd = importlib.import_module("workbench.torch")
    monkeypatch.setattr(workbench, "measure", partial(workbench.measure, seconds=0.5, doubt=1e3))
    batch = {"images": torch.ones(2, 4), "labels": torch.zeros(2, dtype=torch.long)}
    (block,) = PYTHON["faster"]

    def on_a_rank() -> None:
        names = {"torch": torch, "hvd": hvd, "workbench": workbench, "model": torch.nn.Linear(4, 2), **batch}
        exec(block.code, names)

    workbench.run_threads(2, on_a_rank)
    assert capsys.readouterr().out.count("overlap_forward") >= 2


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.timeout(120)
def test_a_model_predicts_the_same_without_the_workbench(tmp_path: Path) -> None:
    """Saved by rank 0 of two, loaded where nobody can import the workbench; both ranks gather the same answers."""
    pytest.importorskip("torch")
    train, alone, on_ranks = (block.code for block in PYTHON["inference"])
    (tmp_path / "train.py").write_text(train + on_ranks + "print(made.tolist(), flush=True)\n")
    words = [str(Path(sys.executable).with_name("workbench")), "run", "-np", "2", sys.executable, "train.py"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    without = "import os, sys\nsys.modules['workbench'] = None\n"
    without += "os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '0'\n"  # nor is its entry point where it is not installed
    answers = run(tmp_path, without + alone + "print(made.tolist())\n").strip()
    found = [eval(line.partition(":")[2]) for line in done.stdout.splitlines()]
    assert len(found) == 2, done.stderr
    assert all(rows == [pytest.approx(row) for row in eval(answers)] for rows in found)


# What each of two ranks sees of tf.data in two epochs; what the page's table calls mistakes are mistakes.
TWO_RANKS = """
from collections import Counter
from types import SimpleNamespace
tf.random.set_seed(0)
for number in range(3):
    with tf.io.TFRecordWriter(f"{number}.tfrecord") as file:
        [file.write(str(i)) for i in range(100) if i % 3 == number]

def seen(make):  # by both ranks, in two epochs
    global hvd
    found = []
    for rank in range(2):
        hvd = SimpleNamespace(size=lambda: 2, rank=lambda: rank)
        data = make()
        found += [int(each) for _ in range(2) for each in data.as_numpy_iterator()]
    return Counter(found)

def policy(which):
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = which
    return tf.data.Dataset.range(100).with_options(options)

once = Counter(2 * list(range(100)))
assert seen(lambda: from_files("*.tfrecord")) == seen(lambda: from_samples(tf.range(100))) == once
assert seen(lambda: tf.data.Dataset.range(100).shuffle(100).shard(hvd.size(), hvd.rank())) != once
for which in (tf.data.experimental.AutoShardPolicy.FILE, tf.data.experimental.AutoShardPolicy.DATA):
    assert seen(lambda: policy(which)) == once + once
"""


@pytest.mark.thorough
@pytest.mark.process
@pytest.mark.timeout(120)
def test_blocks_for_other_frameworks_run(tmp_path: Path) -> None:
    """TensorFlow, Keras and JAX; in a process of their own, for these leave threads in it."""
    for package in ("jax", "optax", "tensorflow"):
        if find_spec(package) is None:
            pytest.skip(f"needs the extra of {package}")
    tensorflow, keras, more, jax = PYTHON["frameworks"]
    step = "step(tf.ones([2, 64]), tf.zeros([2], tf.int32))\nhvd.shutdown()\n"
    one = "model.fit(tf.ones([2, 64]), tf.zeros([2]), callbacks=callbacks, verbose=0)\n"
    fit = one.replace("callbacks=", "epochs=2, validation_split=0.5, callbacks=") + "hvd.shutdown()\n"
    update = "optimizer.update(params, optimizer.init(params))\nprint('all')\n"
    with_keras = keras.code + one + more.code + fit
    tf_data = TF_DATA.code + TWO_RANKS
    assert "all" in run(tmp_path, tensorflow.code + step + with_keras + tf_data + jax.code + update)


@pytest.mark.process
@pytest.mark.thorough
@pytest.mark.timeout(120)
@pytest.mark.parametrize("page", ENGINES)
def test_blocks_for_notebooks_run(page: str, tmp_path: Path) -> None:
    """As cells, one after the other."""
    pytest.importorskip("torch")
    cells = [block.text for block in PYTHON[page]]
    code = f"""
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in {cells!r}:
    shell.run_cell(cell).raise_error()
shell.run_cell("engines.down()").raise_error()
"""
    run(tmp_path, code)


# Without an optimizer, and of tensors that are sent within announcements: two states never come.
ADDS = """
import os
from pathlib import Path
import numpy as np
import workbench as hvd
from workbench import elastic
from workbench.common.chaos import parse
from workbench.job.objects import broadcast_object
hvd.init()
chaos = parse(os.environ.get("WORKBENCH_CHAOS", "delays=1"))

def more(state):
    left = chaos.record and len(list(Path(chaos.record).iterdir())) < len(chaos.plan())
    return state.step < 20 or broadcast_object(left, root_rank=0, name="left")

@elastic.run
def train(state):
    while more(state):
        hvd.allreduce(np.ones(4), name="x")
        state.step += 1
        state.commit()

train(elastic.ObjectState(broadcast_object, hvd.rank, step=0))
"""
HERE = [each for path in PAGES for each in commands(path) if each.startswith("workbench run -np")]


@pytest.mark.process
@pytest.mark.thorough
@pytest.mark.timeout(120)
@pytest.mark.parametrize("command", HERE)
def test_commands_for_this_machine_run(command: str, tmp_path: Path) -> None:
    """`workbench run` with a training that loses as many ranks as it is to; 3 for 20, since a host rests after each."""
    for script in filter(re.compile(r"\w+\.py").fullmatch, command.split()):
        (tmp_path / script).write_text(ADDS)
    words = [sys.executable if word == "python" else word for word in command.replace("kills=20", "kills=3").split()]
    words[0] = str(Path(sys.executable).with_name("workbench"))
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kills=" not in command or "3 of 3 faults happened" in done.stderr


def test_written_files_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Manifests and batch scripts need nothing of the cluster that they are for."""
    monkeypatch.chdir(tmp_path)
    written = [each.partition(" | ")[0] for path in PAGES for each in commands(path)]
    written = [each for each in written if each.startswith(("workbench k8s", "workbench slurm"))]
    assert len(written) >= 3
    assert [cli.main(each.split()[1:]) for each in written] == [0] * len(written)
