"""Allreduce, broadcast and allgather on several hosts, beside MPI's and Gloo's, in one run.

On two hosts, or on a test bed of two (as root), whose links are shaped::

    python tests/testbed up 2 1gbit
    python tests/testbed run wb1 workbench run -H wb1:2,wb2:2 --mpi python benchmarks/hosts.py

Medians over the slowest rank, in ms, in turns. *Floor* is what the link needs for the bytes that have to cross it:
2(m - 1)/m · K of an allreduce on m hosts, K of a broadcast, (m - 1)/m · K of an allgather's result of K bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from mpi4py import MPI

from workbench import config
from workbench.core.backend.base import Backend, Reduction
from workbench.transport.host import sockets
from workbench.transport.select import connect, find_ranks, with_shared_memory

Call = Callable[[np.ndarray], None]
VERBS = {"allreduce": 1.0, "broadcast": 1.0, "allgather": 0.5}


def main() -> None:
    """Measure on all ranks; rank 0 prints a table and one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, nargs="+", default=[4 << 10, 64 << 10, 1 << 20, 8 << 20, 64 << 20])
    parser.add_argument("--verbs", nargs="+", choices=VERBS, default=list(VERBS))
    parser.add_argument("--gbit", type=float, default=1.0, help="what the link carries in a second, for the floor")
    parser.add_argument("--seconds", type=float, default=2.0, help="for each row")
    parser.add_argument("--out", type=Path, help="a JSON file for the rows, such as results/hosts.json")
    given = parser.parse_args()
    ways, hosts = _ways(), len(set(MPI.COMM_WORLD.allgather(socket.gethostname())))
    rows = []
    for verb in given.verbs:
        for nbytes in given.bytes:
            ms = _measure(ways, verb, nbytes, given.seconds)
            floor = VERBS[verb] * nbytes * 8 / given.gbit / 1e6
            rows.append({"verb": verb, "bytes": nbytes, "floor_ms": round(floor, 3), "ms": ms})
            if MPI.COMM_WORLD.rank == 0:
                print(json.dumps(rows[-1]), flush=True)
    if given.out and MPI.COMM_WORLD.rank == 0:
        about = {"date": date.today().isoformat(), "ranks": MPI.COMM_WORLD.size, "hosts": hosts, "gbit": given.gbit}
        given.out.write_text(json.dumps(about | {"cores": os.cpu_count(), "rows": rows}, indent=1) + "\n")


def _ways() -> dict[str, dict[str, Call]]:
    """By name and verb, each way to do it."""
    settings = replace(config.settings(), hierarchical_bytes=0)
    bootstrap = find_ranks(config.launch(), settings)
    nodes = bootstrap.exchange(bootstrap.node)
    flat = sockets.connect(bootstrap, settings)
    half = replace(settings, wire="bfloat16")
    found = {
        "ours": _ours(with_shared_memory(sockets.connect(bootstrap, settings), bootstrap, nodes, settings)),
        "ours bf16": _ours(with_shared_memory(sockets.connect(bootstrap, half), bootstrap, nodes, half)),
        "ours over MPI": _ours(connect(bootstrap, settings)),
        "flat ring": _ours(flat),
        "MPI": _mpi(MPI.COMM_WORLD.Dup()),
        "Gloo": _gloo(),
    }
    del found["ours bf16"]["broadcast"], found["ours bf16"]["allgather"]  # they send what they are given
    return found


def _ours(backend: Backend) -> dict[str, Call]:
    does = backend.collectives
    return {
        "allreduce": lambda array: does.allreduce(array, Reduction("sum", "float32")) and None,
        "broadcast": lambda array: does.broadcast(array, 0) and None,
        "allgather": lambda array: does.allgather(array, [len(array) // backend.size] * backend.size) and None,
    }


def _mpi(comm: MPI.Intracomm) -> dict[str, Call]:
    return {
        "allreduce": lambda array: comm.Allreduce(MPI.IN_PLACE, array),
        "broadcast": lambda array: comm.Bcast(array, 0),
        "allgather": lambda array: comm.Allgather(MPI.IN_PLACE, array),
    }


def _gloo() -> dict[str, Call]:
    world = MPI.COMM_WORLD
    address = config.host_address() or "127.0.0.1"
    store = None
    if world.rank == 0:
        store = dist.TCPStore(address, 0, world.size, is_master=True, wait_for_workers=False)
    place = world.bcast((address, store.port) if store else None)
    store = store or dist.TCPStore(*place, world.size, is_master=False)
    dist.init_process_group("gloo", store=store, rank=world.rank, world_size=world.size, timeout=timedelta(seconds=60))

    def allgather(array: np.ndarray) -> None:
        tensor = torch.from_numpy(array)
        parts = list(tensor.chunk(world.size))
        dist.all_gather(parts, parts[world.rank].clone())

    return {
        "allreduce": lambda array: dist.all_reduce(torch.from_numpy(array)),
        "broadcast": lambda array: dist.broadcast(torch.from_numpy(array), 0),
        "allgather": allgather,
    }


def _measure(ways: dict[str, dict[str, Call]], verb: str, nbytes: int, seconds: float) -> dict[str, float]:
    world, array = MPI.COMM_WORLD, np.empty(nbytes // 4, np.float32)
    times: dict[str, list[float]] = {name: [] for name, does in ways.items() if verb in does}
    until = time.monotonic() + seconds
    while not world.bcast(time.monotonic() > until and len(times["ours"]) > 3):
        for name, ms in times.items():
            ms.append(_once(ways[name][verb], verb, array))
    return {name: round(statistics.median(ms[1:]), 3) for name, ms in times.items()}


def _once(call: Call, verb: str, array: np.ndarray) -> float:
    """Milliseconds of the slowest rank; what came out is looked at."""
    world = MPI.COMM_WORLD
    mine, want = float(world.rank + 1), np.ones(world.size) * sum(range(1, world.size + 1))
    array[:] = mine
    if verb == "broadcast":
        want = np.ones(world.size)
    if verb == "allgather":
        want = np.arange(1, world.size + 1)
    world.Barrier()
    start = time.perf_counter()
    call(array)
    took = time.perf_counter() - start
    found = array.reshape(world.size, -1)
    if not np.array_equal(found[:, 0], want) or not np.array_equal(found[:, -1], want):
        raise ArithmeticError(f"rank {world.rank}: {found[:, 0]} instead of {want}")
    return world.allreduce(took, MPI.MAX) * 1e3


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
