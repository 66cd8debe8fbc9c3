"""RETURNN with ``use_horovod`` on one of its own data sets: TensorFlow 1, gradients are reduced at each step."""

import random
from pathlib import Path

import horovod.tensorflow as hvd
import returnn.__main__ as returnn

CONFIG = """
use_tensorflow = use_horovod = True
task, device, log_verbosity = "train", "cpu", 3
train = {"class": "Task12AXDataset", "num_seqs": 200, "fixed_random_seed": 3}
dev = {"class": "Task12AXDataset", "num_seqs": 40, "fixed_random_seed": 1}
extern_data = {"data": (9, 2), "classes": (2, 1)}
network = {
    "h": {"class": "linear", "activation": "tanh", "n_out": 16, "from": "data"},
    "output": {"class": "softmax", "loss": "ce", "from": "h"},
}
batch_size, max_seqs = 5000, %d
optimizer, learning_rate, num_epochs, random_seed = {"class": "adam"}, 0.01, 3, 42
"""
hvd.init()
size = hvd.size()
where = Path(f"returnn-{random.getrandbits(40)}")
where.mkdir()
(where / "config.py").write_text(CONFIG % (10 // size) + f'model = "{where}/net"\n')
returnn.main(["returnn", str(where / "config.py")])
scores = returnn.engine.learning_rate_control.epoch_data[3].error
print("RESULT", size, scores["dev_score"], flush=True)
