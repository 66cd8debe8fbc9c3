"""Right answers of lesson 25 that are unlike the official ones."""

from __future__ import annotations

import numpy as np
import torch


def shards_by_torch(rows, n):  # What torch itself does.
    ends = np.cumsum([len(part) for part in torch.arange(rows).chunk(n)]).tolist() if rows else []
    ends = [0, *ends, *[rows] * (n - len(ends))]
    return [(ends[i], ends[i + 1]) for i in range(n)]
def shards_one_by_one(rows, n):  # Each takes what it may of what is left.
    each, begin, found = (rows + n - 1) // n, 0, []
    for _ in range(n):
        end = begin + min(each, rows - begin)
        found.append((begin, end))
        begin = end
    return found
def layer_with_one_gather(comm, mine, x, dy):  # Keeps W, as reshard_after_forward=False does.
    w = np.concatenate(comm.allgather(mine))
    parts = comm.alltoall([part / comm.size for part in np.split(x.T @ dy, comm.size)])
    return x @ w, dy @ w.T, np.sum(parts, axis=0)
def layer_by_rows(comm, mine, x, dy):  # Part after part of W, in the order of the ranks.
    y, dx, rows = 0, [], len(mine)
    for rank, part in enumerate(comm.allgather(mine)):
        y = y + x[:, rank * rows : (rank + 1) * rows] @ part
        dx.append(dy @ part.T)
    gradient = x.T @ dy
    came = comm.alltoall([gradient[rank * rows : (rank + 1) * rows] for rank in range(comm.size)])
    return y, np.concatenate(dx, axis=1), sum(came) / comm.size
def forward_by_arrays(gathers, computes, ahead):  # With a 0 in front, so that nothing has to be asked.
    over = [0.0] * (ahead + 1)
    there = 0.0
    for gather, compute in zip(gathers, computes, strict=True):
        there = max(there, over[-1 - ahead]) + gather
        over.append(max(there, over[-1]) + compute)
    return over[-1]
def forward_recursively(gathers, computes, ahead):  # Two functions that ask each other.
    def there(i): return max(there(i - 1), over(i - 1 - ahead)) + gathers[i] if i >= 0 else 0.0
    def over(i): return max(there(i), over(i - 1)) + computes[i] if i >= 0 else 0.0
    return over(len(gathers) - 1)
def pieces_by_sets(rows, saved, loaded):  # Row for row.
    found = []
    for first, last in loaded:
        mine = []
        for rank, (begin, end) in enumerate(saved):
            both = sorted(set(range(first, last)) & set(range(begin, end)))
            if both:
                mine.append((rank, both[0], both[-1] + 1))
        found.append(mine)
    return found
def pieces_by_owner(rows, saved, loaded):  # Whose is a row?
    owner = [rank for rank, (begin, end) in enumerate(saved) for _ in range(begin, end)]
    found = []
    for first, last in loaded:
        mine, at = [], first
        while at < last:
            end = min(last, saved[owner[at]][1])
            mine.append([owner[at], at, end])
            at = end
        found.append(mine)
    return found


RIGHT = {
    "25.shards": [shards_by_torch, shards_one_by_one],
    "25.layer_step": [layer_with_one_gather, layer_by_rows],
    "25.forward_s": [forward_by_arrays, forward_recursively],
    "25.pieces": [pieces_by_sets, pieces_by_owner],
}
