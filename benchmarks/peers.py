"""The processes of one run and the peers in them: all ranks pinned alike, all peers in the same processes, in turns."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import os
import socket
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
import turns
from figures import Seconds, rotated

THEIRS = turns.is_theirs()  # Horovod's own environment, see elsewhere.py: there may be neither mpi4py nor the workbench
if THEIRS:
    import horovod.torch as hvd  # type: ignore[import-not-found]
    from turns import MPI
else:
    from mpi4py import MPI

    import workbench.torch as hvd

dist: Any = torch.distributed  # most of it is not typed
GLOO_TIMEOUT_S = 60.0
_FIRST = 10
_TURN_S = 120.0  # a model is compiled in it
NOT_HERE = "not importable here"
STAND_IN = "stand-in for Horovod"


def arguments(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Read the command line, with the options by which two jobs measure in turns."""
    for name, options in turns.ARGUMENTS:
        parser.add_argument(name, **options)
    return parser.parse_args()


def start() -> MPI.Intracomm:
    """Pin this rank to a core, join the workbench and Gloo, and return a communicator for everything else."""
    if THEIRS:
        hvd.init()
        there: Any = turns.Comm(hvd.rank(), hvd.size())
        pin(there.rank)
        torch.set_num_threads(1)
        turns.join(there.rank)
        return there
    comm = MPI.COMM_WORLD.Dup()
    pin(comm.rank)
    torch.set_num_threads(1)
    hvd.init()
    gloo(comm)
    turns.join(comm.rank)
    return comm


def pin(rank: int) -> None:
    """Tie all threads of this process to one core, the rank's number modulo the cores that there are."""
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    for thread in os.listdir("/proc/self/task"):  # those to come inherit it
        os.sched_setaffinity(int(thread), {cores[rank % len(cores)]})


def gloo(comm: MPI.Intracomm) -> None:
    """Make torch.distributed's default process group, over Gloo, of the same processes."""
    address = os.environ.get(
        "WORKBENCH_HOST_ADDRESS", "127.0.0.1"
    )  # set where `workbench run -H` has started the ranks
    if address == "127.0.0.1":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo" if sys.platform == "linux" else "lo0")
    port = None
    if comm.rank == 0:
        with socket.create_server((address, 0)) as server:
            port = server.getsockname()[1]
    address, port = comm.bcast((address, port))
    where = f"tcp://{address}:{port}"
    limit = timedelta(seconds=GLOO_TIMEOUT_S)
    dist.init_process_group("gloo", init_method=where, rank=comm.rank, world_size=comm.size, timeout=limit)


def horovod() -> Any:
    """The real ``horovod.torch``, initialized, or None: what ``--as-horovod`` puts in its place is the workbench."""
    if THEIRS or turns.in_turns():
        return hvd if THEIRS else None  # it is the other job's
    try:
        metadata.version("horovod")
        spec = find_spec("horovod")
        ours = Path(hvd.__file__).resolve().parent.parent
        if spec is None or spec.origin is None or ours in Path(spec.origin).resolve().parents:
            return None
        import horovod.torch as real  # type: ignore[import-not-found]
    except ImportError:  # PackageNotFoundError is one
        return None
    real.init()
    return real


def absent(real: Any) -> dict[str, str]:
    """What a result says about Horovod where it is not there."""
    return {} if real or turns.in_turns() else {"Horovod": NOT_HERE}


def horovod_name() -> str:
    """What its row is called: in its own environment, too, it may be something of ours under its name."""
    return STAND_IN if THEIRS and hvd.allreduce_.__module__.startswith("workbench") else "Horovod"


def fits(comm: MPI.Intracomm, nbytes: int) -> bool:
    """Is there memory for ``nbytes`` on every rank? The same answer on all."""
    return bool(comm.bcast(nbytes * comm.size < 0.8 * available()))


def available() -> int:
    """Bytes of memory that are to be had."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable"):
                return int(line.split()[1]) << 10
    import psutil  # in Horovod's environment there may be none

    return int(psutil.virtual_memory().available)


def first_calls(comm: MPI.Intracomm, runs: Mapping[str, Callable[[], object]]) -> None:
    """A training makes thousands: what the first ones cost, such as the trials of several ways, is not counted."""
    for _ in range(_FIRST):
        for run in runs.values():
            timed(comm, run)


def in_turns(
    comm: MPI.Intracomm,
    peers: Mapping[str, Callable[[], object]],
    rounds: int,
    repeats: int,
    before: Callable[[], object],
) -> Seconds:
    """Time all peers, round by round, each round in another order.

    Args:
        comm: of all ranks.
        peers: what each of them does once.
        rounds: how many.
        repeats: how often in a row a peer does it in one round; the round's time is their median.
        before: what happens before each, untimed; then comes a barrier.

    Returns:
        Seconds of the slowest rank, by peer and round.
    """
    mine = {name: np.empty((rounds, repeats)) for name in peers}
    for turn in range(rounds):
        turns.turn()
        for name in rotated(list(peers), turn):
            for i in range(repeats):
                before()
                mine[name][turn, i] = timed(comm, peers[name])
    for seconds in mine.values():
        comm.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
    return {name: [statistics.median(row) for row in seconds.tolist()] for name, seconds in mine.items()}


def now(name: str | None) -> None:
    """Whose turn it is, for :func:`turns.last_turn`; who is not done in time is killed. None: nobody's.

    A peer that fails on one rank may leave the other in a wait without end.
    """
    faulthandler.cancel_dump_traceback_later()
    if name is not None:
        sys.stderr.write(f"\n{turns.TURN}{name}\n")  # at once: the ranks share one pipe
        sys.stderr.flush()
        faulthandler.dump_traceback_later(_TURN_S, exit=True)


def timed(comm: MPI.Intracomm, run: Callable[[], object]) -> float:
    """Seconds that ``run`` takes on this rank, begun together.

    MPI may hand a rank its result while another still needs this rank's MPI to move; the second barrier lets it.
    """
    comm.Barrier()
    begun = time.perf_counter()
    run()
    seconds = time.perf_counter() - begun
    comm.Barrier()
    return seconds


def finish(comm: MPI.Intracomm, result: Mapping[str, object]) -> None:
    """Rank 0 prints the result as a line of JSON; all leave together."""
    if THEIRS:
        if comm.rank == 0:
            library = f"{horovod_name()} {getattr(hvd, '__version__', '')}".strip()
            print(json.dumps({"ranks": comm.size, "library": library, **result}), flush=True)
        comm.Barrier()
        hvd.shutdown()
        return
    if comm.rank == 0:
        library = MPI.Get_library_version().split("\n")[0].strip("\0 ")
        print(json.dumps({"ranks": comm.size, "mpi": " ".join(library.split()), **result}), flush=True)
    comm.Barrier()
    if dist.is_initialized():
        dist.destroy_process_group()
    hvd.shutdown()
