"""Wrong solutions of lesson 18, each with what the check must say."""

from __future__ import annotations

from typing import Any

import numpy as np


def whole_parameters(sizes: Any, n: Any) -> Any:
    return [[(number, 0, size) for number, size in enumerate(sizes) if number % n == rank] for rank in range(n)]


def each_parameter_cut(sizes: Any, n: Any) -> Any:
    found: list[Any] = [[] for _ in range(n)]
    for number, size in enumerate(sizes):
        for rank, chunk in enumerate(np.array_split(np.arange(size), n)):
            if len(chunk):
                found[rank].append((number, int(chunk[0]), int(chunk[-1]) + 1))
    return found


def the_last_gets_the_rest(sizes: Any, n: Any) -> Any:
    total, found = sum(sizes), []
    for rank in range(n):
        low = rank * (total // n)
        high = total if rank == n - 1 else low + total // n
        found.append(_between(sizes, low, high))
    return found


def rounds_up(sizes: Any, n: Any) -> Any:
    length = -(-sum(sizes) // n)
    return [_between(sizes, rank * length, (rank + 1) * length) for rank in range(n)]


def counts_from_the_array(sizes: Any, n: Any) -> Any:
    total, low, found = sum(sizes), 0, []
    for rank in range(n):
        high, start, parts = low + total // n + (rank < total % n), 0, []
        for number, size in enumerate(sizes):
            first, last = max(low, start), min(high, start + size)
            if first < last:
                parts.append((number, first, last))
            start += size
        found.append(parts)
        low = high
    return found


def empty_parts(sizes: Any, n: Any) -> Any:
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


def _between(sizes: Any, low: int, high: int) -> list[Any]:
    start, parts = 0, []
    for number, size in enumerate(sizes):
        first, last = max(low, start), min(high, start + size)
        if first < last:
            parts.append((number, first - start, last - start))
        start += size
    return parts


def whole_allreduce(comm: Any, grad: Any, shard: Any, lr: Any) -> Any:
    mean = comm.allreduce(grad) / comm.size
    return shard - lr * np.array_split(mean, comm.size)[comm.rank]


def chunk_of_lesson_03(comm: Any, grad: Any, shard: Any, lr: Any) -> Any:
    n, rank = comm.size, comm.rank
    chunks = np.array_split(grad.copy(), n)
    for step in range(n - 1):
        mine = (rank - step - 1) % n
        chunks[mine] = chunks[mine] + comm.sendrecv(
            chunks[(rank - step) % n], dest=(rank + 1) % n, source=(rank - 1) % n
        )
    return shard - lr * chunks[rank] / n


def sum_for_mean(comm: Any, grad: Any, shard: Any, lr: Any) -> Any:
    return shard - lr * comm.size * (shard - _right(comm, grad, shard, 1.0))


def own_gradient(comm: Any, grad: Any, shard: Any, lr: Any) -> Any:
    return shard - lr * np.array_split(grad, comm.size)[comm.rank]


def uphill(comm: Any, grad: Any, shard: Any, lr: Any) -> Any:
    return shard + lr * (shard - _right(comm, grad, shard, 1.0))


def changes_the_shard(comm: Any, grad: Any, shard: Any, lr: Any) -> Any:
    shard[...] = _right(comm, grad, shard, lr)
    return shard


def everything_to_its_owner_from_rank_0(comm: Any, grad: Any, shard: Any, lr: Any) -> Any:
    total = comm.reduce(grad)
    mine = comm.scatter(np.array_split(total, comm.size) if comm.rank == 0 else None)
    return shard - lr * mine / comm.size


def _right(comm: Any, grad: Any, shard: Any, lr: Any) -> Any:
    n, rank = comm.size, comm.rank
    chunks = np.array_split(grad.copy(), n)
    for step in range(n - 1):
        mine = (rank - step - 2) % n
        chunks[mine] = chunks[mine] + comm.sendrecv(
            chunks[(rank - step - 1) % n], dest=(rank + 1) % n, source=(rank - 1) % n
        )
    return shard - lr * chunks[rank] / n


def _gathered(comm: Any, rows: Any) -> Any:
    n, rank, parts = comm.size, comm.rank, {comm.rank: rows}
    for step in range(n - 1):
        parts[(rank - step - 1) % n] = comm.sendrecv(
            parts[(rank - step) % n], dest=(rank + 1) % n, source=(rank - 1) % n
        )
    return np.concatenate([parts[each] for each in range(n)])


def all_layers_first(comm: Any, shards: Any, x: Any) -> Any:
    layers = [_gathered(comm, rows) for rows in shards]
    for weights in layers:
        comm.compute(0.001)
        x = np.tanh(weights @ x)
    return x


def one_layer_ahead(comm: Any, shards: Any, x: Any) -> Any:
    weights = _gathered(comm, shards[0])
    for rows in [*shards[1:], None]:
        ahead = None if rows is None else _gathered(comm, rows)
        comm.compute(0.001)
        x = np.tanh(weights @ x)
        weights = ahead
    return x


def own_rows_only(comm: Any, shards: Any, x: Any) -> Any:
    for rows in shards:
        comm.compute(0.001)
        x = np.tanh(rows @ x) if rows.shape[1] == len(x) else x
    return x


def order_of_the_ring(comm: Any, shards: Any, x: Any) -> Any:
    n, rank = comm.size, comm.rank
    for rows in shards:
        parts = [rows]
        for _ in range(n - 1):
            parts.append(comm.sendrecv(parts[-1], dest=(rank + 1) % n, source=(rank - 1) % n))
        comm.compute(0.001)
        x = np.tanh(np.concatenate(parts) @ x)
    return x


def by_allreduce(comm: Any, shards: Any, x: Any) -> Any:
    for rows in shards:
        counts = comm.allgather(len(rows))
        whole = np.zeros((sum(counts), rows.shape[1]))
        start = sum(counts[: comm.rank])
        whole[start : start + len(rows)] = rows
        weights = comm.allreduce(whole)
        comm.compute(0.001)
        x = np.tanh(weights @ x)
    return x


def forgets_to_compute(comm: Any, shards: Any, x: Any) -> Any:
    for rows in shards:
        x = np.tanh(_gathered(comm, rows) @ x)
    return x


def by_a_tree(comm: Any, shards: Any, x: Any) -> Any:
    for rows in shards:
        weights = np.concatenate(comm.allgather(rows))
        comm.compute(0.001)
        x = np.tanh(weights @ x)
    return x


def gathers_the_results(comm: Any, shards: Any, x: Any) -> Any:
    for rows in shards:
        comm.compute(0.001)
        x = np.concatenate(comm.allgather(np.tanh(rows @ x)))
    return x


WRONG = {
    "18.owners": [
        (whole_parameters, "sizes [6, 2], 2 ranks: rank 0 owns [(0, 0, 6)]: 6 elements, expected 4"),
        (each_parameter_cut, "rank 0 owns [(0, 0, 2), (1, 0, 2)], expected elements (0, 0) to (0, 3)"),
        (the_last_gets_the_rest, "Totals that n does not divide: the first chunks get one element more: sizes [5], 2"),
        (rounds_up, "3 ranks: rank 1 owns [(2, 2, 6), (3, 0, 4)]: 8 elements, expected 7"),
        (counts_from_the_array, "rank 0 owns [(0, 0, 3), (1, 3, 5)], expected elements (0, 0) to (1, 1)"),
        (empty_parts, "rank 0 owns [(0, 0, 4), (1, 0, 0)]: one of these parts is empty"),
    ],
    "18.reduce_scatter_step": [
        (whole_allreduce, "1,600,000 bytes per rank, at most 612,000 pass; the best possible is 600,000"),
        (chunk_of_lesson_03, "n = 2, 1 weights: rank 0, index 0"),
        (sum_for_mean, "n = 2, 1 weights: rank 0, index 0"),
        (own_gradient, "n = 2, 1 weights: rank 0, index 0"),
        (uphill, "n = 1, 1 weights: rank 0, index 0"),
        (changes_the_shard, "rank 0 changes its own shard, which belongs to the caller"),
        (everything_to_its_owner_from_rank_0, "800,000 bytes per rank, at most 612,000 pass"),
    ],
    "18.gather_parameters": [
        (all_layers_first, "3 layers held at once, at most 1 pass; the best possible is 1"),
        (one_layer_ahead, "2 layers held at once, at most 1 pass; the best possible is 1"),
        (own_rows_only, "n = 2, widths 4, 4: rank 0: yours has shape (2,), expected (4,)"),
        (order_of_the_ring, "n = 2, widths 4, 4: rank 1, index 0"),
        (by_allreduce, "bytes from the busiest rank, at most"),
        (by_a_tree, "196,608 bytes from the busiest rank, at most"),
        (forgets_to_compute, "3 calls of comm.compute too many or too few; there must be none"),
        (gathers_the_results, "n = 2, widths 4, 4: rank 0, index"),
    ],
}
