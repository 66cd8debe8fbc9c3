"""Lesson 03, ring allreduce."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.course.judging.task import Bound, Case, CommTask
from workbench.course.provenance.coding import Coded, pieces
from workbench.course.simulator import Run


def reduce_scatter(comm: Any, chunks: Any) -> Any:
    """Return chunk number (rank + 1) % n of the sum over all ranks.

    chunks: this rank's list of n arrays. In n - 1 steps, pass one chunk to the right and add the one from the left.
    """
    n, rank = comm.size, comm.rank
    chunks = [chunk.copy() for chunk in chunks]
    ### BEGIN SOLUTION
    for step in range(n - 1):
        outgoing, mine = (rank - step) % n, (rank - step - 1) % n
        chunks[mine] += comm.sendrecv(chunks[outgoing], dest=(rank + 1) % n, source=(rank - 1) % n)
    ### END SOLUTION
    return chunks[(rank + 1) % n]


def ring_allreduce(comm: Any, x: Any) -> Any:
    """Return the sum of all ranks' x, a one-dimensional array of any length, on every rank.

    Each rank talks to its two neighbours only, and sends 2(n - 1) messages of one n-th of x.
    """
    n, rank = comm.size, comm.rank
    right, left = (rank + 1) % n, (rank - 1) % n
    chunks = np.array_split(x.copy(), n)
    ### BEGIN SOLUTION
    for step in range(n - 1):  # reduce-scatter: then chunk rank + 1 is complete here
        mine = (rank - step - 1) % n
        chunks[mine] = chunks[mine] + comm.sendrecv(chunks[(rank - step) % n], dest=right, source=left)
    for step in range(n - 1):  # allgather: the complete chunks go round
        chunks[(rank - step) % n] = comm.sendrecv(chunks[(rank - step + 1) % n], dest=right, source=left)
    ### END SOLUTION
    return np.concatenate(chunks)


def _numbers(n: int, length: int) -> list[np.ndarray[Any, Any]]:
    random = np.random.default_rng([n, length])
    return [random.normal(size=length) for _ in range(n)]


def _vectors(n: int, length: int) -> Case:
    return Case(n, f"length {length:,}", [(x,) for x in _numbers(n, length)])


def _chunked(n: int, length: int) -> Case:
    return Case(n, f"length {length:,}", [(np.array_split(x, n),) for x in _numbers(n, length)])


def _lengths(n: int) -> list[int]:
    return sorted({0, 1, max(0, n - 1), 1000})


def _sum(case: Case) -> Any:
    return sum(x for (x,) in case.inputs)


def _scattered(case: Case) -> list[Any]:
    return [sum(chunks[(rank + 1) % case.n] for (chunks,) in case.inputs) for rank in range(case.n)]


_AN_NTH = "In each step one n-th of the array goes to the right"


def _half(case: Case, run: Run) -> Sequence[Bound]:
    total = sum(chunk.nbytes for chunk in case.inputs[0][0])
    return Bound.per_rank(run, case.n - 1, (case.n - 1) / case.n * total, _AN_NTH)


def _both(case: Case, run: Run) -> Sequence[Bound]:
    return Bound.per_rank(run, 2 * (case.n - 1), 2 * (case.n - 1) / case.n * case.inputs[0][0].nbytes, _AN_NTH)


_HALF = Coded(
    inputs=lambda arrays: [(np.array_split(array, len(arrays)),) for array in arrays],
    returned=lambda result, rank, n: {(rank + 1) % n: result},
    wanted=lambda rank, chunk, n: range(n),
)
_RING = Coded(
    inputs=lambda arrays: [(array,) for array in arrays],
    returned=lambda result, rank, n: pieces(result, n),
    wanted=lambda rank, chunk, n: range(n),
)

_READY_MADE = (
    *(f"comm.{verb}" for verb in ("allreduce", "Allreduce", "reduce", "gather", "allgather", "alltoall", "scatter")),
    *(f"{module}.{verb}" for module in ("workbench", "workbench.torch") for verb in ("allreduce", "reducescatter")),
)

TASKS = [
    CommTask(
        "03.reduce_scatter",
        "the first half of the ring",
        reduce_scatter,
        cases=lambda: [_chunked(n, length) for n in (1, 2, 3, 4, 7) for length in _lengths(n)],
        expected=_scattered,
        bounds=_half,
        scored=_chunked(4, 100_000),
        shown=_chunked(4, 100_000),
        coded=_HALF,
        asks_for=_READY_MADE,
    ),
    CommTask(
        "03.ring_allreduce",
        "the whole ring",
        ring_allreduce,
        cases=lambda: [_vectors(n, length) for n in (1, 2, 3, 4, 7) for length in _lengths(n)],
        expected=lambda case: [_sum(case)] * case.n,
        bounds=_both,
        scored=_vectors(4, 100_000),
        shown=_vectors(4, 100_000),
        coded=_RING,
        asks_for=_READY_MADE,
        points=3,
    ),
]
