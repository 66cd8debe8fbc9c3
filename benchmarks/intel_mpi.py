"""Allreduce of the MPI that mpi4py finds, and of oneCCL: peers with an environment of their own.

::

    python -m venv peer && peer/bin/pip install impi-rt oneccl mpi4py numpy
    LD_LIBRARY_PATH=peer/lib I_MPI_FABRICS=shm peer/bin/mpiexec.hydra -n 2 peer/bin/python benchmarks/intel_mpi.py

Rank 0 prints a line of JSON for each library: its own version, and the median and quartiles of each size in
milliseconds, to be compared with ``latency.py`` and ``collectives.py`` on the same machine. ``oneccl`` brings 2 GB of
libraries for Intel's GPUs, which it does not use here; without it, its line is missing.
"""

from __future__ import annotations

import ctypes
import json
import os
import statistics
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

SIZES, WARM_UP = (4 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20), 3
Array = npt.NDArray[np.float32]
_FLOAT32, _SUM = 7, 0  # oneapi/ccl/v2/types.h
_ON_CPUS = "ONECCL_LEGACY_CPU"  # else it looks for a GPU alone


def main() -> None:
    """Measure on all ranks; rank 0 prints."""
    comm = MPI.COMM_WORLD
    library = MPI.Get_library_version().strip().partition("\n")[0].rstrip("\0")
    peers: dict[str, Callable[[Array], object]] = {library: lambda array: comm.Allreduce(MPI.IN_PLACE, array)}
    try:
        peers |= oneccl(comm)
    except OSError as error:  # ctypes found no library
        if comm.rank == 0:
            print(f"no oneCCL: {error}", flush=True)
    for name, allreduce in peers.items():
        rows = {nbytes: measure(comm, allreduce, nbytes) for nbytes in SIZES}
        if comm.rank == 0:
            print(json.dumps({"library": name, "ranks": comm.size, "ms": rows}), flush=True)


def measure(comm: MPI.Intracomm, allreduce: Callable[[Array], object], nbytes: int) -> dict[str, float]:
    """Milliseconds on this rank."""
    array, seconds = np.ones(nbytes // 4, np.float32), []
    for _ in range(WARM_UP + (100 if nbytes < 4 << 20 else 12)):
        array.fill(1)
        comm.Barrier()
        start = time.perf_counter()
        allreduce(array)
        seconds.append(time.perf_counter() - start)
    if not (array == comm.size).all():
        raise ArithmeticError(f"A wrong sum of {nbytes} bytes on rank {comm.rank}.")
    low, middle, high = statistics.quantiles(seconds[WARM_UP:], n=4)
    return {"median": round(middle * 1e3, 4), "q1": round(low * 1e3, 4), "q3": round(high * 1e3, 4)}


class UniqueId(ctypes.Structure):
    """``onecclUniqueId``: by which its ranks find each other."""

    _fields_ = (("data", ctypes.c_char * 4096),)


def oneccl(comm: MPI.Intracomm) -> dict[str, Callable[[Array], object]]:
    """oneCCL's name and version, and its allreduce in place, by its C interface."""
    os.environ.setdefault("CCL_PLUGIN", _ON_CPUS)
    library = ctypes.CDLL("libccl.so.2")
    pointer, number, size = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
    library.onecclCommInitRank.argtypes = (ctypes.POINTER(pointer), size, UniqueId, number)
    library.onecclAllReduce.argtypes = (pointer, pointer, size, number, number, pointer, pointer)

    def call(what: str, *args: object) -> None:
        if result := getattr(library, what)(*args):
            raise RuntimeError(f"{what} returned {result} on rank {comm.rank}; CCL_LOG_LEVEL=info says more.")

    mine, version, group = UniqueId(), number(), pointer()
    call("onecclGetVersion", ctypes.byref(version))
    if comm.rank == 0:
        call("onecclGetUniqueId", ctypes.byref(mine))
    common = UniqueId.from_buffer_copy(comm.bcast(bytes(mine)))
    call("onecclCommInitRank", ctypes.byref(group), comm.size, common, comm.rank)

    def allreduce(array: Array) -> None:
        place = array.ctypes.data
        call("onecclAllReduce", place, place, len(array), _FLOAT32, _SUM, group, None)

    year, rest = divmod(version.value, 10_000)
    return {f"oneCCL {year}.{rest // 100}.{rest % 100}": allreduce}


if __name__ == "__main__":
    main()
