"""Latency of a lone small tensor, and what an idle rank costs: ``mpiexec -n 2 python benchmarks/latency.py``.

Peers in the same run, in turns: our allreduce (announcement included), the announcement alone (barrier), and
``MPI.Allreduce``, which has no announcement and no order to keep. Medians with quartiles, in milliseconds.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
from mpi4py import MPI

import workbench as wb

BYTES, ROUNDS, REPEATS, IDLE_S = 4096, 10, 100, 10.0


def main() -> None:
    """Measure on all ranks; rank 0 prints one JSON line."""
    wb.init()
    array, out = np.ones(BYTES // 4, np.float32), np.empty(BYTES // 4, np.float32)
    peers: dict[str, Callable[[], object]] = {
        "workbench allreduce": lambda: wb.allreduce(array, name="x"),
        "workbench barrier": wb.barrier,
        "MPI.Allreduce": lambda: MPI.COMM_WORLD.Allreduce(array, out),
    }
    times: dict[str, list[float]] = {name: [] for name in peers}
    for _ in range(ROUNDS):
        for name, run in peers.items():
            times[name] += measure(run)
    result = {name: quartiles(values) for name, values in times.items()}
    idle = wb.allgather(np.array([idle_share()]))
    if wb.rank() == 0:
        report = {"ranks": wb.size(), "bytes": BYTES, "ms": result, "idle_percent": idle.round(3).tolist()}
        print(json.dumps(report))


def measure(run: Callable[[], object]) -> list[float]:
    """Seconds of each call, after a warm-up."""
    for _ in range(10):
        run()
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return seconds


def quartiles(seconds: list[float]) -> dict[str, float]:
    """Median and quartiles in milliseconds."""
    low, middle, high = statistics.quantiles(seconds, n=4)
    return {"median": round(middle * 1e3, 4), "q1": round(low * 1e3, 4), "q3": round(high * 1e3, 4)}


def idle_share() -> float:
    """CPU time per second of waiting, in percent of one core."""
    wb.barrier()
    before = os.times()
    time.sleep(IDLE_S)
    after = os.times()
    return (after.user + after.system - before.user - before.system) / IDLE_S * 100


if __name__ == "__main__":
    main()
