"""Lesson 28, what a step costs: utilization, the roofline, what stragglers cost, and the bill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from workbench.course.judging.task import Bound, Case, CommTask, PlainTask, as_solution
from workbench.course.simulator import Run

_SIZES = (1, 2, 3, 4)


def mfu(layers: Any, width: Any, tokens: Any, vocabulary: Any, per_second: Any, peak: Any) -> Any:
    """Return the model FLOP utilization of a training: a part of 1.

    A token costs 6 FLOP for each number in the matrices (2 forward, 4 backward): 12 width² in
    each layer, and width * vocabulary in the head; the embedding is looked up. Attention's
    two products cost 12 * width * tokens more in each layer. per_second: trained tokens.
    tokens: in a text. peak: FLOP per second of the machine.
    """
    ### BEGIN SOLUTION
    matrices = 12 * layers * width**2 + width * vocabulary
    return (6 * matrices + 12 * layers * width * tokens) * per_second / peak
    ### END SOLUTION


_MODELS = [(1, 8, 4, 16, 100.0, 1e6), (4, 128, 128, 256, 15_000.0, 1e11), (32, 4096, 4096, 32_000, 9000.0, 989e12)]


def product_s(rows: Any, inner: Any, columns: Any, peak: Any, bandwidth: Any) -> Any:
    """Return (intensity, seconds) of a product of matrices, rows × inner times inner × columns.

    Numbers have 2 bytes. Each matrix passes the memory once: two are read, one is written.
    intensity: FLOP per byte; a product takes 2 FLOP for each of rows * inner * columns.
    seconds: what takes longer, computing at peak FLOP/s or moving at bandwidth bytes/s.
    """
    ### BEGIN SOLUTION
    flop = 2 * rows * inner * columns
    nbytes = 2 * (rows * inner + inner * columns + rows * columns)
    return flop / nbytes, max(flop / peak, nbytes / bandwidth)
    ### END SOLUTION


_PRODUCTS = [
    (64, 64, 64, 1e12, 1e10),
    (1, 4096, 4096, 989e12, 3.35e12),
    (8192, 4096, 4096, 989e12, 3.35e12),
    (3, 5, 7, 1e3, 1e9),
]


def lost(comm: Any, seconds: Any) -> Any:
    """Return (share, rank): which part of all ranks' time is waiting, and who is waited for most often.

    seconds: this rank's computing time in each step. A step ends when the slowest rank is
    done; the others wait. share: the waiting of all ranks in all steps, divided by the ranks
    times the duration of all steps. rank: who was the slowest in most steps; of several, also
    in one step, the lowest number. Both on every rank.
    """
    ### BEGIN SOLUTION
    every = np.array(comm.allgather(seconds))
    longest = every.max(axis=0)
    share = float((longest - every).sum() / (comm.size * longest.sum()))
    return share, int(np.bincount(every.argmax(axis=0), minlength=comm.size).argmax())
    ### END SOLUTION


def _clocks(n: int, steps: int, slow: int) -> Case:
    random = np.random.default_rng([n, steps, slow])
    inputs = [(random.integers(10, 15, steps) / 10 + (rank == slow % n) * 0.3,) for rank in range(n)]
    inputs[(slow + 1) % n][0][: steps // 2 : 2] += 5.0  # the slowest in all, but not in most steps
    return Case(n, f"{steps} steps", inputs)


def _waited(case: Case) -> list[Any]:
    every = np.array([seconds for (seconds,) in case.inputs])
    longest = every.max(axis=0)
    share = 1 - float(every.sum() / (case.n * longest.sum()))
    return [(share, int(np.bincount(every.argmax(axis=0), minlength=case.n).argmax()))] * case.n


def _few(case: Case, run: Run) -> Sequence[Bound]:
    best = (case.n - 1) * case.inputs[0][0].nbytes
    return [Bound.busiest(run, best, 5 * case.n * case.inputs[0][0].nbytes + 512 * case.n, "A number for each step")]


def bill(gpus: Any, hours: Any, watts: Any, busy: Any, idle: Any, overhead: Any, price: Any) -> Any:
    """Return (kWh, euro) of a run.

    Each GPU takes `watts` for the part `busy` of the hours of the run, and `idle` watts for the rest.
    overhead: what the building takes for one watt of a GPU: 1.3 is 30 % for hosts and cooling.
    price: euro for a kWh.
    """
    ### BEGIN SOLUTION
    mean = busy * watts + (1 - busy) * idle
    kwh = gpus * hours * mean * overhead / 1000
    return kwh, kwh * price
    ### END SOLUTION


_RUNS = [(1, 1, 1000, 1.0, 0, 1.0, 0.3), (8, 24, 700, 0.5, 100, 1.0, 0.25), (64, 100, 700, 0.9, 90, 1.3, 0.2)]


TASKS = [
    PlainTask(
        "28.mfu",
        "which part of the peak a training uses",
        mfu,
        properties=as_solution(mfu, ("Useful FLOP per second, as a part of the peak.", _MODELS)),
        probes=lambda: _MODELS,
    ),
    PlainTask(
        "28.product_s",
        "computing, or moving? A product on the roofline",
        product_s,
        properties=as_solution(product_s, ("Intensity and seconds, below the roof and below its slope.", _PRODUCTS)),
        probes=lambda: _PRODUCTS,
    ),
    CommTask(
        "28.lost",
        "what the slowest rank costs",
        lost,
        cases=lambda: [_clocks(n, steps, slow) for steps, slow in ((1, 0), (2, 0), (5, 1), (20, 2)) for n in _SIZES],
        expected=_waited,
        names=("the share", "the rank"),
        bounds=_few,
        scored=_clocks(4, 100, 2),
        shown=_clocks(4, 100, 2),
    ),
    PlainTask(
        "28.bill",
        "joules and euro of a run",
        bill,
        properties=as_solution(bill, ("Energy and its price, also of GPUs that wait.", _RUNS)),
        probes=lambda: _RUNS,
    ),
]
