"""Autotune against a grid: ``python benchmarks/autotune.py``, 2 ranks, two workloads.

A job tunes from the defaults until it settles. Then, in the same processes, the choice takes turns with the defaults
and with a grid of 5 × 5 choices, in another order in every round. The grid's best is found in the even rounds and
compared in the odd ones: the best of 25 noisy medians is partly luck, which the second half does not share.
Prints one JSON line for each workload.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import sys
import time
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import plain_ranks

import workbench as wb
from workbench.job.context import HOLDER
from workbench.runtime.steady.tuner import Choice

WORKLOADS = {"200 × 16 KB": (200, 4_000), "6 × 4 MB": (6, 1_000_000)}
GRID = [Choice(mib_64 << 14, ms / 1e3) for mib_64, ms in product((4, 32, 256, 1024, 4096), (0.05, 0.2, 1, 3, 10))]
ROUNDS, STEPS, TRIALS, DEADLINE_S = 24, 4, 20, 400.0


def main() -> None:
    """Start the ranks of each workload, one after the other."""
    for name in WORKLOADS:
        tuning = {"HOROVOD_AUTOTUNE": "1", "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES": str(TRIALS)}
        print(json.dumps(plain_ranks.run(2, Path(__file__), ["--rank", name], DEADLINE_S, **tuning)[0]), flush=True)


def rank(name: str) -> None:
    """One rank of a workload."""
    wb.init()
    count, length = WORKLOADS[name]
    arrays = [np.ones(length, np.float32) for _ in range(count)]
    begun, steps = time.perf_counter(), 0
    while not agreed(wb.rank() == 0 and bool(wb.autotune_report().settled)):
        for _ in range(20):
            step(arrays)
        steps += 20
    tuning_s = time.perf_counter() - begun
    engine: Any = HOLDER.get().engine
    tuned = Choice(engine.settings.fusion_threshold_bytes, engine._batching.window_s)
    peers = {"autotuned": tuned, "defaults": Choice(64 << 20, 0.001)} | {str(choice): choice for choice in GRID}
    times = in_turns(peers, arrays)
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


def step(arrays: list[np.ndarray[Any, Any]]) -> None:
    """Submit all, wait for all."""
    handles = [wb.allreduce_async(array, f"gradient {i}", wb.Sum) for i, array in enumerate(arrays)]
    for handle in handles:
        handle.wait(60)


def in_turns(peers: dict[str, Choice], arrays: list[np.ndarray[Any, Any]]) -> dict[str, list[float]]:
    """By peer and round, the median of some steps. Both ranks change between barriers, when nothing is in flight."""
    engine: Any = HOLDER.get().engine
    times: dict[str, list[float]] = {name: [] for name in peers}
    for number in range(ROUNDS):
        for name in random.Random(number).sample(list(peers), len(peers)):
            wb.barrier()
            engine._announcer.use(peers[name])
            wb.barrier()
            step(arrays)
            seconds = []
            for _ in range(STEPS):
                start = time.perf_counter()
                step(arrays)
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
