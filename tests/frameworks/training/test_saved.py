"""What is saved after distributed training predicts the same without the workbench, and trains on with it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import keras
import numpy as np
import pytest
from keras_twins import (
    BACKEND,
    QUICK,
    ROWS,
    STEPS,
    assert_same_everywhere,
    begin,
    compiled,
    data,
    difference,
    fitted,
    net,
    part,
    precision,
    twins,
)

import workbench.keras as hvd

# The None makes `import workbench` fail, however it is installed.
_WITHOUT = """
import sys
sys.modules["workbench"] = None
try:
    import workbench
except ImportError:
    pass
else:
    raise SystemExit("workbench can be imported")
import numpy as np
x, made = np.load("x.npy"), {}
"""
_KERAS = """
import keras
model = keras.models.load_model("model.keras")
assert type(model.optimizer) is type(keras.optimizers.Adam())
made["keras"] = model.predict(x, verbose=0)
with open("model.json") as file:
    again = keras.models.model_from_json(file.read())
again.load_weights("model.weights.h5")
made["weights"] = again.predict(x, verbose=0)
model.fit(x, made["keras"], verbose=0)
"""
_TENSORFLOW = """
import tensorflow as tf
exported = tf.saved_model.load("exported")
made["saved model"] = exported.serve(x).numpy()
with tf.Graph().as_default(), tf.compat.v1.Session() as session:
    saver = tf.compat.v1.train.import_meta_graph("v1/model.meta")
    saver.restore(session, "v1/model")
    made["checkpoint"] = session.run("made:0", {"x:0": x})
