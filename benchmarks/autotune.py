"""Autotune against a grid: ``python benchmarks/autotune.py [name of a workload …]``, 2 ranks, three workloads.

A job tunes from the defaults until it settles. Then, in the same processes, the choice takes turns with the defaults
and with a grid of choices, in another order in every round. The grid's best is found in the even rounds and compared in
the odd ones: the best of many noisy medians is partly luck, which the second half does not share.
Prints one JSON line for each workload.

Two workloads are tensors alone, with 5 × 5 thresholds and windows. One trains an MLP of 24 layers with
DistributedOptimizer, where the size of buckets matters, with 5 sizes.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import plain_ranks

import workbench as wb
from workbench.config import TUNED
from workbench.job.context import HOLDER
from workbench.runtime.steady.tuner import Choice

WORKLOADS = {"200 × 16 KB": (200, 4_000), "6 × 4 MB": (6, 1_000_000), "MLP of 24 MB": (24, 500)}
DEFAULTS = Choice(64 << 20, 0.001)
FUSION = [Choice(mib_64 << 14, ms / 1e3) for mib_64, ms in product((4, 32, 256, 1024, 4096), (0.05, 0.2, 1, 3, 10))]
BUCKETS = [replace(DEFAULTS, bucket_bytes=mib << 20) for mib in (1, 2, 4, 16, 64)]
ROUNDS, STEPS, TRIALS, DEADLINE_S = 24, 4, 20, 400.0
Step = Callable[[], None]


def main() -> None:
    """Start the ranks of each workload, one after the other."""
    for name in sys.argv[1:] or WORKLOADS:
        tuning = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": str(TRIALS)}
        print(json.dumps(plain_ranks.run(2, Path(__file__), ["--rank", name], DEADLINE_S, **tuning)[0]), flush=True)


def rank(name: str) -> None:
    """One rank of a workload."""
    wb.init()
    step, grid = (training(*WORKLOADS[name]), BUCKETS) if "MLP" in name else (reducing(*WORKLOADS[name]), FUSION)
    begun, steps = time.perf_counter(), 0
    while not agreed(wb.rank() == 0 and bool(wb.autotune_report().settled)):
        for _ in range(20):
            step()
        steps += 20
    tuning_s = time.perf_counter() - begun
    engine: Any = HOLDER.get().engine
    tuned = Choice(**{name: getattr(engine.settings, name) for name in TUNED})
    peers = {"autotuned": tuned, "defaults": DEFAULTS} | {str(choice): choice for choice in grid}
    times = in_turns(peers, step)
    if wb.rank() == 0:
        said = {"workload": name, "steps until settled": steps, "seconds until settled": round(tuning_s, 2)}
        said |= {"trials": len(wb.autotune_report().trials), "load": os.getloadavg()}
        print(json.dumps(said | {"choice": str(tuned)} | compared(times)))
    else:
        print("null")
    wb.shutdown()


def agreed(here: bool) -> bool:
    """Has rank 0 settled? The same answer on every rank."""
    return bool(wb.allreduce(np.array([float(here)]), "settled", wb.Sum)[0])


def reducing(count: int, length: int) -> Step:
    """A step submits all arrays, and waits for all."""
    arrays = [np.ones(length, np.float32) for _ in range(count)]

    def step() -> None:
        handles = [wb.allreduce_async(array, f"gradient {i}", wb.Sum) for i, array in enumerate(arrays)]
        for handle in handles:
            handle.wait(60)

    return step


def training(count: int, width: int) -> Step:
    """A step of an MLP with so many layers, on one thread of each rank."""
    import torch

    import workbench.torch as hvd

    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(count)])
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1e-6), model.named_parameters())

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(16, width)).sum().backward()
        optimizer.step()

    return step


def in_turns(peers: dict[str, Choice], step: Step) -> dict[str, list[float]]:
    """By peer and round, the median of some steps. Both ranks change between barriers, when nothing is in flight."""
    engine: Any = HOLDER.get().engine
    times: dict[str, list[float]] = {name: [] for name in peers}
    for number in range(ROUNDS):
        for name in random.Random(number).sample(list(peers), len(peers)):
            wb.barrier()
            engine._announcer.apply(peers[name])
            wb.barrier()
            for _ in range(3):  # buckets are planned at the end of the first, and their names are new in the second
                step()
            seconds = []
            for _ in range(STEPS):
                start = time.perf_counter()
                step()
                seconds.append(time.perf_counter() - start)
            times[name].append(statistics.median(seconds))
    return times


def compared(times: dict[str, list[float]]) -> dict[str, Any]:
    """Medians in milliseconds; the ratios are of the odd rounds, in which nothing was chosen."""
    grid = [name for name in times if name not in ("autotuned", "defaults")]
    best = min(grid, key=lambda name: statistics.median(times[name][::2]))
    held_out = {name: statistics.median(times[name][1::2]) for name in ("autotuned", "defaults", best)}
    worst = max(statistics.median(times[name][1::2]) for name in grid)
    found: dict[str, Any] = {f"{name} ms": round(seconds * 1e3, 3) for name, seconds in held_out.items()}
    found |= {"grid's worst ms": round(worst * 1e3, 3)}
    paired = [mine / other for mine, other in zip(times["autotuned"][1::2], times[best][1::2], strict=True)]
    low, middle, high = statistics.quantiles(paired, n=4)
    ratio = {"median": round(middle, 3), "q1": round(low, 3), "q3": round(high, 3)}
    return found | {"grid's best": best, "autotuned / grid's best": ratio}


if __name__ == "__main__":
    rank(sys.argv[-1]) if "--rank" in sys.argv else main()
