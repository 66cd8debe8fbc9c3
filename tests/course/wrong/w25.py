"""Wrong solutions of lesson 25, each with what the check must say."""

from __future__ import annotations

import numpy as np
from wrong_answers import Answers

wrong = Answers()


@wrong("25.shards", "the rows were divided as evenly as possible")
def as_even_as_possible(rows, n):
    ends = np.cumsum([0, *(len(part) for part in np.array_split(np.arange(rows), n))])
    return list(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True))
@wrong("25.shards", "the number of rows was rounded down")
def rounds_down(rows, n): return [(r * (rows // n), min(rows, (r + 1) * (rows // n))) for r in range(n)]
@wrong("25.shards", "the last parts end behind the last row")
def behind_the_end(rows, n):
    each = (rows + n - 1) // n
    return [(min(i, rows), i + each) for i in range(0, n * each, each)]
@wrong("25.layer_step", "the gradient is this rank's own")
def own_gradient(comm, mine, x, dy):
    w = np.concatenate(comm.allgather(mine))
    return x @ w, dy @ w.T, np.split(x.T @ dy, comm.size)[comm.rank]
@wrong("25.layer_step", "the gradients were added up, and not divided")
def sums(comm, mine, x, dy):
    w = np.concatenate(comm.allgather(mine))
    return x @ w, dy @ w.T, sum(comm.alltoall(np.split(x.T @ dy, comm.size)))
@wrong("25.layer_step", "bytes from the busiest rank")
def gathers_gradients(comm, mine, x, dy):
    w = np.concatenate(comm.allgather(mine))
    mean = np.mean(comm.allgather(x.T @ dy), axis=0)
    return x @ w, dy @ w.T, np.split(mean, comm.size)[comm.rank]
@wrong("25.forward_s", "nothing holds the gathering back")
def all_at_once(gathers, computes, ahead):
    there = over = 0.0
    for gather, compute in zip(gathers, computes, strict=True):
        there += gather
        over = max(over, there) + compute
    return over
@wrong("25.forward_s", "layers are gathered one less ahead than may be there")
def one_less(gathers, computes, ahead):
    there, over = 0.0, []
    for i in range(len(gathers)):
        behind = i - ahead
        there = max(there, over[behind] if 0 <= behind < i else 0.0) + gathers[i]
        over.append(max(there, over[-1] if over else 0.0) + computes[i])
    return over[-1]
@wrong("25.forward_s", "all but the first gathering was hidden")
def hides_all_but_the_first(gathers, computes, ahead): return gathers[0] + sum(computes)
@wrong("25.pieces", "begin and end count from the first row of the file")
def from_the_file(rows, saved, loaded):
    return [
        [(r, max(first, b) - b, min(last, e) - b) for r, (b, e) in enumerate(saved) if max(first, b) < min(last, e)]
        for first, last in loaded
    ]
@wrong("25.pieces", "a rank reads whole files")
def whole_files(rows, saved, loaded):
    return [
        [(r, b, e) for r, (b, e) in enumerate(saved) if max(first, b) < min(last, e)] for first, last in loaded
    ]
@wrong("25.pieces", "empty pieces were returned")
def also_empty(rows, saved, loaded):
    found = [[(r, max(f, b), min(g, e)) for r, (b, e) in enumerate(saved)] for f, g in loaded]
    return [[piece for piece in pieces if piece[1] <= piece[2]] for pieces in found]
