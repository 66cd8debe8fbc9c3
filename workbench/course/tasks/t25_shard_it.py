"""Lesson 25, fully_shard by hand: rows of a parameter, a layer's step, prefetch, and a checkpoint for other ranks."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from workbench.course.judging.task import Bound, Case, CommTask, PlainTask
from workbench.course.simulator import Run

Array = np.ndarray[Any, Any]
_SIZES = (1, 2, 3, 4)


def shards(rows: Any, n: Any) -> Any:
    """Return a list of (begin, end), by rank: which rows of a parameter it has.

    As a DTensor with Shard(0), and torch.chunk: all ranks have as many rows as the first
    one, rounded up, until there are none left. So the last ranks may have fewer, or none:
    then begin and end are both `rows`.
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


def even(function: Callable[..., Any]) -> str:
    """Rows that can be divided."""
    return _cut(function, [(rows, n) for rows, n in _ROWS if rows % n == 0])


def uneven(function: Callable[..., Any]) -> str:
    """Rows that cannot: the last ranks have fewer, or none."""
    return _cut(function, _ROWS)


def layer_step(comm: Any, mine: Any, x: Any, dy: Any) -> Any:
    """Return (y, dx, gradient) of the layer y = x @ W, of whose W this rank has some rows.

    mine: this rank's rows of W; all ranks have as many. x, dy: this rank's own part of the
    batch, and the gradient of its loss by y. W is gathered for forward, and once more for
    backward, for nobody keeps it in between. gradient: for this rank's rows, the mean of
    all ranks' gradients. comm.allgather(array) gives the list of all ranks' arrays;
    comm.alltoall(list), of one array for each rank, those that the ranks have for this one.
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


def _timed(function: Callable[..., Any], cases: Sequence[tuple[list[float], list[float], int]]) -> str:
    for gathers, computes, ahead in cases:
        mine, wanted = function(list(gathers), list(computes), ahead), forward_s(gathers, computes, ahead)
        if not isinstance(mine, (int, float)) or not abs(mine - wanted) <= 1e-9:  # also NaN
            about = f"gathers {gathers}, computes {computes}, ahead {ahead}"
            return f"{about}: your result is {mine!r}, expected {wanted:g}"
    return ""


def _drawn(layers: int, ahead: int) -> tuple[list[float], list[float], int]:
    random = np.random.default_rng([layers, ahead])
    return (
        random.integers(1, 9, layers).astype(float).tolist(),
        random.integers(1, 9, layers).astype(float).tolist(),
        ahead,
    )


def no_prefetch(function: Callable[..., Any]) -> str:
    """Without prefetch all seconds add up, for a layer is gathered when the one before it is over."""
    return _timed(function, [([2.0], [3.0], 0), ([1.0, 1.0], [2.0, 2.0], 0), _drawn(5, 0)])


def one_ahead(function: Callable[..., Any]) -> str:
    """One layer ahead: the next one is gathered while this one is computed."""
    return _timed(
        function, [([1.0, 1.0], [2.0, 2.0], 1), ([2.0, 2.0, 2.0], [1.0, 1.0, 1.0], 1), _drawn(5, 1), _drawn(9, 1)]
    )


def any_ahead(function: Callable[..., Any]) -> str:
    """Any number of layers ahead."""
    return _timed(function, [_drawn(layers, ahead) for layers in (1, 4, 9) for ahead in (2, 3, 20)])


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


def _loaded(function: Callable[..., Any], cases: Sequence[tuple[int, int, int]]) -> str:
    for rows, old, new in cases:
        given = rows, shards(rows, old), shards(rows, new)
        mine, wanted = function(*given), pieces(*given)
        about = f"{rows} rows, saved by {old}, loaded by {new}"
        if not isinstance(mine, (list, tuple)) or len(mine) != new:
            return f"{about}: a list for each rank that loads is asked for, not {mine!r}"
        for rank, (found, want) in enumerate(zip(mine, wanted, strict=True)):
            if [tuple(each) for each in found] != want:
                return f"{about}: rank {rank} reads {list(found)!r}, expected {want}"
    return ""


_CHANGES = [(8, 2, 2), (8, 4, 2), (8, 2, 4), (9, 4, 3), (10, 3, 4), (5, 4, 2), (2, 4, 3), (100, 7, 5)]


def as_before(function: Callable[..., Any]) -> str:
    """As many ranks as before: each reads its own file."""
    return _loaded(function, [(rows, n, n) for rows, n in ((4, 1), (8, 2), (9, 4))])


def fewer_and_more(function: Callable[..., Any]) -> str:
    """Half as many ranks, and twice as many."""
    return _loaded(function, [(8, 4, 2), (8, 2, 4)])


def any_change(function: Callable[..., Any]) -> str:
    """Any numbers, also where a rank has no rows."""
    return _loaded(function, _CHANGES)


TASKS = [
    PlainTask(
        "25.shards",
        "which rows of a parameter a rank has",
        shards,
        (
            "How many rows has the first rank? All others have as many, until none are left.",
            "each = -(-rows // n) rounds up. Rank r begins at r * each, but never behind the last row.",
            "each = -(-rows // n); return [(min(rank * each, rows), min((rank + 1) * each, rows)) for rank in "
            "range(n)]",
        ),
        properties=[even, uneven],
        probes=lambda: _ROWS,
    ),
    CommTask(
        "25.layer_step",
        "a sharded layer, forward and backward",
        layer_step,
        (
            "y needs the whole W. What does dx need? And which rows of the gradient does this rank keep?",
            "W is np.concatenate(comm.allgather(mine)). Every rank has a gradient of all of W: cut it in n parts, "
            "and send each part to the rank whose rows these are.",
            "w = np.concatenate(comm.allgather(mine)); y = x @ w; w = np.concatenate(comm.allgather(mine)); dx = dy "
            "@ w.T; return y, dx, sum(comm.alltoall(np.split(x.T @ dy, comm.size))) / comm.size",
        ),
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
        (
            "When may layer i be gathered? When is it computed? Both wait for two things.",
            "gathered = max(gathered, when layer i - 1 - ahead was computed) + gathers[i]; then the computation "
            "begins at max(gathered, when layer i - 1 was computed).",
            "gathered, computed = 0.0, []; for i: free = computed[i - 1 - ahead] if i - 1 - ahead >= 0 else 0.0; "
            "gathered = max(gathered, free) + gathers[i]; computed.append(max(gathered, computed[-1] if computed "
            "else 0.0) + computes[i]); return computed[-1]",
        ),
        properties=[no_prefetch, one_ahead, any_ahead],
        probes=lambda: [_drawn(layers, ahead) for layers in (1, 3, 6) for ahead in (0, 1, 2, 4)],
        points=2,
    ),
    PlainTask(
        "25.pieces",
        "a checkpoint for another number of ranks",
        pieces,
        (
            "Which rows have a part that was saved and a part that is loaded in common?",
            "From max(begin, first) to min(end, last), if the first is smaller.",
            "found = []; for first, last in loaded: cuts = [(rank, max(first, begin), min(last, end)) for rank, "
            "(begin, end) in enumerate(saved)]; found.append([cut for cut in cuts if cut[1] < cut[2]]); return found",
        ),
        properties=[as_before, fewer_and_more, any_change],
        probes=lambda: [(rows, shards(rows, old), shards(rows, new)) for rows, old, new in _CHANGES],
    ),
]
