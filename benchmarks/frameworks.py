"""What the workers of TensorFlow, JAX and Keras share: the ranks, the turns, and the checks of what was learned.

Every peer of a framework trains the same network, from the same weights, with the same batches, in the same processes.
The limit: each rank trains a copy of its own at the same time, without a word to the others.
"""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import peers
from figures import Case
from mpi4py import MPI

LIMIT = "independent copies"
WARM_UP = 3  # steps: what is compiled is, and DDP has made its buckets anew
Weights = Sequence[np.ndarray[Any, Any]]


@dataclass(frozen=True)
class Peer:
    """One way to train a network on all ranks.

    Args:
        steps: trains for so many steps.
        weights: as they are now, in the order of the layers.
    """

    steps: Callable[[int], None]
    weights: Callable[[], Weights]


@dataclass(frozen=True)
class Task:
    """A network by the sizes of its layers, and its data.

    Args:
        title: as in the table.
        batch: images of one rank in one step.
        shape: of one image.
        classes: how many.
    """

    title: str
    batch: int
    shape: tuple[int, ...]
    classes: int

    def data(self, seed: int, batches: int = 1) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Images and labels, the same in every step."""
        rng = np.random.default_rng(seed)
        count = self.batch * batches
        return rng.standard_normal((count, *self.shape), np.float32), rng.integers(0, self.classes, count)


CNN, MLP = Task("CNN, 0.1 M, batch 64", 64, (28, 28, 1), 10), Task("MLP, 25 M, batch 32", 32, (1024,), 1000)
TASKS = {"cnn": CNN, "mlp": MLP}


def options(text: str) -> argparse.ArgumentParser:
    """The words that all workers know."""
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one round of the limit, about")
    return parser


def start() -> MPI.Intracomm:
    """Tie this rank to one core, before a framework counts the cores and makes its threads."""
    comm = MPI.COMM_WORLD.Dup()
    peers.pin(comm.rank)
    return comm


def addresses(comm: MPI.Intracomm) -> list[str]:
    """A free port of this machine for every rank."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        mine = f"127.0.0.1:{server.getsockname()[1]}"
        return list(comm.allgather(mine))


def measure(
    comm: MPI.Intracomm, task: Task, all_peers: Mapping[str, Peer], rounds: int, seconds: float, batches: int = 1
) -> Case:
    """All peers train in turns.

    Args:
        batches: in what a peer calls a step.

    Raises:
        ArithmeticError: they have not learned the same.
    """
    for peer in all_peers.values():
        peer.steps(WARM_UP if batches == 1 else 1)
    compare(comm, {name: peer.weights() for name, peer in all_peers.items() if name != LIMIT})
    once = comm.allreduce(peers.timed(comm, lambda: all_peers[LIMIT].steps(1)), MPI.MAX)
    count = max(1, round(seconds / once))
    runs = {name: lambda peer=peer: peer.steps(count) for name, peer in all_peers.items()}
    times = peers.in_turns(comm, runs, rounds, repeats=1, before=lambda: None)
    for name, peer in all_peers.items():
        if name != LIMIT:
            compare(comm, {name: peer.weights()})
    return {"title": task.title, "seconds": times, "bytes": 0, "images": comm.size * task.batch * batches * count}


def compare(comm: MPI.Intracomm, learned: Mapping[str, Weights]) -> None:
    """Compare each peer's weights on this rank with the first peer's on rank 0.

    Raises:
        ArithmeticError: they differ by more than rounding, or are no numbers any more.
    """
    first = comm.bcast(next(iter(learned.values())) if comm.rank == 0 else None)
    for name, weights in learned.items():
        for i, (mine, right) in enumerate(zip(weights, first, strict=True)):
            if not (np.isfinite(mine).all() and np.allclose(mine, right, rtol=1e-3, atol=1e-5)):
                off = float(np.abs(mine - right).max())
                raise ArithmeticError(f"{name}: weight {i} on rank {comm.rank} is off by {off:g}.")


__all__ = ["CNN", "LIMIT", "MLP", "TASKS", "Peer", "Task", "addresses", "compare", "measure", "options", "start"]
