"""Wrong solutions of lesson 18, each with what the check must say."""

from __future__ import annotations

from typing import Any

import numpy as np
from wrong_answers import Answers

wrong = Answers()


@wrong("18.owners", "rank 0 owns [(0, 0, 6)]: 6 elements, expected 4. Every parameter is whole")
def whole_parameters(sizes, n):
    return [[(number, 0, size) for number, size in enumerate(sizes) if number % n == rank] for rank in range(n)]
@wrong("18.owners", "as (parameter, element). Each parameter was cut by itself: put them one after the other")
def each_parameter_cut(sizes, n):
    found: list[Any] = [[] for _ in range(n)]
    for number, size in enumerate(sizes):
        for rank, chunk in enumerate(np.array_split(np.arange(size), n)):
            if len(chunk): found[rank].append((number, int(chunk[0]), int(chunk[-1]) + 1))
    return found
@wrong("18.owners", "2 elements, expected 3. All elements are there, in order, but the chunks have lengths")
def the_last_gets_the_rest(sizes, n):
    total, found = sum(sizes), []
    for rank in range(n):
        low = rank * (total // n)
        high = total if rank == n - 1 else low + total // n
        found.append(_between(sizes, low, high))
    return found
@wrong("18.owners", "in order, but the chunks have lengths [8, 8, 6] and not [8, 7, 7]")
def rounds_up(sizes, n):
    length = -(-sum(sizes) // n)
    return [_between(sizes, rank * length, (rank + 1) * length) for rank in range(n)]
@wrong("18.owners", "Start and stop count from the parameter's own first element")
def counts_from_the_array(sizes, n):
    total, low, found = sum(sizes), 0, []
    for rank in range(n):
        high, start, parts = low + total // n + (rank < total % n), 0, []
        for number, size in enumerate(sizes):
            first, last = max(low, start), min(high, start + size)
            if first < last: parts.append((number, first, last))
            start += size
        found.append(parts)
        low = high
    return found
@wrong("18.owners", "rank 0 owns [(0, 0, 4), (1, 0, 0)]: one of these parts is empty")
def empty_parts(sizes, n):
    total, low, found = sum(sizes), 0, []
    for rank in range(n):
        high, start, parts = low + total // n + (rank < total % n), 0, []
        for number, size in enumerate(sizes):
            first = min(max(low - start, 0), size)
            parts.append((number, first, max(first, min(high - start, size))))
            start += size
        found.append(parts)
        low = high
    return found
def _between(sizes, low, high):
    start, parts = 0, []
    for number, size in enumerate(sizes):
        first, last = max(low, start), min(high, start + size)
        if first < last: parts.append((number, first - start, last - start))
        start += size
    return parts
def _owned(sizes, n):
    ends = np.cumsum([0, *map(len, np.array_split(np.arange(sum(sizes)), n))]).tolist()
    return [_between(sizes, ends[rank], ends[rank + 1]) for rank in range(n)]
@wrong("18.owners", "3 elements, expected 5. Is the last element missing? Stop is the element behind it")
def stop_is_the_last(sizes, n):
    return [[(number, start, stop - 1) for number, start, stop in parts] for parts in _owned(sizes, n)]
@wrong("18.owners", "(0, 0) is no part; (parameter, start, stop) is")
def pairs(sizes, n): return [[(number, start) for number, start, _ in parts] for parts in _owned(sizes, n)]
@wrong("18.reduce_scatter_step", "1,600,000 bytes per rank; the limit is 612,000, the best possible 600,000")
def whole_allreduce(comm, grad, shard, lr):
    mean = comm.allreduce(grad) / comm.size
    return shard - lr * np.array_split(mean, comm.size)[comm.rank]
@wrong("18.reduce_scatter_step", "chunk number rank has this rank's own values only. Lesson 03's ring ends with")
def chunk_of_lesson_03(comm, grad, shard, lr):
    n, rank = comm.size, comm.rank
    chunks = np.array_split(grad.copy(), n)
    for step in range(n - 1):
        mine = (rank - step - 1) % n
        chunks[mine] = chunks[mine] + comm.sendrecv(
            chunks[(rank - step) % n], dest=(rank + 1) % n, source=(rank - 1) % n
        )
    return shard - lr * chunks[rank] / n
@wrong("18.reduce_scatter_step", "✗ right: the step goes along the sum: divide by n for the mean")
def sum_for_mean(comm, grad, shard, lr): return shard - lr * comm.size * (shard - _right(comm, grad, shard, 1.0))
@wrong("18.reduce_scatter_step", "rank 0 changes its own shard, which belongs to the caller")
def changes_the_shard(comm, grad, shard, lr):
    shard[...] = _right(comm, grad, shard, lr)
    return shard
def _right(comm, grad, shard, lr):
    n, rank = comm.size, comm.rank
    chunks = np.array_split(grad.copy(), n)
    for step in range(n - 1):
        mine = (rank - step - 2) % n
        chunks[mine] = chunks[mine] + comm.sendrecv(
            chunks[(rank - step - 1) % n], dest=(rank + 1) % n, source=(rank - 1) % n
        )
    return shard - lr * chunks[rank] / n
def _gathered(comm, rows):
    n, rank, parts = comm.size, comm.rank, {comm.rank: rows}
    for step in range(n - 1):
        parts[(rank - step - 1) % n] = comm.sendrecv(
            parts[(rank - step) % n], dest=(rank + 1) % n, source=(rank - 1) % n
        )
    return np.concatenate([parts[each] for each in range(n)])
@wrong("18.gather_parameters", "3 layers held at once; the limit is 1, the best possible 1")
def all_layers_first(comm, shards, x):
    layers = [_gathered(comm, rows) for rows in shards]
    for weights in layers:
        comm.compute(0.001)
        x = np.tanh(weights @ x)
    return x
@wrong("18.gather_parameters", "np.tanh is missing")
def no_tanh(comm, shards, x):
    for rows in shards:
        weights = _gathered(comm, rows)
        comm.compute(0.001)
        x = weights @ x
    return x
@wrong(
    "18.gather_parameters",
    "widths 4, 4: rank 0: your result has shape (2,), expected (4,). Along axis 0 a part of it is missing",
)
def own_rows_only(comm, shards, x):
    for rows in shards:
        comm.compute(0.001)
        x = np.tanh(rows @ x) if rows.shape[1] == len(x) else x
    return x
@wrong("18.gather_parameters", "the rows of W are in the order in which they arrived")
def order_of_the_ring(comm, shards, x):
    n, rank = comm.size, comm.rank
    for rows in shards:
        parts = [rows]
        for _ in range(n - 1): parts.append(comm.sendrecv(parts[-1], dest=(rank + 1) % n, source=(rank - 1) % n))
        comm.compute(0.001)
        x = np.tanh(np.concatenate(parts) @ x)
    return x
@wrong("18.gather_parameters", "bytes from the busiest rank; the limit")
def by_allreduce(comm, shards, x):
    for rows in shards:
        counts = comm.allgather(len(rows))
        whole = np.zeros((sum(counts), rows.shape[1]))
        start = sum(counts[: comm.rank])
        whole[start : start + len(rows)] = rows
        weights = comm.allreduce(whole)
        comm.compute(0.001)
        x = np.tanh(weights @ x)
    return x
@wrong("18.gather_parameters", "✗ score: comm.compute was never called; call it once for each of the 3 layers")
def forgets_to_compute(comm, shards, x):
    for rows in shards: x = np.tanh(_gathered(comm, rows) @ x)
    return x
@wrong("18.gather_parameters", "calls of comm.compute before the layer's W was there")
def uses_before_it_is_there(comm, shards, x):
    n, rank = comm.size, comm.rank
    for rows in shards:
        comm.compute(0.001)
        parts = {rank: rows}
        for step in range(n - 1):
            came = (rank - step - 1) % n
            parts[came] = comm.sendrecv(parts[(rank - step) % n], dest=(rank + 1) % n, source=(rank - 1) % n)
        x = np.tanh(np.concatenate([parts[each] for each in range(n)]) @ x)
    return x
@wrong("18.gather_parameters", "messages of ready-made collectives; there must be none")
def by_broadcasts(comm, shards, x):
    for rows in shards:
        whole = np.concatenate([comm.bcast(rows, root=root) for root in range(comm.size)])
        comm.compute(0.001)
        x = np.tanh(whole @ x)
    return x
