"""Three stopwatches for training steps on simulated ranks; one is right.

Only :func:`whole_steps` is to be used; the other two are the usual mistakes, kept for comparison.

Example:
    >>> from workbench.course.simulator import simulate
    >>> [round(simulate(n, whole_steps).results[0] * 1e3, 1) for n in (1, 4)]
    [40.0, 21.1]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from workbench.collectives.ring import ring_allreduce


def train_step(comm: Any, number: int) -> None:
    """A step of 40 ms, shared out, and then 4 MB of gradients; step 0 takes 100 ms more."""
    compute(comm, number)
    ring_allreduce(comm, np.ones(500_000))


def compute(comm: Any, number: int) -> None:
    """A rank's part; on the last of several ranks it takes 1.5 times as long."""
    slow = 1.5 if comm.size > 1 and comm.rank == comm.size - 1 else 1.0
    comm.compute(0.040 / comm.size * slow + (0.100 if number == 0 else 0.0))


def from_the_beginning(comm: Any) -> float:
    """Seconds per step of five, with all that happens only once."""
    start = comm.now
    for number in range(5):
        train_step(comm, number)
    return float(comm.now - start) / 5


def own_work(comm: Any) -> float:
    """Seconds of this rank's part of a step, before the gradients have travelled."""
    train_step(comm, 0)
    start = comm.now
    compute(comm, 1)
    return float(comm.now - start)


def whole_steps(comm: Any) -> float:
    """Seconds of a step: after a warm-up, from a barrier on, on the slowest rank, the median of five."""
    train_step(comm, 0)
    took = []
    for number in range(1, 6):
        comm.barrier()
        start = comm.now
        train_step(comm, number)
        took.append(comm.allreduce(comm.now - start, op=max))
    return float(sorted(took)[2])
