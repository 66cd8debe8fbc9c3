"""DeePMD-kit trains a potential with TensorFlow, started as its command `dp --tf train input.json` starts it."""

import json
import os
import sys
from pathlib import Path

import numpy as np
from deepmd.main import main

rank = int(os.environ["HOROVOD_RANK"])
folder = Path(f"rank{rank}")
data = folder / "water" / "set.000"
data.mkdir(parents=True)
draw = np.random.default_rng(0)
places = draw.uniform(0, 6, (1, 18))  # one frame of six atoms, so all ranks have the same batch
np.savetxt(folder / "water" / "type.raw", [0, 0, 1, 1, 1, 1], fmt="%d")
(folder / "water" / "type_map.raw").write_text("O\nH\n")
frames = {
    "coord": places,
    "box": 6 * np.eye(3).reshape(1, 9),
    "energy": 0.01 * (places**2).sum(1),
    "force": -0.02 * places,
}
for name, values in frames.items():
    np.save(data / f"{name}.npy", values.astype("float32"))
descriptor = {
    "type": "se_e2_a",
    "sel": [4, 6],
    "rcut": 3.0,
    "rcut_smth": 1.0,
    "neuron": [4, 8],
    "axis_neuron": 4,
    "seed": 1,
}
config = {
    "model": {"type_map": ["O", "H"], "descriptor": descriptor, "fitting_net": {"neuron": [8, 8], "seed": 1}},
    "learning_rate": {"start_lr": 1e-3, "stop_lr": 1e-5, "decay_steps": 50, "scale_by_worker": "none"},
    "loss": {"type": "ener", "start_pref_e": 0.02, "limit_pref_e": 1, "start_pref_f": 100, "limit_pref_f": 1},
    "training": {
        "training_data": {"systems": ["water"], "batch_size": 1},
        "numb_steps": 60,
        "seed": 1,
        "disp_freq": 60,
    },
}
os.chdir(folder)
Path("input.json").write_text(json.dumps(config))
main(["--tf", "train", "--skip-neighbor-stat", "input.json"])
if rank == 0:
    step, *errors = Path("lcurve.out").read_text().splitlines()[-1].split()
    print("RESULT", os.environ["HOROVOD_SIZE"], float(errors[2]), flush=True)
sys.exit(0)
