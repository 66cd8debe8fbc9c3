"""allgather, broadcast, alltoall and reducescatter, by size: ``mpiexec -n 2 python benchmarks/verbs.py``.

The size is that of a rank's input. Horovod's and our verbs return a new array, whose pages the system has to find and
clear. So MPI and Gloo are given a new one in each call, too; *MPI, same result array* is not. ``hvd`` calls include the
announcement and its answer, which keep the order of the ranks; MPI and Gloo have nobody to agree with.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
import peers
import torch
from collectives import title
from figures import Case
from peers import MPI, hvd

Verb = Callable[[torch.Tensor], torch.Tensor]
OURS, AGAIN = "workbench", "MPI, same result array"


def main() -> None:
    """Measure on all ranks; rank 0 prints one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, nargs="+", default=[4096, 1 << 20, 64 << 20])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--repeats", type=int, default=20, help="in a round; fewer above 1 MiB")
    args = peers.arguments(parser)
    comm = peers.start()
    real = peers.horovod()
    cases = [
        measure(comm, name, nbytes, args, real)
        for name in ("allgather", "broadcast", "alltoall", "reducescatter")
        for nbytes in args.bytes
    ]
    ours = [] if peers.THEIRS else [OURS]
    peers.finish(comm, {"section": "verbs", "ours": ours, "limit": "", "cases": cases, "absent": peers.absent(real)})


def measure(comm: MPI.Intracomm, name: str, nbytes: int, args: argparse.Namespace, real: Any) -> Case:
    """All peers with one verb and size: first whether they are right, then how long they take."""
    tensor = torch.empty(nbytes // 4)
    every = made(comm, name, tensor, real)
    tensor.copy_(values(comm.rank, len(tensor)))
    for peer, run in every.items():
        if not torch.equal(run(tensor), right(comm, name, len(tensor))):
            raise ArithmeticError(f"{peer}: {name} of {nbytes} bytes is wrong on rank {comm.rank}.")
    runs = {peer: lambda run=run: run(tensor) for peer, run in every.items()}
    repeats = max(1, min(args.repeats, (16 << 20) // nbytes))
    peers.first_calls(comm, runs)
    seconds = peers.in_turns(comm, runs, args.rounds, repeats, lambda: None)
    return {"title": f"{name}, {title(nbytes)}", "seconds": seconds, "bytes": nbytes, "images": 0}


def values(rank: int, length: int) -> torch.Tensor:
    """A rank's input: small whole numbers, whose sums have no rounding."""
    return torch.arange(length, dtype=torch.float32) % 1000 + rank


def right(comm: MPI.Intracomm, name: str, length: int) -> torch.Tensor:
    """This rank's result."""
    everybody = [values(rank, length) for rank in range(comm.size)]
    part = length // comm.size
    mine = slice(comm.rank * part, (comm.rank + 1) * part)
    if name == "allgather":
        return torch.cat(everybody)
    if name == "broadcast":
        return everybody[0]
    if name == "alltoall":
        return torch.cat([one[mine] for one in everybody])
    return torch.stack(everybody).sum(0)[mine]


def made(comm: MPI.Intracomm, name: str, tensor: torch.Tensor, real: Any) -> dict[str, Verb]:
    """The peers."""
    horovods = {peers.horovod_name(): through(real, name, len(tensor))} if real else {}
    if peers.THEIRS:
        return horovods
    found = {OURS: through(hvd, name, len(tensor)), "MPI": through_mpi(comm, name), "Gloo": through_gloo(comm, name)}
    found[AGAIN] = through_mpi(comm, name, torch.empty(result_length(comm, name, len(tensor))))
    return {each: run for each, run in (found | horovods).items() if run is not None}


def through(module: Any, name: str, length: int) -> Verb:
    """The workbench and Horovod have the same verbs."""
    verb, known = getattr(module, name), f"{name}.{length}"
    if name == "broadcast":
        return lambda tensor: verb(tensor, 0, name=known)
    if name == "reducescatter":
        return lambda tensor: verb(tensor, name=known, op=module.Sum)
    return lambda tensor: verb(tensor, name=known)


def result_length(comm: MPI.Intracomm, name: str, length: int) -> int:
    """Of the result."""
    return {"allgather": length * comm.size, "reducescatter": length // comm.size}.get(name, length)


def through_mpi(comm: MPI.Intracomm, name: str, again: torch.Tensor | None = None) -> Verb:
    """MPI's own call, into a new array, or always into the same one."""
    calls = {
        "allgather": lambda send, recv: comm.Allgather(send, recv),
        "alltoall": lambda send, recv: comm.Alltoall(send, recv),
        "reducescatter": lambda send, recv: comm.Reduce_scatter_block(send, recv, MPI.SUM),
    }

    def run(tensor: torch.Tensor) -> torch.Tensor:
        out = torch.empty(result_length(comm, name, len(tensor))) if again is None else again
        if name == "broadcast":
            if comm.rank == 0:
                out.copy_(tensor)
            comm.Bcast(out.numpy())
        else:
            calls[name](tensor.numpy(), out.numpy())
        return out

    return run


def through_gloo(comm: MPI.Intracomm, name: str) -> Verb:
    """torch.distributed's, over Gloo, into a new tensor."""
    calls = {
        "allgather": lambda tensor, out: peers.dist.all_gather(list(out.chunk(comm.size)), tensor),
        "alltoall": lambda tensor, out: peers.dist.all_to_all_single(out, tensor),
        "reducescatter": lambda tensor, out: peers.dist.reduce_scatter(out, list(tensor.chunk(comm.size))),
    }

    def run(tensor: torch.Tensor) -> torch.Tensor:
        out = np.empty(result_length(comm, name, len(tensor)), np.float32)
        result = torch.from_numpy(out)
        if name == "broadcast":
            if comm.rank == 0:
                result.copy_(tensor)
            peers.dist.broadcast(result, 0)
        else:
            calls[name](tensor, result)
        return result

    return run


if __name__ == "__main__":
    main()
