"""Many small tensors at once, and a lone one: ``mpiexec -n 2 python benchmarks/many.py``.

200 tensors of 10,000 floats are what a deep network gives in one backward pass. Each peer gets them one by one and then
waits for all, as a training script would. The lone 4 KiB is latency and nothing else: 20 in a row, without a barrier
between them, the time of one.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import peers
import torch
from figures import Case
from peers import MPI, hvd


@dataclass(frozen=True)
class Load:
    """What travels.

    Args:
        title: as in the table.
        count, floats: so many tensors of so many numbers at once.
        row: so many times in a row; the time is that of one.
    """

    title: str
    count: int
    floats: int
    row: int = 1


def main() -> None:
    """Measure on all ranks; rank 0 prints one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensors", type=int, default=200)
    parser.add_argument("--floats", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--repeats", type=int, default=5, help="in a round")
    args = peers.arguments(parser)
    comm = peers.start()
    real = peers.horovod()
    cases = [
        measure(comm, real, Load(f"{args.tensors} × {args.floats:,} floats", args.tensors, args.floats), args),
        measure(comm, real, Load("a lone 4 KiB", 1, 1024, row=20), args),
    ]
    result = {"section": "many", "ours": ["workbench"], "limit": "", "cases": cases, "absent": peers.absent(real)}
    peers.finish(comm, result)


def measure(comm: MPI.Intracomm, real: Any, load: Load, args: argparse.Namespace) -> Case:
    """All peers: first whether they are right, then how long they take."""
    tensors = [torch.empty(load.floats) for _ in range(load.count)]

    def write_anew() -> None:
        for i, tensor in enumerate(tensors):
            tensor.fill_(comm.rank + i)

    every: dict[str, Callable[[], object]] = {}
    if not peers.THEIRS:
        every = {
            "workbench": partial(through, hvd, tensors),
            "MPI.Iallreduce, Waitall": partial(through_mpi, comm, tensors),
            "Gloo": partial(through_gloo, tensors),
        }
    if real:
        every[peers.horovod_name()] = partial(through, real, tensors)
    for name, run in every.items():
        write_anew()
        peers.timed(comm, run)
        n = comm.size
        if not all((tensor == n * i + n * (n - 1) / 2).all() for i, tensor in enumerate(tensors)):
            raise ArithmeticError(f"{name} gave a wrong sum for {load.title} on rank {comm.rank}.")
    runs = {name: partial(in_a_row, run, load.row) for name, run in every.items()}
    of_rows = peers.in_turns(comm, runs, args.rounds, args.repeats, write_anew)
    seconds = {name: [each / load.row for each in values] for name, values in of_rows.items()}
    return {"title": load.title, "seconds": seconds, "bytes": 4 * load.floats * load.count, "images": 0}


def in_a_row(run: Callable[[], object], times: int) -> None:
    """Do it again and again."""
    for _ in range(times):
        run()


def through(module: Any, tensors: list[torch.Tensor]) -> None:
    """The workbench and Horovod have the same verbs."""
    names = [f"{len(tensors)}.{i}" for i in range(len(tensors))]
    handles = [
        module.allreduce_async_(tensor, name=name, op=module.Sum) for name, tensor in zip(names, tensors, strict=True)
    ]
    for handle in handles:
        module.synchronize(handle)


def through_mpi(comm: MPI.Intracomm, tensors: list[torch.Tensor]) -> None:
    """MPI's own non-blocking allreduce."""
    arrays: list[Any] = [tensor.numpy() for tensor in tensors]
    MPI.Request.Waitall([comm.Iallreduce(MPI.IN_PLACE, array, MPI.SUM) for array in arrays])


def through_gloo(tensors: list[torch.Tensor]) -> None:
    """torch.distributed's asynchronous allreduce."""
    for work in [peers.dist.all_reduce(tensor, async_op=True) for tensor in tensors]:
        work.wait()


if __name__ == "__main__":
    main()