"""
_TORCH = """
import torch
model = torch.load("model.pt", weights_only=False)
state = torch.load("state.pt", weights_only=True)
made["torch"] = model(torch.from_numpy(x)).detach().numpy()
model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
model.load_state_dict(state["model"])
made["state"] = model(torch.from_numpy(x)).detach().numpy()
optimizer = torch.optim.Adam(model.parameters())
optimizer.load_state_dict(state["optimizer"])
assert len(optimizer.state) == 4
"""


def without_workbench(folder: Path, *scripts: str) -> dict[str, Any]:
    """Run the scripts in the folder, in a process that cannot import the workbench; what they made."""
    ours = ("PMI", "PYTHON", "HYD", "MPI", "WORKBENCH", "PYTEST")
    env = {name: text for name, text in os.environ.items() if not name.startswith(ours)}
    env["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"  # torch would look for the one that is installed here
    text = "\n".join([_WITHOUT, *scripts, 'np.savez("made.npz", **made)'])
    done = subprocess.run([sys.executable, "-I", "-c", text], cwd=folder, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    with np.load(folder / "made.npz") as made:
        return dict(made)


def v1_checkpoint(folder: Path, n: int) -> Any:
    """A graph of TensorFlow 1, trained on all ranks and saved on rank 0; its prediction as an array."""
    import tensorflow as tf

    import workbench.tensorflow as tf_hvd

    v1 = tf.compat.v1
    (x, y), graph = data(n), tf.Graph()
    with graph.as_default():
        v1.set_random_seed(hvd.rank())
        inputs, wanted = v1.placeholder("float32", [None, 5], "x"), v1.placeholder("float32", [None, 2])
        w = v1.get_variable("w", [5, 2])
        made = tf.identity(inputs @ w, "made")
        train = tf_hvd.DistributedOptimizer(v1.train.AdamOptimizer(0.01)).minimize(tf.reduce_mean((made - wanted) ** 2))
        saver, same_start = v1.train.Saver(), tf_hvd.broadcast_global_variables(0)
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            session.run(same_start)
            for _ in range(3):
                session.run(train, {inputs: part(x), wanted: part(y)})
            if hvd.rank() == 0:
                saver.save(session, str(folder / "v1" / "model"))
            return session.run(made, {inputs: x[:7]})


def torch_model(folder: Path, n: int) -> Any:
    """A torch model, trained on all ranks and saved on rank 0; its prediction as an array."""
    import torch

    import workbench.torch as torch_hvd

    torch.manual_seed(hvd.rank())
    model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
    torch_hvd.broadcast_parameters(model.state_dict(), 0)
    optimizer = torch_hvd.DistributedOptimizer(torch.optim.Adam(model.parameters()), model.named_parameters())
    x, y = (torch.from_numpy(each) for each in data(n))
    for _ in range(3):
        optimizer.zero_grad()
        (model(part(x)) - part(y)).square().mean().backward()
        optimizer.step()
    if hvd.rank() == 0:
        torch.save(model, folder / "model.pt")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "state.pt")
    return model(x[:7]).detach().numpy()


@pytest.mark.thorough
@pytest.mark.usually("torch", "tensorflow")
def test_models_need_no_workbench(n: int, rank: int, tmp_path: Path) -> None:
    """Models, weights, exports and checkpoints predict the same where nobody can import the workbench."""
    make: Any = net
    if BACKEND == "tensorflow":
        import workbench.tensorflow as tf_hvd

        def make() -> Any:
            inner = net()
            return keras.Model(inner.input, tf_hvd.SyncBatchNormalization(name="norm")(inner.output))

    keras.utils.set_random_seed(rank)
    model, (x, y) = make(), data(n)
    compiled(model, hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), **QUICK)
    fitted(model, part(x), part(y), ROWS, 1, [begin()])
    scripts = [_KERAS]
    if rank == 0:
        np.save(tmp_path / "x.npy", x[:7])
        model.save(tmp_path / "model.keras")
        model.save_weights(tmp_path / "model.weights.h5")
        (tmp_path / "model.json").write_text(model.to_json())
    here = dict.fromkeys(["keras", "weights"], model.predict(x[:7], verbose=0))
    if BACKEND == "tensorflow":
        scripts += [_TENSORFLOW]
        here |= {"checkpoint": v1_checkpoint(tmp_path, n), "saved model": here["keras"]}
        if rank == 0:
            model.export(tmp_path / "exported", verbose=False)
    if BACKEND == "torch":
        scripts += [_TORCH]
        here |= dict.fromkeys(["torch", "state"], torch_model(tmp_path, n))
    if rank == 0:
        there = without_workbench(tmp_path, *scripts)
        assert set(there) == set(here)
        for name, wanted in here.items():
            np.testing.assert_allclose(there[name], wanted, rtol=0, atol=1e-6, err_msg=name)


def test_load_model_trains_on(n: int, rank: int, tmp_path: Path) -> None:
    """Saved by rank 0 after an epoch and loaded everywhere: two epochs on all ranks end as two without a break."""
    with precision("float64"):
        model, serial = twins()
        x, y = data(n)
        compiled(model, hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), **QUICK)
        fitted(model, part(x), part(y), ROWS, 1, [begin()])
        path = hvd.broadcast_object(str(tmp_path / "model.keras"))
        if rank == 0:
            model.save(path)
            with ZipFile(path) as parts:
                assert b"workbench" not in parts.read("config.json"), "plain Keras can load it"
        hvd.barrier()
        custom = {type(each).__name__: type(each) for each in model.layers}
        loaded = hvd.load_model(path, custom_objects=custom)
        assert difference(loaded, model) == 0.0, "weights and optimizer state"
        assert isinstance(loaded.optimizer, keras.optimizers.Adam)
        assert int(loaded.optimizer.iterations.value) == STEPS
        fitted(loaded, part(x), part(y), ROWS, 1)
        fitted(compiled(serial, keras.optimizers.Adam(0.01), **QUICK), x, y, ROWS * n, 2)
        assert difference(loaded, serial) < 1e-10
        assert_same_everywhere(loaded)


@pytest.mark.thorough
@pytest.mark.usually("torch", "tensorflow")
def test_load_model_with_an_optimizer_of_ones_own(n: int, rank: int, tmp_path: Path) -> None:
    """custom_optimizers are known when the file is read, and wrapped."""
    model = compiled(net(), hvd.DistributedOptimizer(Slow(0.01)), **QUICK)
    x, y = data(n)
    fitted(model, part(x), part(y), ROWS, 1, [begin()])
    path = hvd.broadcast_object(str(tmp_path / "model.keras"))
    if rank == 0:
        model.save(path)
    hvd.barrier()
    loaded = hvd.load_model(path, custom_optimizers=[Slow])
    assert isinstance(loaded.optimizer, Slow)
    fitted(loaded, part(x), part(y), ROWS, 1)
    assert_same_everywhere(loaded)


class Slow(keras.optimizers.SGD):
    """An optimizer that Keras does not know."""
