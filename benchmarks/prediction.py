"""What ``workbench.predict()`` says, beside what is measured: two hosts, shaped links, 2 and 4 ranks, four models.

As root, on hosts that it makes itself (some 20 minutes)::

    python benchmarks/prediction.py --out benchmarks/results/prediction.json

Each cell is a link's rate, a number of ranks, a model, and a way in which gradients travel. For each model the link's
constants, its layers, and what computing and reducing cost each other are measured, without a training step over the
link. Then it is trained in each way. So no cell is used to fit what is predicted of it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict
from datetime import date
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from models import TASKS, Task, vgg_like
from shaped import hosts, sgd, tell

import workbench.torch as hvd
from workbench.calibration.measure import measure
from workbench.course.training.predicted import predicted

RATES = ("100mbit", "1gbit", "10gbit")
LAYOUTS = {2: "wb1:1,wb2:1", 4: "wb1:2,wb2:2"}
MODELS = TASKS | {"vgg": vgg_like()}
MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "fp16": {"compression": hvd.Compression.fp16},
    "sharded": {"sharded": True},
}
_STEPS, _WARM, _SECONDS = 3, 2, 2.0
_TIMEOUT_S = 600


def main() -> None:
    """On the ranks: one JSON line for each model. Else: make the hosts, and start the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", action="store_true", help="this process is a rank")
    parser.add_argument("--rates", nargs="+", default=RATES)
    parser.add_argument("--ranks", nargs="+", type=int, default=list(LAYOUTS), choices=LAYOUTS)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--read", type=Path, help="only print what stands in such a file")
    given = parser.parse_args()
    if given.read:
        report(json.loads(given.read.read_text())["rows"])
        return
    if given.rank:
        on_a_rank(given.models, given.modes)
        return
    found = list(on_hosts(given))
    about = {"date": date.today().isoformat(), "cores": os.cpu_count(), "rows": found}
    if given.out:
        given.out.write_text(json.dumps(about, indent=1) + "\n")
    report(found)


def report(rows: list[dict[str, Any]]) -> None:
    """Each cell: measured and predicted milliseconds; then the errors of each way."""
    errors: dict[str, list[float]] = {}
    for (rate, ranks, model), cells in groupby(predicted(rows), lambda cell: (cell.rate, cell.ranks, cell.model)):
        texts = []
        for cell in cells:
            errors.setdefault(cell.way, []).append(cell.error)
            texts.append(f"{cell.way} {cell.measured_s * 1e3:7.1f} {cell.predicted_s * 1e3:7.1f} {cell.error:+4.0%}")
        print(f"{rate:8} {ranks} {model:9}", "   ".join(texts))
    for mode, each in errors.items():
        sizes = sorted(map(abs, each))
        print(f"{mode}: {len(sizes)} cells, median error {statistics.median(sizes):.1%}, worst {sizes[-1]:.0%}")


def on_a_rank(models: list[str], modes: list[str]) -> None:
    """Measure, then train."""
    hvd.init()
    torch.set_num_threads(1)
    for name in models:
        task = MODELS[name]
        torch.manual_seed(0)
        model, data = task.make(), task.data(hvd.rank())
        found = {
            wire: measure(model, data, optimizer=sgd, seconds=4.0, doubt=2.0, wire=wire)
            for wire in ("float32", "float16")
        }
        real = {mode: train(task, data, MODES[mode]) for mode in modes}
        if hvd.rank() == 0:
            tell({"model": name, "measured": {wire: asdict(one) for wire, one in found.items()}, "step_s": real})
    hvd.shutdown()


def train(task: Task, data: tuple[torch.Tensor, torch.Tensor], options: dict[str, Any]) -> float:
    """The median step of the slowest rank."""
    model = task.make()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(sgd(model.parameters()), model.named_parameters(), **options)

    def step() -> float:
        begin = time.perf_counter()
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(data[0]), data[1]).backward()
        optimizer.step()
        return time.perf_counter() - begin

    warm = max([step() for _ in range(_WARM)][-1:])
    longest = float(hvd.allreduce(torch.tensor([warm]), op=hvd.Max)[0])
    times = [step() for _ in range(int(np.clip(_SECONDS / longest, _STEPS, 100)))]
    return float(hvd.allreduce(torch.tensor([statistics.median(times)]), op=hvd.Max)[0])


def on_hosts(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rows, with rate and ranks."""
    words = ["--rank", "--models", *given.models, "--modes", *given.modes]
    with hosts("prediction", given.rates[0]) as two:
        for rate in given.rates:
            two.set_rate(rate)
            for ranks in given.ranks:
                for row in two.run(LAYOUTS[ranks], __file__, *words, timeout_s=_TIMEOUT_S):
                    print(rate, ranks, row["model"], row["step_s"], flush=True)
                    yield {"rate": rate, "ranks": ranks} | row


if __name__ == "__main__":
    main()
