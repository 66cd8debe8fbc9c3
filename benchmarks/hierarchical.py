"""From which size on is it worth to reduce inside each machine first?

Two hosts' names on one machine::

    mpiexec -launcher fork -hosts here:2,there:2 -n 4 python benchmarks/hierarchical.py

MPI sends between different names over its network path, so the flat ring and the hierarchical way meet what they meet
between machines, but for the speed of a real network. Both ways in turns, medians over the slowest rank, in ms; from
the first size at which the hierarchical way is faster the default of ``hierarchical_bytes`` was chosen. On a cluster,
start it as you start your training, and set ``WORKBENCH_HIERARCHICAL_BYTES`` by what it says.
"""

from __future__ import annotations

import json
import statistics
import time
from dataclasses import replace

import numpy as np
from mpi4py import MPI

from workbench import config
from workbench.core.backend.base import Backend, Reduction
from workbench.transport.select import connect, find_ranks

SIZES, SECONDS, MOST = [4 << 10 << (2 * i) for i in range(8)], 1.0, 200


def main() -> None:
    """Measure on all ranks; rank 0 prints one JSON line."""
    settings = replace(config.settings(), hierarchical_bytes=0)
    backend = connect(find_ranks(config.launch(), settings), settings)
    if not backend.name.endswith("+SHM"):
        raise SystemExit("Start it on several hosts with several ranks each.")
    flat_settings = replace(settings, backend="mpi")
    flat = connect(find_ranks(config.launch(), flat_settings), flat_settings)
    table = []
    for nbytes in SIZES:
        array = np.ones(nbytes // 4, np.float32)
        times: dict[str, list[float]] = {"flat": [], "hierarchical": []}
        deadline = time.monotonic() + SECONDS
        while len(times["flat"]) < MOST:
            for name, each in (("flat", flat), ("hierarchical", backend)):
                times[name].append(once(each, array))
            if MPI.COMM_WORLD.bcast(time.monotonic() > deadline and len(times["flat"]) > 4):
                break
        table.append({"bytes": nbytes, **{name: round(statistics.median(ms), 3) for name, ms in times.items()}})
    if backend.rank == 0:
        print(json.dumps({"ranks": backend.size, "machines": 2, "ms": table}))


def once(backend: Backend, array: np.ndarray) -> float:
    """Milliseconds of the slowest rank."""
    array[:] = 1
    MPI.COMM_WORLD.Barrier()
    start = time.perf_counter()
    backend.collectives.allreduce(array, Reduction("sum", "float32"))
    took = time.perf_counter() - start
    if array[0] != backend.size or array[-1] != backend.size:
        raise ArithmeticError(f"{backend.name}: {array[0]} instead of {backend.size}")
    return MPI.COMM_WORLD.allreduce(took, MPI.MAX) * 1e3


if __name__ == "__main__":
    main()
