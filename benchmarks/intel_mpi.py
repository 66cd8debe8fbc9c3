"""Allreduce of the MPI that mpi4py finds: a peer with an environment of its own, such as Intel's.

::

    python -m venv peer && peer/bin/pip install impi-rt mpi4py numpy
    LD_LIBRARY_PATH=peer/lib I_MPI_FABRICS=shm peer/bin/mpiexec.hydra -n 2 peer/bin/python benchmarks/intel_mpi.py

Rank 0 prints one JSON line: the library's own version, and the median and quartiles of each size in milliseconds, to be
compared with ``latency.py`` and ``collectives.py`` on the same machine.
"""

from __future__ import annotations

import json
import statistics
import time

import numpy as np
from mpi4py import MPI

SIZES, WARM_UP = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20), 3


def main() -> None:
    """Measure on all ranks; rank 0 prints."""
    comm, rows = MPI.COMM_WORLD, {}
    for nbytes in SIZES:
        array, seconds = np.ones(nbytes // 4, np.float32), []
        for _ in range(WARM_UP + (100 if nbytes < 4 << 20 else 12)):
            array.fill(1)
            comm.Barrier()
            start = time.perf_counter()
            comm.Allreduce(MPI.IN_PLACE, array)
            seconds.append(time.perf_counter() - start)
        if not (array == comm.size).all():
            raise ArithmeticError(f"A wrong sum of {nbytes} bytes on rank {comm.rank}.")
        low, middle, high = statistics.quantiles(seconds[WARM_UP:], n=4)
        rows[nbytes] = {"median": round(middle * 1e3, 4), "q1": round(low * 1e3, 4), "q3": round(high * 1e3, 4)}
    if comm.rank == 0:
        library = MPI.Get_library_version().strip().partition("\n")[0].rstrip("\0")
        print(json.dumps({"library": library, "ranks": comm.size, "ms": rows}))


if __name__ == "__main__":
    main()
