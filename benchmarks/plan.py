"""``plan="auto, fp16"`` beside each fixed way: two hosts, shaped links, four models.

As root, on hosts that it makes itself (some 25 minutes, for the most part at 100 Mbit/s; ``--quick``: one)::

    python benchmarks/plan.py --out benchmarks/results/plan.json

A file that is there keeps the cells that are not measured again: ``--rates`` and ``--models`` say which are.

For each link and model the ranks measure, an optimizer is planned by it, and it takes turns with optimizers of which
each has a fixed way. So the plan is held to trainings that it does not know. ``busy`` says that the machine had other
work when it began: the times of such a run tell little.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import torch
from models import TASKS, Task, vgg_like
from shaped import hosts, in_turns, sgd, tell

import workbench.torch as hvd
from workbench.calibration.measure import measure
from workbench.simulate.measured.plan import choose

RATES = ("100mbit", "1gbit", "10gbit")
LAYOUTS = {2: "wb1:1,wb2:1", 4: "wb1:2,wb2:2"}
MODELS = TASKS | {"vgg": vgg_like()}
FIXED: dict[str, dict[str, Any]] = {
    "as it is": {},
    "overlap_forward": {"overlap_forward": True},
    "compression fp16": {"compression": hvd.Compression.fp16},
    "overlap_forward, compression fp16": {"overlap_forward": True, "compression": hvd.Compression.fp16},
}
AUTO = "auto"
_WARM = 2  # steps, of which the second plans the buckets
_TIMEOUT_S = 1800


def main() -> None:
    """On the ranks: one JSON line for each model. Else: make the hosts, and start the ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rank", action="store_true", help="this process is a rank")
    parser.add_argument("--rates", nargs="+", default=RATES)
    parser.add_argument("--ranks", nargs="+", type=int, default=[2], choices=LAYOUTS)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=MODELS)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a training in each turn, about")
    parser.add_argument("--quick", action="store_true", help="one link, one model, one turn")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    if given.quick:
        given.rates, given.models, given.turns, given.seconds = ["1gbit"], ["cnn"], 1, 0.5
    if given.rank:
        on_a_rank(given.models, given.turns, given.seconds)
        return
    about: dict[str, Any] = {"date": date.today().isoformat(), "cores": os.cpu_count()}
    about |= {"busy": os.getloadavg()[0] > 0.5, "rows": list(on_hosts(given))}
    if given.out:
        if given.out.exists():  # cells that are not measured now stay
            cells = {cell(row): row for row in json.loads(given.out.read_text())["rows"] + about["rows"]}
            about["rows"] = list(cells.values())
        given.out.write_text(json.dumps(about, indent=1) + "\n")
    costs = [beyond_best(row) for row in about["rows"]]
    late = sum(each > 0.05 for each in costs)
    print(f"{len(costs)} cells: what is chosen costs {max(costs):.1%} more than the best at most, over 5 % in {late}.")


def on_a_rank(models: list[str], turns: int, seconds: float) -> None:
    """Measure, plan, and train in each way in turns."""
    hvd.init()
    torch.set_num_threads(1)
    for name in models:
        task = MODELS[name]
        data = task.data(hvd.rank())
        found = [measure(task.make(), data, optimizer=sgd, doubt=2.0, wire=wire) for wire in ("float32", "float16")]
        ways = FIXED | {AUTO: {"plan": "auto, fp16"}}
        trainings = {way: Training(task, data, options) for way, options in ways.items()}
        plan = trainings[AUTO].optimizer.plan
        times = in_turns({way: partial(one.step_s, seconds) for way, one in trainings.items()}, turns)
        predicted = choose(*(replace(each, steps_s=()) for each in found)).ways
        said = {"predicted_s": predicted, "tried_s": plan.ways if all(each.steps_s for each in found) else ()}
        steps = {what: {way.name: way.step_s for way in ways} for what, ways in said.items()}
        if hvd.rank() == 0:
            tell({"model": name, "chosen": plan.way.name, "why": plan.why, "step_s": times} | steps)
    hvd.shutdown()


class Training:
    """One way of training, of a model of its own."""

    def __init__(self, task: Task, data: tuple[torch.Tensor, torch.Tensor], options: dict[str, Any]) -> None:
        torch.manual_seed(0)
        self._model, self._data = task.make(), data
        named = self._model.named_parameters()
        self._number = 0  # of steps in a turn, once it is known
        self.optimizer: Any = hvd.DistributedOptimizer(sgd(self._model.parameters()), named, **options)

    def step_s(self, seconds: float) -> float:
        """Of one step in a longer training, the mean; then the last updates are made."""
        hvd.barrier()
        if not self._number:
            warm = self._steps(_WARM) / _WARM
            self._number = int(hvd.allreduce(torch.tensor([seconds / warm]), op=hvd.Min).clamp(2, 50)[0])
        self._steps(1)  # a step whose updates wait begins with those of another
        found = self._steps(self._number) / self._number
        self.optimizer.state_dict()
        return found

    def _steps(self, number: int) -> float:
        begin = time.perf_counter()
        for _ in range(number):
            self.optimizer.zero_grad()
            torch.nn.functional.cross_entropy(self._model(self._data[0]), self._data[1]).backward()
            self.optimizer.step()
        return time.perf_counter() - begin


def on_hosts(given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Rows, with rate and ranks."""
    words = ["--rank", "--models", *given.models, "--turns", str(given.turns), "--seconds", str(given.seconds)]
    with hosts("plan", given.rates[0]) as two:
        for rate in given.rates:
            two.set_rate(rate)
            for ranks in given.ranks:
                for row in two.run(LAYOUTS[ranks], __file__, *words, timeout_s=_TIMEOUT_S):
                    row = {"rate": rate, "ranks": ranks} | row
                    report(row)
                    yield row


def cell(row: dict[str, Any]) -> tuple[Any, ...]:
    """What tells a row from others."""
    return row["rate"], row["ranks"], row["model"]


def beyond_best(row: dict[str, Any]) -> float:
    """By which part a step in the way that was chosen is longer than one in the best.

    The planned training is one like it; what both differ by is the machine's doing.
    """
    found = {way: statistics.median(times) for way, times in row["step_s"].items()}
    return found[row["chosen"]] / min(found[way] for way in FIXED) - 1


def report(row: dict[str, Any]) -> None:
    """Medians, with what was tried or predicted."""
    said = row["tried_s"] or row["predicted_s"]
    texts = [
        f"{way} {statistics.median(times) * 1e3:.1f}" + (f" ({said[way] * 1e3:.1f})" if way in said else "")
        for way, times in row["step_s"].items()
    ]
    where = f"{row['rate']:8} {row['ranks']} {row['model']:9}"
    print(f"{where} {', '.join(texts)} ms: {row['chosen']}, {beyond_best(row):+.0%}", flush=True)


if __name__ == "__main__":
    main()
