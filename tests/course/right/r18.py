"""Right answers of lesson 18 that are unlike the official ones."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np


def by_elements(sizes: Any, n: Any) -> Any:
    """Owners, element by element."""
    element = [(number, i) for number, size in enumerate(sizes) for i in range(size)]
    found = []
    for chunk in np.array_split(np.arange(len(element)), n):
        parts: dict[int, list[int]] = {}
        for at in chunk:
            parts.setdefault(element[at][0], []).append(element[at][1])
        found.append([(number, mine[0], mine[-1] + 1) for number, mine in parts.items()])
    return found


def pairwise_step(comm: Any, grad: Any, shard: Any, lr: Any) -> Any:
    """Each chunk straight to its owner, as pairwise exchange does it: also n - 1 messages of one chunk."""
    n, rank = comm.size, comm.rank
    chunks = np.array_split(grad, n)
    total = chunks[rank].copy()
    for step in range(1, n):
        total = total + comm.sendrecv(chunks[(rank + step) % n], dest=(rank + step) % n, source=(rank - step) % n)
    return shard - lr * total / n


def straight_from_each(comm: Any, shards: Any, x: Any) -> Any:
    """Each rank's rows come from that rank itself, by messages that do not wait."""
    n, rank = comm.size, comm.rank
    for rows in shards:
        sent = [comm.isend(rows, dest=(rank + step) % n) for step in range(1, n)]
        came = {(rank - step) % n: comm.recv(source=(rank - step) % n) for step in range(1, n)}
        for each in sent:
            each.wait()
        came[rank] = rows
        comm.compute(0.001)
        x = np.tanh(np.vstack([came[each] for each in range(n)]) @ x)
    return x


def to_the_left(comm: Any, grad: Any, shard: Any, lr: Any) -> Any:
    """The ring of the reduce-scatter, the other way round."""
    n, rank = comm.size, comm.rank
    chunks = [chunk.copy() for chunk in np.array_split(grad, n)]
    for step in range(1, n):
        chunks[(rank + step + 1) % n] += comm.sendrecv(
            chunks[(rank + step) % n], dest=(rank - 1) % n, source=(rank + 1) % n
        )
    return shard - chunks[rank] * (lr / n)


def by_bounds(sizes: Any, n: Any) -> Any:
    """Bounds of the parts and of the parameters in the flat vector; a part owns where they overlap."""
    ends = np.cumsum([0, *sizes])
    lengths = [len(chunk) for chunk in np.array_split(np.arange(ends[-1]), n)]
    bounds = np.cumsum([0, *lengths])
    found = []
    for low, high in pairwise(bounds):
        overlaps = [(k, max(low, ends[k]), min(high, ends[k + 1])) for k in range(len(sizes))]
        found.append([(k, int(a - ends[k]), int(b - ends[k])) for k, a, b in overlaps if a < b])
    return found


def on_a_ring(comm: Any, shards: Any, x: Any) -> Any:
    """A layer's rows travel around the ring, one neighbour at a time."""
    n, rank = comm.size, comm.rank
    for rows in shards:
        held = {rank: rows}
        for step in range(n - 1):
            held[(rank - step - 1) % n] = comm.sendrecv(
                held[(rank - step) % n], dest=(rank + 1) % n, source=(rank - 1) % n
            )
        comm.compute(0.001)
        x = np.tanh(np.concatenate([held[each] for each in range(n)]) @ x)
    return x


RIGHT = {
    "18.owners": [by_elements, by_bounds],
    "18.reduce_scatter_step": [pairwise_step, to_the_left],
    "18.gather_parameters": [straight_from_each, on_a_ring],
}
