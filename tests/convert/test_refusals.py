"""What is not understood is left to decide, with the line and what to do; what trains nothing is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from converting import decided

pytest.importorskip("libcst")

from workbench.convert.conversion import Options, convert
from workbench.convert.source import RefusedError, read

TRAINING = """\
import torch
from torch.utils.data import DataLoader, TensorDataset
data = TensorDataset(torch.ones(8, 2), torch.ones(8, 1))
loader = DataLoader(data, batch_size=4, shuffle=True)
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loss_of = torch.nn.MSELoss()
for epoch in range(2):
    for x, y in loader:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
"""
KERAS = """\
import keras
import numpy as np
x, y = np.ones((8, 2)), np.ones(8)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile(optimizer="sgd", loss="mse")
model.fit(x, y, batch_size=4)
"""
LOOP = """\
import tensorflow as tf
data = tf.data.Dataset.from_tensor_slices((tf.ones([8, 2]), tf.ones([8, 1]))).batch(4)
model = tf.keras.Sequential([tf.keras.Input((2,)), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.SGD(0.1)
for x, y in data:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(x) - y) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
"""


def refused(text: str) -> list[tuple[int, str]]:
    """Lines, and what is to decide there, or why the script is refused."""
    try:
        return decided(text)
    except RefusedError as error:
        return [(each.line, each.text) for each in error.reasons]


@pytest.mark.parametrize("text", [TRAINING, KERAS, LOOP])
def test_the_scripts_below_are_converted_without_their_faults(text: str) -> None:
    """So each refusal is that of its fault."""
    assert "hvd.init()" in convert("train.py", text).after


FAULTS: dict[str, list[tuple[str, str, int, str]]] = {
    TRAINING: [
        ("import torch\n", "from torch import *\n", 1, "Import by name"),
        ("shuffle=True", "sampler=mine", 4, "a sampler of its own"),
        ("batch_size=4, ", "", 4, "a batch is one sample"),
        ("DataLoader(data, batch_size=4, shuffle=True)", "[(data[0], data[1])]", 9, "no loop over a DataLoader"),
        ("optimizer = torch.optim.SGD(", "weights = list(", 0, "no optimizer of torch.optim"),
        ("optimizer.step()", "pass", 6, "where this optimizer steps"),
        ("MSELoss()", "CTCLoss(reduction='none')", 12, "--loss mean"),
        ("loss.backward()", "loss.backward()\n        if loss < 1: break", 13, "decide about break"),
        (
            "loss.backward()",
            "loss.backward()\n        import time\n        if time.time() > 9: break",
            14,
            "a time and random numbers",
        ),
        (
            "loss.backward()",
            "meter.add(loss)\n        loss.backward()\n        if meter.mean < 1: break",
            14,
            "samples of its own",
        ),
        ("loss_of(model(x), y)", "(model(x) @ model(x).T).mean()", 11, "compared with each other"),
        ("        optimizer.step()", "        if loss < 1: optimizer.step()", 13, "decide about step()"),
        ("model = torch", "model = torch.nn.DataParallel(torch.nn.Linear(1, 1)) or torch", 5, "a rank has one GPU"),
        ("loss_of = ", "torch.nn.init.zeros_(model.weight)\nloss_of = ", 7, "move it before"),
        ("model(x)", 'model(x.to("cuda:1"))', 11, "each rank should have its own"),
        ("import torch\n", "import torch; import os; os.environ['CUDA_VISIBLE_DEVICES'] = '0'\n", 1, "the same on all"),
        ("import torch\n", "import torch; import numpy as np; rng = np.random.default_rng()\n", 1, "give one"),
        ("loss_of = ", "hvd = 1\nloss_of = ", 7, "the name hvd"),
        ("import torch\n", "import time, torch, pytorch_lightning\n", 1, "its trainer has the loop"),
        ("optimizer.zero_grad()", "print 'step'", 10, "Python 2"),
        ("optimizer.zero_grad()", "optimizer.zero_grad(", 10, "not valid Python"),
    ],
    KERAS: [
        ('loss="mse"', 'loss="mse", jit_compile=True', 5, "XLA"),
        ("model.fit(x, y", "model.fit(batches()", 6, "neither arrays"),
        ("model.fit(x, y", "model.fit(x, y, steps_per_epoch=3", 6, "steps_per_epoch"),
        ("batch_size=4", "callbacks=[keras.callbacks.BackupAndRestore('b')]", 6, "another epoch"),
        ("import keras\n", "import os; os.environ['KERAS_BACKEND'] = 'jax'; import keras\n", 1, "Keras on jax"),
        ('loss="mse"', "loss=keras.losses.MeanSquaredError(reduction='sum')", 5, "is a sum"),
        ("model.fit(x, y", "model.fit(np.ones((8, 2)), y", 6, "give these samples a name"),
    ],
    LOOP: [
        ("tf.reduce_mean(", "tf.norm(", 8, "--loss mean"),
        (".batch(4)", "", 5, "0 calls of batch()"),
        ("for x, y in data:", "for x, y in other:", 5, "no loop over a data set"),
        ("tf.keras.optimizers.SGD(0.1)", "tf.distribute.MirroredStrategy()", 4, "tf.distribute"),
        ("tf.ones([8, 2])", "tf.random.normal([8, 2])", 2, "without a seed"),
    ],
}


@pytest.mark.parametrize(
    ("script", "old", "new", "line", "words"), [(script, *fault) for script in FAULTS for fault in FAULTS[script]]
)
def test_one_fault(script: str, old: str, new: str, line: int, words: str) -> None:
    """In a script for PyTorch, for Keras, or for TensorFlow with a loop of its own."""
    assert old in script
    found = refused(script.replace(old, new, 1))
    assert any(at == line and words in text for at, text in found), found


def test_a_batch_size_within_the_loop() -> None:
    """It is that of all ranks."""
    text = TRAINING.replace("batch_size=4", "batch_size=SIZE").replace("model(x)", "model(x.view(SIZE, 2))")
    assert refused(text)[0][0] == 11
    assert "this batch is smaller" in refused(text)[0][1]
    assert "SIZE // hvd.size()" in convert("train.py", text.replace("SIZE, 2", "-1, 2")).after


def test_one_of_several_optimizers() -> None:
    """One in each branch of an if is wrapped after it."""
    one = "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
    text = TRAINING.replace(one, f"if epoch:\n    {one}else:\n    {one.replace('SGD', 'Adam')}")
    lines = convert("train.py", text).after.splitlines()
    (number,) = [i for i, line in enumerate(lines) if line.startswith("optimizer = hvd.DistributedOptimizer")]
    assert lines[number - 2].lstrip().startswith("optimizer = torch.optim.Adam")


def test_what_is_counted_in_the_loop_are_own_samples() -> None:
    """Of so many as a rank has; a number of steps stays as it was."""
    text = TRAINING.replace("optimizer.zero_grad()", "print(len(loader.dataset), len(loader.dataset) // 4)")
    assert "print(len(loader.sampler), len(loader.dataset) // 4)" in convert("train.py", text).after


def test_what_is_edited_within_an_edit_stays() -> None:
    """A callback that writes is rank 0's, also in an expression of lists."""
    more = (
        "callbacks=[] if model is None else [keras.callbacks.TerminateOnNaN()] + [keras.callbacks.CSVLogger('a.csv')])"
    )
    after = convert("train.py", KERAS.replace("batch_size=4)", f"batch_size=4, {more}")).after
    assert "+ [*([keras.callbacks.CSVLogger('a.csv')] if hvd.rank() == 0 else [])])]" in after


def test_a_file_that_is_written_during_the_training() -> None:
    """Rank 0 writes it, the others into nothing; one that is read, too, is refused; who loads what was saved waits."""
    text = TRAINING + 'open("log.csv", "w").write(str(loss))\n'
    assert 'open("log.csv" if hvd.rank() == 0 else os.devnull, "w")' in convert("train.py", text).after
    assert "import os\n" in convert("train.py", text).after
    assert "write" in refused(text + 'print(open("log.csv").read())\n')[0][1]
    lines = convert("train.py", TRAINING + "torch.save(model, 'm')\nnew = torch.load('m')\n").after.splitlines()
    assert lines[lines.index("new = torch.load('m')") - 1] == "hvd.barrier()"


def test_output_before_the_beginning_of_the_main_part() -> None:
    """A function that is called while the module is imported may print: ``init()`` comes before it."""
    text = TRAINING.replace("for epoch", "def main():\n  for epoch").replace("\n    ", "\n      ")
    text = f"{text}if __name__ == '__main__':\n    main()\n"
    text = text.replace("data =", "def say():\n    print(1)\nsay()\ndata =")
    lines = convert("train.py", text).after.splitlines()
    assert lines.index("hvd.init()") < lines.index("say()")


def test_what_the_user_says_is_believed() -> None:
    """``--loss sum``: the gradients are added."""
    text = TRAINING.replace("loss_of(model(x), y)", "mystery(model(x), y)")
    assert "--loss mean" in refused(text)[0][1]
    assert "op=hvd.Sum" in convert("train.py", text, Options(loss="sum")).after
    assert "op=" not in convert("train.py", text, Options(loss="mean")).after


def test_the_rate_can_grow_with_the_ranks() -> None:
    """Then each rank takes a whole batch."""
    after = convert("train.py", TRAINING, Options(scale_rate=True)).after
    assert "lr=0.1 * hvd.size()" in after
    assert "batch_size=4," in after


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        (b"\n \n", "it is empty"),
        (b"import torch\n# caf\xe9\n", "not text in UTF-8"),
        (b"# coding: klingon\nimport torch\n", "not text in UTF-8"),
        (b"\x00\x01\x02", "null bytes"),
        (b'{"cells": [], "nbformat": 4}', "it is a notebook"),
        (b"import math\n", "imports neither torch"),
        (b"(" * 5000, "too many nested parentheses"),
    ],
)
def test_a_file_that_is_no_script(content: bytes, words: str, tmp_path: Path) -> None:
    """A sentence, and no traceback."""
    path = tmp_path / "train.py"
    path.write_bytes(content)
    with pytest.raises(RefusedError, match=words):
        convert(path.name, read(path).text)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    """Missing, a folder, a notebook."""
    for name, words in {"none.py": "No such file", ".": "Is a directory", "a.ipynb": "jupyter nbconvert"}.items():
        with pytest.raises(RefusedError, match=words):
            read(tmp_path / name)


def test_an_encoding_is_kept(tmp_path: Path) -> None:
    """The one that the script declares."""
    path = tmp_path / "train.py"
    path.write_bytes(("# -*- coding: latin-1 -*-\n# é\n" + TRAINING).encode("latin-1"))
    source = read(path)
    assert "# é\n" in convert(path.name, source.text).after
    assert source.encoding == "iso-8859-1"
