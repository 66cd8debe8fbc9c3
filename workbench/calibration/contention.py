"""Computing and reducing at the same time, on the same cores: how much slower either becomes.

On a GPU the two hardly meet. On CPUs a reduction takes time from the cores that compute: with as many ranks as cores,
or over a link so fast that a core is what limits it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from workbench.calibration.links import begin_average, gradients
from workbench.core.handle import Handle
from workbench.job import api
from workbench.simulate.measured.contention import Contention

_REDUCTIONS = 8
_SMALLEST, _LARGEST = 1 << 16, 4 << 20  # bytes of each
_MOST_LOST = 0.95


def measure_contention(work: Callable[[], object], seconds: float = 2.0, wire: str = "float32") -> Contention:
    """Work and reduce, apart and at the same time; all ranks call it, and get the slowest rank's.

    Args:
        work: computes, as a training step does.
        seconds: how long, about.
        wire: dtype of what is reduced: sums of float16 take more of a core than those of float32.
    """
    work()
    alone = _slowest(_timed(work))
    turns = max(1, round(seconds / 10 / alone))  # of the work, so that reductions end before it
    trial = _Trial(work, turns, _SMALLEST, wire)
    trial.reduce()
    once = _slowest(trial.reduce())
    trial = _Trial(work, turns, int(np.clip(_SMALLEST * turns * alone / 3 / once, _SMALLEST, _LARGEST)), wire)
    trial.reduce()
    found = np.median([trial.once() for _ in range(5)], axis=0)
    return Contention(*(max(1.0, float(each)) for each in _slowest(found)))


def _timed(work: Callable[[], object]) -> float:
    api.barrier()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _slowest(mine: Any) -> Any:
    return api.allreduce(np.asarray(mine, np.float64), "workbench.measure.slowest", op=api.Max)


class _Trial:
    """Some work and some reductions.

    Args:
        work, turns: what is done, so many times.
        nbytes, wire: of each reduction.
    """

    def __init__(self, work: Callable[[], object], turns: int, nbytes: int, wire: str) -> None:
        self._arrays = [gradients(nbytes, wire) for _ in range(_REDUCTIONS)]
        self._name, self._wire = f"workbench.measure.contention.{wire}.{nbytes}", wire
        self._work, self._turns = work, turns

    def once(self) -> tuple[float, float]:
        """How many times as long computing, and reducing, take at the same time as the other."""
        reduced, worked = self.reduce(), _timed(self._all)
        ends = list[float]()
        api.barrier()
        begin = time.perf_counter()
        handles = self._begin()
        for handle in handles:
            handle.add_done_callback(lambda _: ends.append(time.perf_counter()))
        self._all()
        both = time.perf_counter() - begin
        while len(ends) < len(handles):
            time.sleep(1e-4)
        together = min(both, ends[-1] - begin)  # then one of them was alone again
        lost = min(_MOST_LOST, max(0.0, both - worked) / together)
        return 1 / (1 - lost), (ends[-1] - begin) / reduced

    def reduce(self) -> float:
        """Seconds of all reductions, one after the other."""
        return _timed(lambda: [handle.wait() for handle in self._begin()])

    def _all(self) -> None:
        for _ in range(self._turns):
            self._work()

    def _begin(self) -> list[Handle]:
        return [begin_average(f"{self._name}.{i}", array, self._wire) for i, array in enumerate(self._arrays)]
