"""One of Horovod's examples, unchanged, on a little data: ``python horovod_example.py EXAMPLE [ITS ARGUMENTS]``.

What it would download is put in place before: clothes instead of digits. Its loops are shortened, and torch drops no
values, so that ranks can be compared. At its end each rank prints the size of its world and the sum of its weights.
"""

import gzip
import runpy
import struct
import sys
from importlib import import_module
from pathlib import Path

import numpy as np

from workbench.data import fashion_mnist

TRAINED, TESTED, STEPS = 640, 128, 20
np.Inf = np.inf  # Lightning 1.2 asks for it
trained = []


def pictures(part):
    """Bytes and labels, as MNIST has them."""
    data = fashion_mnist(download=False)
    x, y = (data.train_x[:TRAINED], data.train_y[:TRAINED]) if part == "train" else (data.test_x, data.test_y)
    count = TRAINED if part == "train" else TESTED
    return np.rint(np.asarray(x[:count]).reshape(-1, 28, 28) * 255).astype(np.uint8), np.asarray(y[:count], np.uint8)


def put_torchvision_files(folder):
    """The four files that torchvision would download."""
    raw = Path(folder, "MNIST", "raw")
    raw.mkdir(parents=True, exist_ok=True)
    for part, name in (("train", "train"), ("test", "t10k")):
        x, y = pictures(part)
        images = struct.pack(">4i", 2051, *x.shape) + x.tobytes()
        labels = struct.pack(">2i", 2049, len(y)) + y.tobytes()
        for kind, content in (("images-idx3", images), ("labels-idx1", labels)):
            (raw / f"{name}-{kind}-ubyte").write_bytes(content)
            (raw / f"{name}-{kind}-ubyte.gz").write_bytes(gzip.compress(content))


def prepare_torch():
    """Torch: remember what is trained, drop nothing, and put the files in place."""
    import cpu_torchvision  # noqa: F401 - before torchvision
    import torch

    begin = torch.optim.Optimizer.__init__

    def remember(self, params, *args, **kwargs):
        begin(self, params, *args, **kwargs)
        trained.append(lambda: [each.detach().numpy() for group in self.param_groups for each in group["params"]])

    torch.optim.Optimizer.__init__ = remember
    for name in ("dropout", "dropout2d"):
        setattr(torch.nn.functional, name, lambda x, *args, **kwargs: x)
    hvd = import_module("horovod.torch")
    for folder in ("data", *(f"data-{rank}" for rank in range(2))):
        put_torchvision_files(folder)
    return hvd


def prepare_tensorflow():
    """TensorFlow: remember what is trained, shorten the loops, and hand the pictures over."""
    import tensorflow as tf

    if not hasattr(tf.keras, "__version__"):
        tf.keras.__version__ = "2.21"  # which Keras 2 has beside TensorFlow alone
    begin, fit, take = tf.keras.Model.__init__, tf.keras.Model.fit, tf.data.Dataset.take
    hvd = import_module("horovod.tensorflow")

    def remember(self, *args, **kwargs):
        begin(self, *args, **kwargs)
        trained.append(lambda: [each.numpy() for each in self.trainable_variables])

    def short_fit(self, *args, epochs=1, steps_per_epoch=None, **kwargs):
        steps = steps_per_epoch and min(steps_per_epoch, STEPS // hvd.size())
        return fit(self, *args, epochs=min(epochs, 3), steps_per_epoch=steps, **kwargs)

    tf.keras.Model.__init__, tf.keras.Model.fit = remember, short_fit
    tf.data.Dataset.take = lambda self, count, **kwargs: take(self, min(count, 2 * STEPS // hvd.size()), **kwargs)
    tf.keras.datasets.mnist.load_data = lambda path="": (pictures("train"), pictures("test"))
    return hvd


import_module("setuptools")  # brings distutils to a Python that has none
script = sys.argv[1]
hvd = (prepare_torch if "import torch" in Path(script).read_text() else prepare_tensorflow)()
sys.argv = sys.argv[1:]
runpy.run_path(script, run_name="__main__")
weights = [np.asarray(each, np.float64) for each in trained[-1]()]
print("RESULT", hvd.size(), f"{sum(np.square(each).sum() for each in weights):.9g}", flush=True)
