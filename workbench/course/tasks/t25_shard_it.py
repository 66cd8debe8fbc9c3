"""Lesson 25, fully_shard by hand: rows of a parameter, a layer's step, prefetch, and a checkpoint for other ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from workbench.course.judging.task import Bound, Case, CommTask, PlainTask, as_solution, stated
from workbench.course.simulator import Run

Array = np.ndarray[Any, Any]
_SIZES = (1, 2, 3, 4)


def shards(rows: Any, n: Any) -> Any:
    """Return a list of (begin, end), by rank: which rows of a parameter it has.

    As a DTensor with Shard(0), and torch.chunk: each rank has rows / n of them, rounded up,
    until there are none left. So the last ranks may have fewer, or none: then begin and end
    are both `rows`.
    """
    ### BEGIN SOLUTION
    each = -(-rows // n)
    return [(min(rank * each, rows), min((rank + 1) * each, rows)) for rank in range(n)]
    ### END SOLUTION


def _cut(function: Callable[..., Any], cases: Sequence[tuple[int, int]]) -> str:
    for rows, n in cases:
        mine, wanted = function(rows, n), shards(rows, n)
        found = [tuple(int(i) for i in pair) for pair in mine] if isinstance(mine, (list, tuple)) else mine
        if found != wanted:
            lost = sum(end - begin for begin, end in found) - rows if isinstance(found, list) else 0
            about = f"{rows} rows, {n} ranks: your result is {found!r}, expected {wanted}"
            return about + (f". Your parts have {rows + lost} rows together" if lost else "")
    return ""


_ROWS = [(8, 1), (8, 2), (8, 4), (7, 2), (10, 4), (9, 4), (5, 4), (2, 4), (1, 3), (100, 7)]


def layer_step(comm: Any, mine: Any, x: Any, dy: Any) -> Any:
    """Return (y, dx, gradient) of the layer y = x @ W, of whose W this rank has some rows.

    mine: this rank's rows of W; all ranks have as many. x, dy: this rank's own part of the
    batch, and the gradient of its loss by y. fully_shard gathers W once more for backward;
    here you may keep it. gradient: for this rank's rows, the mean of all ranks' gradients.
    comm.allgather(array) gives the list of all ranks' arrays; comm.alltoall(list), of one
    array for each rank, those that the ranks have for this one.
    """
    ### BEGIN SOLUTION
    w = np.concatenate(comm.allgather(mine))
    y = x @ w
    del w
    w = np.concatenate(comm.allgather(mine))
    dx = dy @ w.T
    parts = np.split(x.T @ dy, comm.size)
    return y, dx, sum(comm.alltoall(parts)) / comm.size
    ### END SOLUTION


def _layer(n: int, rows: int, batch: int) -> Case:
    random = np.random.default_rng([n, rows, batch])
    w = random.normal(size=(n * rows, 3))
    inputs = [
        (part.copy(), random.normal(size=(batch, n * rows)), random.normal(size=(batch, 3))) for part in np.split(w, n)
    ]
    return Case(n, f"{n * rows} rows", inputs)


def _stepped(case: Case) -> list[Any]:
    w = np.concatenate([mine for mine, _, _ in case.inputs])
    mean = sum(x.T @ dy for _, x, dy in case.inputs) / case.n
    return [(x @ w, dy @ w.T, part) for (_, x, dy), part in zip(case.inputs, np.split(mean, case.n), strict=True)]


def _three_times(case: Case, run: Run) -> Sequence[Bound]:
    mine, n = case.inputs[0][0].nbytes, case.n
    by_a_tree = 2 * math.ceil(math.log2(n)) * n + n  # the simulator's allgather sends the whole down a tree
    cause = "Two times the rows of W, and one time those of its gradient"
    return [Bound.busiest(run, 3 * (n - 1) * mine, 1.1 * by_a_tree * mine + 64 * n, cause)]


def forward_s(gathers: Any, computes: Any, ahead: Any) -> Any:
    """Return the seconds that the forward pass of a sharded model takes.

    gathers, computes: for each layer, the seconds to gather its weights, and to use them.
    One layer is gathered at a time, in order; one is computed at a time, in order, when its
    weights are there. Layer i may be gathered as soon as layer i - 1 - ahead has been
    computed: so at most 1 + ahead layers are there at once. ahead=0: no prefetch.
    """
    ### BEGIN SOLUTION
    gathered = 0.0
    computed: list[float] = []
    for i, (gather, compute) in enumerate(zip(gathers, computes, strict=True)):
        free = computed[i - 1 - ahead] if i - 1 - ahead >= 0 else 0.0
        gathered = max(gathered, free) + gather
        computed.append(max(gathered, computed[-1] if computed else 0.0) + compute)
    return computed[-1]
    ### END SOLUTION


def _drawn(layers: int, ahead: int) -> tuple[list[float], list[float], int]:
    random = np.random.default_rng([layers, ahead])
    return (
        random.integers(1, 9, layers).astype(float).tolist(),
        random.integers(1, 9, layers).astype(float).tolist(),
        ahead,
    )


def pieces(rows: Any, saved: Any, loaded: Any) -> Any:
    """Return, for each rank that loads, a list of (rank that saved, begin, end).

    A tensor of `rows` rows was saved by `saved` ranks, each its own rows; `loaded` ranks
    load it, each the rows that it needs. Both are lists of (begin, end) by rank.
    begin, end: which rows of the whole tensor. Pieces in order; none of them empty.
    """
    ### BEGIN SOLUTION
    found = []
    for first, last in loaded:
        cuts = [(rank, max(first, begin), min(last, end)) for rank, (begin, end) in enumerate(saved)]
        found.append([cut for cut in cuts if cut[1] < cut[2]])
    return found
    ### END SOLUTION


def _change(rows: int, old: int, new: int) -> tuple[Any, ...]:
    return rows, shards(rows, old), shards(rows, new)


_CHANGES = [_change(*each) for each in ((8, 2, 2), (8, 4, 2), (8, 2, 4), (9, 4, 3), (5, 4, 2), (2, 4, 3), (100, 7, 5))]


TASKS = [
    PlainTask(
        "25.shards",
        "which rows of a parameter a rank has",
        shards,
        properties=stated(
            ("Rows that can be divided.", lambda f: _cut(f, [(rows, n) for rows, n in _ROWS if rows % n == 0])),
            ("Rows that cannot: the last ranks have fewer, or none.", lambda f: _cut(f, _ROWS)),
        ),
        probes=lambda: _ROWS,
    ),
    CommTask(
        "25.layer_step",
        "a sharded layer, forward and backward",
        layer_step,
        cases=lambda: [_layer(n, rows, batch) for rows, batch in ((1, 2), (3, 5)) for n in _SIZES],
        expected=_stepped,
        names=("y", "dx", "the gradient of this rank's rows"),
        bounds=_three_times,
        scored=_layer(4, 256, 2),
        shown=_layer(4, 256, 2),
        points=2,
    ),
    PlainTask(
        "25.forward_s",
        "the seconds of a forward pass with prefetch",
        forward_s,
        properties=as_solution(
            forward_s,
            (
                "Without prefetch all seconds add up, for a layer is gathered when the one before it is over.",
                [([2.0], [3.0], 0), ([1.0, 1.0], [2.0, 2.0], 0), _drawn(5, 0)],
            ),
            (
                "One layer ahead: the next one is gathered while this one is computed.",
                [([1.0, 1.0], [2.0, 2.0], 1), ([2.0, 2.0, 2.0], [1.0, 1.0, 1.0], 1), _drawn(5, 1), _drawn(9, 1)],
            ),
            (
                "Any number of layers ahead.",
                [_drawn(layers, ahead) for layers in (1, 4, 9) for ahead in (2, 3, 20)],
            ),
        ),
        probes=lambda: [_drawn(layers, ahead) for layers in (1, 3, 6) for ahead in (0, 1, 2, 4)],
        points=2,
    ),
    PlainTask(
        "25.pieces",
        "a checkpoint for another number of ranks",
        pieces,
        properties=as_solution(
            pieces,
            (
                "As many ranks as before: each reads its own file.",
                [_change(4, 1, 1), _change(8, 2, 2), _change(9, 4, 4)],
            ),
            ("Half as many ranks, and twice as many.", [_change(8, 4, 2), _change(8, 2, 4)]),
            ("Any numbers, also where a rank has no rows.", _CHANGES),
        ),
        probes=lambda: _CHANGES,
    ),
]
