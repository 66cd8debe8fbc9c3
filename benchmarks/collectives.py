"""Allreduce of one array, float32 sum, by size: ``mpiexec -n 2 python benchmarks/collectives.py``.

Each repetition begins with an array that was just written, as backward leaves a gradient, and a barrier. ``memcpy``,
every rank copying as many bytes at the same time, is the limit. ``hvd`` calls include the announcement and its answer;
``data plane alone`` is the backend without them, as all peers' figures are, which have nobody to agree with.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import peers
import torch
from figures import Case
from numpy.typing import NDArray
from peers import MPI

if not peers.THEIRS:
    import workbench as wb
    import workbench.torch as hvd
    from workbench.collectives import Reduction, ring_allreduce
    from workbench.core.backend.base import Backend
    from workbench.transport.host.mpi import mpi_backend
    from workbench.transport.shm.backend import reserved_bytes, shm_backend
    from workbench.transport.shm.node import join_memory

Array = NDArray[Any]
IN_PLACE, ANY_TENSOR, LIMIT = "workbench in place", "workbench allreduce_ (any tensor)", "memcpy"
ALONE = "workbench in place, data plane alone"
PERIOD = 1024  # the arrays are a multiple of it


class SendrecvLink:
    """The least that the ring needs: MPI's own blocking Sendrecv, without deadline. Not for training."""

    def __init__(self, comm: MPI.Intracomm) -> None:
        self._comm, self.rank, self.size = comm, comm.rank, comm.size

    def sendrecv(self, send: Array | None, dest: int, recv: Array | None, source: int) -> None:
        """The ring gives both arrays at every step."""
        self._comm.Sendrecv(send, dest, recvbuf=recv, source=source)


@dataclass(frozen=True)
class Peer:
    """An allreduce in place, and the array that it works on."""

    array: Array
    run: Callable[[], object]


def main() -> None:
    """Measure on all ranks; rank 0 prints one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bytes", type=int, nargs="+", default=[4096, 1 << 20], help=f"multiples of {4 * PERIOD}")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--repeats", type=int, default=20, help="in a round; fewer above 1 MiB")
    args = peers.arguments(parser)
    comm = peers.start()
    real = peers.horovod()
    absent = peers.absent(real)
    plane, problem = (None, "") if peers.THEIRS else data_plane(comm)
    if problem:
        absent[ALONE] = problem
    cases = []
    for nbytes in args.bytes:
        if peers.fits(comm, 6 * nbytes):
            cases.append(
                one_size(comm, nbytes, args.rounds, max(1, min(args.repeats, (32 << 20) // nbytes)), plane, real)
            )
        else:
            absent[title(nbytes)] = "too little memory here"
    ours = [*([ALONE] if plane else []), IN_PLACE, ANY_TENSOR]
    peers.finish(comm, {"section": "collectives", "ours": ours, "limit": LIMIT, "cases": cases, "absent": absent})


def data_plane(comm: MPI.Intracomm) -> tuple[Backend | None, str]:
    """Our backend by itself, or why there is none."""
    node, problem = join_memory(comm.allgather, comm.rank, reserved_bytes(0), peers.GLOO_TIMEOUT_S)
    return (shm_backend(mpi_backend(comm.Dup(), 300.0), node, 0) if node and comm.size > 1 else None), problem


def one_size(comm: MPI.Intracomm, nbytes: int, rounds: int, repeats: int, plane: Backend | None, real: Any) -> Case:
    """All peers with arrays of one size: first whether they are right, then how long they take."""
    every = make(comm, nbytes, plane, real)
    for name, peer in every.items():
        if name != LIMIT:
            check(comm, name, peer)

    def write_anew() -> None:
        for array in {id(peer.array): peer.array for peer in every.values()}.values():
            array.fill(1.0)

    runs = {name: peer.run for name, peer in every.items()}
    peers.first_calls(comm, runs)
    seconds = peers.in_turns(comm, runs, rounds, repeats, write_anew)
    return {"title": title(nbytes), "seconds": seconds, "bytes": nbytes, "images": 0}


def make(comm: MPI.Intracomm, nbytes: int, plane: Backend | None, real: Any) -> dict[str, Peer]:
    """All peers; all but those in place work on one and the same ordinary array."""
    if peers.THEIRS:
        return {peers.horovod_name(): horovods(np.empty(nbytes // 4, np.float32), real)}
    mine = wb.empty((nbytes // 4,), "float32")
    array, other = np.empty(nbytes // 4, np.float32), np.zeros(nbytes // 4, np.float32)
    tensor, link = torch.from_numpy(array), SendrecvLink(comm)
    in_place = partial(hvd.allreduce_, torch.from_numpy(mine), name=f"in-place.{nbytes}", op=hvd.Sum)
    made = {
        IN_PLACE: Peer(mine, in_place),
        ANY_TENSOR: Peer(array, lambda: hvd.allreduce_(tensor, name=f"any.{nbytes}", op=hvd.Sum)),
        "MPI.Allreduce": Peer(array, lambda: comm.Allreduce(MPI.IN_PLACE, array, MPI.SUM)),
        "Gloo": Peer(array, lambda: peers.dist.all_reduce(tensor)),
        "Python ring over Sendrecv": Peer(array, lambda: ring_allreduce(link, array)),
        LIMIT: Peer(array, lambda: np.copyto(other, array)),
    }
    if plane:
        there: Array = plane.shared.allocate(nbytes).view(np.float32)
        places = comm.allgather(plane.shared.offset(there))
        made[ALONE] = Peer(there, lambda: plane.collectives.allreduce(there, Reduction("sum", "float32"), places))
    if real:
        made[peers.horovod_name()] = horovods(array, real)
    return made


def horovods(array: Array, real: Any) -> Peer:
    """Horovod's allreduce of that array."""
    tensor = torch.from_numpy(array)
    return Peer(array, lambda: real.allreduce_(tensor, name=f"real.{array.nbytes}", op=real.Sum))


def check(comm: MPI.Intracomm, name: str, peer: Peer) -> None:
    """Reduce numbers whose sum is known.

    Raises:
        ArithmeticError: a wrong sum.
    """
    pattern, n = np.arange(PERIOD, dtype=np.float32), comm.size
    rows = peer.array.reshape(-1, PERIOD)
    rows[:] = pattern + comm.rank
    peers.timed(comm, peer.run)
    if not (rows == n * pattern + n * (n - 1) / 2).all():
        raise ArithmeticError(f"{name} gave a wrong sum of {peer.array.nbytes} bytes on rank {comm.rank}.")


def title(nbytes: int) -> str:
    """``4 KiB``, ``16 MiB``."""
    return f"{nbytes >> 20} MiB" if nbytes >= 1 << 20 else f"{nbytes >> 10} KiB"


if __name__ == "__main__":
    main()
