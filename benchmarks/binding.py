"""What binding ranks to cores is worth: ``python benchmarks/binding.py -np 2``, which starts the ranks itself.

Jobs of ``workbench run`` with ``--bind none`` and ``--bind core`` take turns, round after round, each a start anew. In
each job a network trains, as a copy of its own on every rank and with all ranks together, and 200 tensors of 10,000
floats travel at once. Nothing else pins the ranks here.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import machine
import torch
import torch.nn.functional as F
from figures import quartiles, rotated
from models import TASKS

import workbench.torch as hvd

WAYS = ("none", "core")
COPIES, TOGETHER, MANY = "copies, images/s", "workbench, images/s", "200 tensors, 1/s"
_TURNS, _DEADLINE_S = 5, 120.0


def main() -> None:
    """Measure; print a table, and write a JSON file if one is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-np", type=int, default=2)
    parser.add_argument("--model", choices=list(TASKS), default="cnn")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of one turn of a job, about")
    parser.add_argument("--out", help="a JSON file")
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args)
        return
    others, rounds = machine.Others(), []
    for turn in range(args.rounds):
        rounds.append({way: job(way, args) for way in rotated(WAYS, turn)})
        print(f"round {turn + 1} of {args.rounds}", file=sys.stderr)
    report(rounds, others.percent(), args)


def job(way: str, args: argparse.Namespace) -> dict[str, float]:
    """One start of all ranks, and what rank 0 said.

    Raises:
        RuntimeError: the ranks failed, or were not bound as they should be.
    """
    words = ["--model", args.model, "--seconds", str(args.seconds), "--work"]
    command = [sys.executable, "-m", "workbench.cli.main", "run", "-np", str(args.np), "--bind", way]
    done = subprocess.run(
        [*command, sys.executable, __file__, *words], capture_output=True, text=True, timeout=_DEADLINE_S
    )
    line = next((line for line in done.stdout.splitlines() if line.startswith("[0]<stdout>:{")), "")
    if done.returncode or not line:
        raise RuntimeError(f"--bind {way}: {done.stderr}")
    said: dict[str, Any] = json.loads(line.partition(":")[2])
    if said.pop("bound") != (way != "none"):
        raise RuntimeError(f"--bind {way}: the ranks are not where they should be. {done.stderr}")
    return said


def work(args: argparse.Namespace) -> None:
    """What each rank does."""
    hvd.init()
    mine = sorted(os.sched_getaffinity(0))
    everybodys = {tuple(cores) for cores in hvd.allgather_object(mine)}
    tasks = {COPIES: train(args.model, False), TOGETHER: train(args.model, True), MANY: many()}
    rates: dict[str, list[float]] = {name: [] for name in tasks}
    counts = {name: count(step, args.seconds) for name, (step, _) in tasks.items()}
    for turn in range(_TURNS):
        for name in rotated(list(tasks), turn):
            step, worth = tasks[name]
            rates[name].append(worth * counts[name] / slowest(step, counts[name]))
    if hvd.rank() == 0:
        found = {name: statistics.median(each) for name, each in rates.items()}
        print(json.dumps({"bound": len(everybodys) == hvd.size() > 1, **found}), flush=True)
    hvd.shutdown()


def train(model: str, together: bool) -> tuple[Callable[[], object], float]:
    """A training step, and how many images all ranks get through in one."""
    task = TASKS[model]
    torch.manual_seed(0)
    network = task.make()
    x, y = task.data(seed=hvd.rank())
    optimizer: Any = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    if together:
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=network.named_parameters())

    def step() -> None:
        optimizer.zero_grad()
        loss: Any = F.cross_entropy(network(x), y)
        loss.backward()
        optimizer.step()

    return step, task.batch * hvd.size()


def many() -> tuple[Callable[[], object], float]:
    """200 tensors of 10,000 floats, and 1: they count as one."""
    tensors = [torch.ones(10_000) for _ in range(200)]

    def step() -> None:
        handles = [hvd.allreduce_async_(tensor, name=f"many.{i}") for i, tensor in enumerate(tensors)]
        for handle in handles:
            hvd.synchronize(handle)

    return step, 1.0


def count(step: Callable[[], object], seconds: float) -> int:
    """How many steps take about so long; the same on all ranks. It warms up as well."""
    slowest(step, 5)
    return max(1, round(seconds / (slowest(step, 5) / 5)))


def slowest(step: Callable[[], object], times: int) -> float:
    """Seconds that the slowest rank takes."""
    hvd.barrier()
    begun = time.perf_counter()
    for _ in range(times):
        step()
    mine = torch.tensor([time.perf_counter() - begun], dtype=torch.float64)
    return float(hvd.allreduce(mine, name="slowest", op=hvd.Max)[0])


def report(rounds: list[dict[str, dict[str, float]]], others: float, args: argparse.Namespace) -> None:
    """Medians, and the ratios of neighbours in time with their quartiles."""
    print(f"{TASKS[args.model].title}, {args.np} ranks; other processes took {others} % of the CPU time")
    result = {}
    for name in (COPIES, TOGETHER, MANY):
        none, core = ([each[way][name] for each in rounds] for way in WAYS)
        ratio = quartiles([bound / free for free, bound in zip(none, core, strict=True)])
        result[name] = {"none": none, "core": core, "ratio": ratio}
        print(f"{name:20} none {statistics.median(none):8.0f}  core {statistics.median(core):8.0f}  ", end="")
        print(f"core : none = {ratio.median:.2f} ({ratio.low:.2f}-{ratio.high:.2f})")
    for way in WAYS:
        share = quartiles([each[way][TOGETHER] / each[way][COPIES] for each in rounds])
        print(f"workbench : copies, {way:5} {share.median:.2f} ({share.low:.2f}-{share.high:.2f})")
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump(
                {"machine": machine.about(), "ranks": args.np, "others_percent": others, **result}, file, indent=1
            )


if __name__ == "__main__":
    main()
