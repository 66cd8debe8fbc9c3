"""Lesson 14, every framework: the six steps for a framework without support, with two verbs on plain arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np

from workbench import data
from workbench.course.judging.compare import compared, described, difference
from workbench.course.judging.rank_threads import on_ranks
from workbench.course.judging.task import PlainTask
from workbench.errors import NotInitializedError

_LR = 0.5


def six_steps(hvd: Any, gradient: Any, weights: Any, x: Any, y: Any, batch: Any, lr: Any) -> Any:
    """Train for one epoch on all ranks together; return (number of my GPU, weights).

    gradient(weights, x, y): a list of arrays, the gradient of the mean loss over the
    samples that it is given.
    weights: a list of arrays, different ones on each rank; all start with rank 0's.
    x, y: all samples, on every rank.
    batch: of all ranks together; a multiple of their number, and len(x) is one of batch.
    Step k takes the samples k * batch to (k + 1) * batch, each rank its share of them.
    """
    ### BEGIN SOLUTION
    hvd.init()
    local_batch = batch // hvd.size()
    gpu = hvd.local_rank()
    weights = [hvd.broadcast(w, root_rank=0, name=f"start {i}") for i, w in enumerate(weights)]
    for start in range(0, len(x), batch):
        first = start + hvd.rank() * local_batch
        mine = slice(first, first + local_batch)
        found = [hvd.allreduce(g, name=f"gradient {i}") for i, g in enumerate(gradient(weights, x[mine], y[mine]))]
        weights = [w - lr * g for w, g in zip(weights, found, strict=True)]
    return gpu, weights
    ### END SOLUTION


# --- what is watched --------------------------------------------------------------------------------------


@cache
def _digits(count: int) -> tuple[Any, Any]:
    digits = data.digits()
    return digits.train_x[:count].reshape(count, -1).astype(float), digits.train_y[:count]


def _gradient(weights: Any, x: Any, y: Any) -> Any:
    """Of softmax regression."""
    w, b = weights
    scores = np.exp(x @ w + b)
    off = (scores / scores.sum(axis=1, keepdims=True) - np.eye(10)[y]) / len(y)
    return [x.T @ off, off.sum(axis=0)]


def _start(rank: int) -> list[Any]:
    random = np.random.default_rng(rank)
    return [random.normal(size=(64, 10)) / 8, random.normal(size=10) / 8]


class _OwnMachine:
    """The workbench as a script finds it where each rank has a machine to itself: nothing works before init()."""

    def __init__(self, hvd: Any) -> None:
        self._hvd, self._open = hvd, False

    def init(self) -> None:
        self._open = True

    def __getattr__(self, name: str) -> Any:
        if not self._open:
            raise NotInitializedError(f"hvd.{name}() before hvd.init().")
        return (lambda: 0) if name == "local_rank" else getattr(self._hvd, name)


@dataclass
class _Seen:
    """What one rank did: the weights and samples of each call of ``gradient``, and what was returned."""

    calls: list[tuple[Any, Any]] = field(default_factory=list)
    returned: Any = None

    def gradient(self, weights: Any, x: Any, y: Any) -> Any:
        self.calls.append(([np.array(each) for each in weights], np.array(x)))
        return _gradient(weights, x, y)


class _Watch:
    """Runs the learner's function on 1, 2 and 3 ranks, once for all properties.

    Args:
        sizes: numbers of ranks.
        batch, steps: of the epoch.
    """

    def __init__(self, sizes: Sequence[int] = (1, 2, 3), batch: int = 24, steps: int = 4) -> None:
        self.sizes, self.batch, self.steps = sizes, batch, steps
        self.found: list[list[_Seen]] = []

    def runs(self, function: Callable[..., Any]) -> str:
        """1: it runs, on one, two and three ranks."""
        self.found.clear()
        x, y = _digits(self.batch * self.steps)
        for n in self.sizes:
            seen = [_Seen() for _ in range(n)]
            inputs = [(rank, _start(rank), x, y, self.batch, _LR) for rank in range(n)]

            def alone(hvd: Any, rank: int, *given: Any, seen: list[_Seen] = seen) -> Any:
                return function(_OwnMachine(hvd), seen[rank].gradient, *given)

            try:
                results = on_ranks(alone, inputs)
            except Exception as error:  # noqa: BLE001 - the learner's own mistake
                return f"n = {n}: {described(error)}"
            for one, result in zip(seen, results, strict=True):
                listed = isinstance(result, list) and bool(result) and isinstance(result[0], int | np.integer)
                one.returned = tuple(result) if listed else result
            if not all(isinstance(one.returned, tuple) and len(one.returned) == 2 for one in seen):
                return f"n = {n}: it returns {type(results[0]).__name__}. The pair (GPU, weights) is asked for"
            if not isinstance(seen[0].returned[0], int | np.integer):
                kinds = ", ".join(type(each).__name__ for each in seen[0].returned)
                return f"n = {n}: it returns the pair ({kinds}). First the number of the GPU, then the list of arrays"
            self.found.append(seen)
        return ""

    def local_batch(self, function: Callable[..., Any]) -> str:
        """2: each rank takes its share of each batch."""
        for n, seen in zip(self.sizes, self.found, strict=True):
            for rank, one in enumerate(seen):
                sizes = [len(x) for _, x in one.calls]
                if sizes != [self.batch // n] * self.steps:
                    return (
                        f"n = {n}, rank {rank}: the batches have {sizes} samples, expected {self.steps} of "
                        f"{self.batch // n} each. Of one step, batch is the number on all ranks"
                    )
        return ""

    def device(self, function: Callable[..., Any]) -> str:
        """3: each rank takes the GPU of its local rank."""
        for n, seen in zip(self.sizes, self.found, strict=True):
            for rank, one in enumerate(seen):
                if one.returned[0] != 0:
                    return f"n = {n}: rank {rank} takes GPU {one.returned[0]}, and its machine has only GPU 0"
        return ""

    def samples(self, function: Callable[..., Any]) -> str:
        """4: together the ranks see the samples of each step, each once."""
        x, _ = _digits(self.batch * self.steps)
        for n, seen in zip(self.sizes, self.found, strict=True):
            for step in range(self.steps):
                mine = sorted(row.tobytes() for one in seen for row in one.calls[step][1])
                right = sorted(row.tobytes() for row in x[step * self.batch : (step + 1) * self.batch])
                if mine != right:
                    there = len(set(mine) & set(right))
                    return (
                        f"n = {n}, step {step}: {there} of the {self.batch} samples are seen, expected all, once. "
                        "Rank r takes its own part of the step's samples"
                    )
        return ""

    def same_start(self, function: Callable[..., Any]) -> str:
        """5: all ranks begin with rank 0's weights."""
        for n, seen in zip(self.sizes, self.found, strict=True):
            for rank, one in enumerate(seen):
                pairs = zip(one.calls[0][0], _start(0), strict=True)
                if not all(np.array_equal(mine, right) for mine, right in pairs):
                    return f"n = {n}: rank {rank} begins with other weights"
        return ""

    def one_process(self, function: Callable[..., Any]) -> str:
        """6: in the end all have the weights of one process."""
        weights = self._trained(1)
        names = [f"weights {i}" for i in range(len(weights))]
        for n, seen in zip(self.sizes, self.found, strict=True):
            yours = [list(one.returned[1]) for one in seen]
            if wrong := difference(yours, [weights] * n, names):
                second = [list(one.calls[1][0]) for one in seen]
                why = ""
                if difference(yours, [yours[0]] * n, names):
                    why = "the ranks end with different weights: each steps with its own gradient; "
                elif difference(second, [second[0]] * n, names):
                    why = "the ranks' weights differ between the steps: average the gradients in each step; "
                elif not compared(yours, [self._trained(n)] * n) and n > 1:
                    why = "each step is n times too long: a sum, no average; "
                elif not compared(yours, [self._trained(-1)] * n):
                    why = "each step goes up: w - lr * gradient goes down; "
                return f"n = {n}: {why}{wrong}"
        return ""

    def _trained(self, factor: int) -> list[Any]:
        """One process's weights at the end, if each step is so many times as long."""
        x, y = _digits(self.batch * self.steps)
        weights = _start(0)
        for start in range(0, len(x), self.batch):
            part = slice(start, start + self.batch)
            pairs = zip(weights, _gradient(weights, x[part], y[part]), strict=True)
            weights = [w - factor * _LR * g for w, g in pairs]
        return weights


_WATCH = _Watch()

TASKS = [
    PlainTask(
        "14.six_steps",
        "the six steps for a framework without support",
        six_steps,
        properties=[
            _WATCH.runs,
            _WATCH.local_batch,
            _WATCH.device,
            _WATCH.samples,
            _WATCH.same_start,
            _WATCH.one_process,
        ],
        points=3,
    )
]
