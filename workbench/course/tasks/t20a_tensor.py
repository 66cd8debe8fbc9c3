"""Lesson 20, first half: a layer cut by rows, and two layers of which only the ends communicate."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.course.judging.task import Bound, Case, CommTask
from workbench.course.simulator import Run

Array = np.ndarray[Any, Any]
_SIZES = (1, 2, 3, 4)


def row_split(comm: Any, x: Any, w: Any, b: Any) -> Any:
    """Return the layer's whole output, x @ w + b of the uncut layer, on every rank.

    x: this rank's columns of the input. w: the rows of the weight that belong to them. b: the whole bias, everywhere.
    Only parts of the output are sent.
    """
    ### BEGIN SOLUTION
    return comm.allreduce(x @ w) + b
    ### END SOLUTION


def _numbers(*key: int) -> np.random.Generator:
    return np.random.default_rng(key)


def _rows(n: int, width: int) -> Case:
    random = _numbers(n, width)
    x, w, b = random.normal(size=(3, width)), random.normal(size=(width, 4)), random.normal(size=4)
    parts = zip(np.array_split(x, n, axis=1), np.array_split(w, n), strict=True)
    inputs = [(np.ascontiguousarray(mine), rows.copy(), b.copy()) for mine, rows in parts]
    return Case(n, f"{width} inputs", inputs)


def _uncut(case: Case) -> list[Any]:
    x, w = (np.concatenate([one[i] for one in case.inputs], axis=1 - i) for i in (0, 1))
    return [x @ w + case.inputs[0][2]] * case.n


def _one_sum(case: Case, run: Run) -> Sequence[Bound]:
    """A sum of outputs; to gather inputs and weights is no cut."""
    output = case.inputs[0][0].shape[0] * case.inputs[0][2].nbytes
    return [
        Bound.busiest(
            run, 2 * (case.n - 1) / case.n * output, 2 * case.n * output, "Only the outputs have to be added up"
        )
    ]


def two_layers(comm: Any, x: Any, w1: Any, w2: Any, dy: Any) -> Any:
    """Return y, dx, dw1, dw2 for y = max(x @ w1, 0) @ w2, with w1 cut by columns and w2 by rows.

    x, dy: the whole input and the loss's gradient by y, the same on every rank. w1, w2: this rank's columns and rows.
    y and dx are to be whole, on every rank: only parts of these two are sent. dw1 and dw2 are the gradients of this
    rank's own w1 and w2.
    """
    ### BEGIN SOLUTION
    h = np.maximum(x @ w1, 0)
    y = comm.allreduce(h @ w2)
    dh = (dy @ w2.T) * (h > 0)
    dx = comm.allreduce(dh @ w1.T)
    return y, dx, x.T @ dh, h.T @ dy
    ### END SOLUTION


def _layers(n: int, hidden: int, rows: int = 3) -> Case:
    random = _numbers(n, hidden, rows)
    x, dy = random.normal(size=(rows, 5)), random.normal(size=(rows, 4))
    w1, w2 = random.normal(size=(5, hidden)), random.normal(size=(hidden, 4))
    parts = zip(np.array_split(w1, n, axis=1), np.array_split(w2, n), strict=True)
    inputs = [(x.copy(), np.ascontiguousarray(columns), mine.copy(), dy.copy()) for columns, mine in parts]
    return Case(n, f"{hidden} hidden units", inputs)


def _serial(case: Case) -> list[Any]:
    x, _, _, dy = case.inputs[0]
    w1, w2 = np.concatenate([one[1] for one in case.inputs], axis=1), np.concatenate([one[2] for one in case.inputs])
    h = np.maximum(x @ w1, 0)
    dh = (dy @ w2.T) * (h > 0)
    dw1, dw2 = np.array_split(x.T @ dh, case.n, axis=1), np.array_split(h.T @ dy, case.n)
    return [(h @ w2, dh @ w1.T, dw1[rank], dw2[rank]) for rank in range(case.n)]


def _two_sums(case: Case, run: Run) -> Sequence[Bound]:
    """Of y and of dx. Hidden units stay where they are."""
    x, _, _, dy = case.inputs[0]
    ends = x.nbytes + dy.nbytes
    return [
        Bound.busiest(run, 2 * (case.n - 1) / case.n * ends, 2 * case.n * ends, "Only y and dx have to be added up")
    ]


TASKS = [
    CommTask(
        "20.row_split",
        "a layer cut by rows",
        row_split,
        cases=lambda: [_rows(n, width) for width in (4, 7) for n in _SIZES],
        expected=_uncut,
        bounds=_one_sum,
        scored=_rows(4, 1024),
        shown=_rows(4, 1024),
    ),
    CommTask(
        "20.two_layers",
        "two layers forward and backward, with two sums in all",
        two_layers,
        cases=lambda: [_layers(n, hidden) for hidden in (4, 7) for n in _SIZES],
        expected=_serial,
        names=("y", "dx", "dw1", "dw2"),
        bounds=_two_sums,
        scored=_layers(4, 4096, 16),
        shown=_layers(4, 64, 16),
        points=2,
    ),
]
