"""Many small tensors at once, and a lone one: ``mpiexec -n 2 python benchmarks/many.py``.

200 tensors of 10,000 floats are what a deep network gives in one backward pass. Each peer gets them one by one and then
waits for all, as a training script would. The lone 4 KiB is latency, and nothing else.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import peers
import torch
from figures import Case
from mpi4py import MPI

import workbench.torch as hvd


def main() -> None:
    """Measure on all ranks; rank 0 prints one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tensors", type=int, default=200)
    parser.add_argument("--floats", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--repeats", type=int, default=5, help="in a round; of the lone tensor ten times as many")
    args = parser.parse_args()
    comm = peers.start()
    real = peers.horovod()
    cases = [
        measure(comm, real, f"{args.tensors} × {args.floats:,} floats", args.tensors, args.floats, args),
        measure(comm, real, "a lone 4 KiB", 1, 1024, args),
    ]
    absent = {} if real else {"Horovod": peers.NOT_HERE}
    peers.finish(comm, {"section": "many", "ours": ["workbench"], "limit": "", "cases": cases, "absent": absent})


def measure(comm: MPI.Intracomm, real: Any, title: str, count: int, floats: int, args: argparse.Namespace) -> Case:
    """All peers with ``count`` tensors: first whether they are right, then how long they take."""
    tensors = [torch.empty(floats) for _ in range(count)]

    def write_anew() -> None:
        for i, tensor in enumerate(tensors):
            tensor.fill_(comm.rank + i)

    every: dict[str, Callable[[], object]] = {
        "workbench": partial(through, hvd, tensors, floats),
        "MPI.Iallreduce, Waitall": partial(through_mpi, comm, tensors),
        "Gloo": partial(through_gloo, tensors),
    }
    if real:
        every["Horovod"] = partial(through, real, tensors, floats)
    for name, run in every.items():
        write_anew()
        peers.timed(comm, run)
        n = comm.size
        if not all((tensor == n * i + n * (n - 1) / 2).all() for i, tensor in enumerate(tensors)):
            raise ArithmeticError(f"{name} gave a wrong sum for {title} on rank {comm.rank}.")
    repeats = args.repeats * (1 if count > 1 else 10)
    seconds = peers.in_turns(comm, every, args.rounds, repeats, write_anew)
    return {"title": title, "seconds": seconds, "bytes": 4 * floats * count, "images": 0}


def through(module: Any, tensors: list[torch.Tensor], floats: int) -> None:
    """The workbench and Horovod have the same verbs."""
    handles = [
        module.allreduce_async_(tensor, name=f"{floats}.{i}", op=module.Sum) for i, tensor in enumerate(tensors)
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
