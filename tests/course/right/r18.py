"""Right answers of lesson 18 that are unlike the official ones."""

from __future__ import annotations

from itertools import pairwise

import numpy as np


def by_elements(sizes, n):  # Owners, element by element.
    element = [(number, i) for number, size in enumerate(sizes) for i in range(size)]
    found = []
    for chunk in np.array_split(np.arange(len(element)), n):
        parts: dict[int, list[int]] = {}
        for at in chunk: parts.setdefault(element[at][0], []).append(element[at][1])
        found.append([(number, mine[0], mine[-1] + 1) for number, mine in parts.items()])
    return found
def pairwise_step(comm, grad, shard, lr):
    """Each chunk straight to its owner, as pairwise exchange does it: also n - 1 messages of one chunk."""
    n, rank = comm.size, comm.rank
    chunks = np.array_split(grad, n)
    total = chunks[rank].copy()
    for step in range(1, n):
        total = total + comm.sendrecv(chunks[(rank + step) % n], dest=(rank + step) % n, source=(rank - step) % n)
    return shard - lr * total / n
def straight_from_each(comm, shards, x):  # Each rank's rows come from that rank itself, by messages that do not wait.
    n, rank = comm.size, comm.rank
    for rows in shards:
        sent = [comm.isend(rows, dest=(rank + step) % n) for step in range(1, n)]
        came = {(rank - step) % n: comm.recv(source=(rank - step) % n) for step in range(1, n)}
        for each in sent: each.wait()
        came[rank] = rows
        comm.compute(0.001)
        x = np.tanh(np.vstack([came[each] for each in range(n)]) @ x)
    return x
def to_the_left(comm, grad, shard, lr):  # The ring of the reduce-scatter, the other way round.
    n, rank = comm.size, comm.rank
    chunks = [chunk.copy() for chunk in np.array_split(grad, n)]
    for step in range(1, n):
        chunks[(rank + step + 1) % n] += comm.sendrecv(
            chunks[(rank + step) % n], dest=(rank - 1) % n, source=(rank + 1) % n
        )
    return shard - chunks[rank] * (lr / n)
def by_bounds(sizes, n):
    """Bounds of the parts and of the parameters in the flat vector; a part owns where they overlap."""
    ends = np.cumsum([0, *sizes])
    lengths = [len(chunk) for chunk in np.array_split(np.arange(ends[-1]), n)]
    bounds = np.cumsum([0, *lengths])
    found = []
    for low, high in pairwise(bounds):
        overlaps = [(k, max(low, ends[k]), min(high, ends[k + 1])) for k in range(len(sizes))]
        found.append([(k, int(a - ends[k]), int(b - ends[k])) for k, a, b in overlaps if a < b])
    return found
def on_a_ring(comm, shards, x):  # A layer's rows travel around the ring, one neighbour at a time.
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
def cut_where_either_ends(sizes, n):
    """Walks along with two pointers: what is left of the parameter, and what is left of the chunk."""
    total = sum(sizes)
    parts: list[list[tuple[int, int, int]]] = []
    number, start = 0, 0
    for rank in range(n):
        room = total // n + (1 if rank < total % n else 0)
        mine = []
        while room:
            take = min(room, sizes[number] - start)
            if take: mine.append((number, start, start + take))
            start, room = start + take, room - take
            if start == sizes[number]: number, start = number + 1, 0
        parts.append(mine)
    return parts
def by_numbers_of_elements(sizes, n):
    """numpy: for each element its parameter and its place, cut by array_split; the runs are counted by np.unique."""
    numbers = np.repeat(np.arange(len(sizes)), sizes)
    places = np.concatenate([np.arange(size) for size in sizes]) if len(sizes) else numbers
    found = []
    for mine, where in zip(np.array_split(numbers, n), np.array_split(places, n), strict=True):
        found.append([(one, where[mine == one].min(), where[mine == one].max() + 1) for one in np.unique(mine)])
    return found
def ring_in_buffers(comm, grad, shard, lr):  # A ring with Isend and Recv; the shard is changed in a copy.
    n, rank = comm.size, comm.rank
    chunks = np.array_split(grad.copy(), n)
    for step in range(n - 1):
        send, into = chunks[(rank - step - 1) % n], chunks[(rank - step - 2) % n]
        came = np.empty_like(into)
        request = comm.Isend(send, dest=(rank + 1) % n)
        comm.Recv(came, source=(rank - 1) % n)
        request.wait()
        into += came
    new = shard.copy()
    new -= lr / n * chunks[rank]
    return new
def all_sent_at_once(comm, grad, shard, lr):  # Every chunk leaves at once; what comes is averaged.
    chunks = dict(enumerate(np.array_split(grad, comm.size)))
    mine = [chunks.pop(comm.rank)]
    leaving = [comm.isend(chunk, dest=owner) for owner, chunk in chunks.items()]
    mine += [comm.recv(source=other) for other in chunks]
    for request in leaving: request.wait()
    return shard - lr * np.mean(mine, axis=0)
def layer_by_function(comm, shards, x):  # A function gathers, so that W is gone when it has returned.
    n, rank = comm.size, comm.rank
    def gathered(rows):
        parts, travels = [rows], rows
        for _ in range(n - 1):
            request = comm.isend(travels, dest=(rank + 1) % n)
            travels = comm.recv(source=(rank - 1) % n)
            request.wait()
            parts.append(travels)
        return np.concatenate([parts[(rank - owner) % n] for owner in range(n)])
    for rows in shards:
        w = gathered(rows)
        comm.compute(0.001)
        x = np.tanh(w.dot(x))
        del w
    return x
def block_by_block(comm, shards, x):
    """W is never put together: the rows' products are, when all rows are there; a ring to the left."""
    n, rank = comm.size, comm.rank
    for mine in shards:
        held = [None] * n
        held[rank] = mine
        for owner in range(rank + 1, rank + n):
            held[owner % n] = comm.sendrecv(held[(owner - 1) % n], dest=(rank - 1) % n, source=(rank + 1) % n)
        comm.compute(0.001)
        x = np.concatenate([np.tanh(rows @ x) for rows in held])
    return x
RIGHT = {
    "18.owners": [by_elements, by_bounds, cut_where_either_ends, by_numbers_of_elements],
    "18.reduce_scatter_step": [pairwise_step, to_the_left, ring_in_buffers, all_sent_at_once],
    "18.gather_parameters": [straight_from_each, on_a_ring, layer_by_function, block_by_block],
}
