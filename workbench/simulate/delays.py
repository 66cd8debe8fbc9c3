"""What delays a step besides work and wires: ranks that are slower than others, and the agreement on what is ready.

**Stragglers.** All ranks wait for the slowest, so what counts is the maximum of n draws:

=================  ===================================  =========================================================
distribution       a rank's compute time, by its usual  expected maximum of n
=================  ===================================  =========================================================
``LogNormal``      exp(deviation · standard normal)     grows as exp(deviation · sqrt(2 ln n)), about
``Exponential``    1 + tail · standard exponential      1 + tail · (1 + 1/2 + … + 1/n)
``OneSlow``        ``factor`` of rank 0, 1 of others    ``factor``, whatever n is
=================  ===================================  =========================================================

**Negotiation.** A rank holds its announcements back for a window, and sends those of the window in one message. Rank 0
takes n messages one after the other, then answers all::

    gradient ready │ window │ way to rank 0 │ rank 0: n messages, each with its tensors │ way back │ reduce
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

_MOST_WINDOWS = 5  # as workbench.runtime.steady.batching


class Stragglers(Protocol):
    """How long ranks compute, as multiples of their usual time."""

    def draw(self, chance: np.random.Generator, ranks: int) -> NDArray[np.float64]:
        """One step's factors, by rank."""


@dataclass(frozen=True)
class LogNormal:
    """Each rank, in each step, by a log-normal factor with median 1.

    Args:
        deviation: standard deviation of the factor's logarithm.

    Raises:
        ValueError: it is negative.
    """

    deviation: float

    def __post_init__(self) -> None:
        _check("deviation", self.deviation, 0.0)

    def draw(self, chance: np.random.Generator, ranks: int) -> NDArray[np.float64]:
        return np.exp(self.deviation * chance.standard_normal(ranks))


@dataclass(frozen=True)
class Exponential:
    """Nobody is faster than usual; delays have an exponential tail.

    Args:
        tail: mean delay, by the usual time.

    Raises:
        ValueError: it is negative.

    Example:
        >>> factors = Exponential(tail=0.1).draw(np.random.default_rng(0), ranks=10_000)
        >>> bool(factors.min() >= 1), round(float(factors.mean()), 2)
        (True, 1.1)
    """

    tail: float

    def __post_init__(self) -> None:
        _check("tail", self.tail, 0.0)

    def draw(self, chance: np.random.Generator, ranks: int) -> NDArray[np.float64]:
        return 1.0 + self.tail * chance.standard_exponential(ranks)


@dataclass(frozen=True)
class OneSlow:
    """Rank 0 is slower in every step: a hot GPU, or a host with other work.

    Args:
        factor: of its time.

    Raises:
        ValueError: it is below 1.
    """

    factor: float

    def __post_init__(self) -> None:
        _check("factor", self.factor, 1.0)

    def draw(self, chance: np.random.Generator, ranks: int) -> NDArray[np.float64]:
        return np.where(np.arange(ranks) == 0, self.factor, 1.0)


@dataclass(frozen=True)
class Negotiation:
    """Rank 0 as the coordinator of all.

    Args:
        latency_s: of a message to rank 0, and of its answer.
        message_s: rank 0's CPU time for one message.
        tensor_s: … and for each tensor in it.
        window_s: an announcement is held back until nothing has come for so long, or the step ends; 5 times at most.

    The CPU times are fitted to ``benchmarks/control_plane.py``: 64 to 4,096 ranks, within a quarter of each.

    Raises:
        ValueError: a constant is negative, or no number.

    Example:
        >>> star = Negotiation(latency_s=1.0, message_s=0.5, tensor_s=0.0, window_s=0.0)
        >>> star.known([10.0], ranks=4), star.known([10.0], ranks=8)
        ([14.0], [16.0])
    """

    latency_s: float = 25e-6
    message_s: float = 3.9e-6
    tensor_s: float = 16e-9
    window_s: float = 1e-3

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            _check(name, value, 0.0)

    def known(self, ready: Sequence[float], ranks: int) -> list[float]:
        """When all ranks know that all have a tensor, for tensors that are ready at these times on all of them."""
        known, free = [0.0] * len(ready), -np.inf
        for sent, batch in self._batches(ready):
            free = max(free, sent + self.latency_s) + self.busy_s(ranks, len(batch))
            for i in batch:
                known[i] = free + self.latency_s
        return known

    def busy_s(self, ranks: int, tensors: float) -> float:
        """Rank 0's CPU time for a message of so many tensors from each rank."""
        return ranks * (self.message_s + tensors * self.tensor_s)

    def _batches(self, ready: Sequence[float]) -> list[tuple[float, list[int]]]:
        """When a message leaves, and what is in it: the rule of :class:`workbench.runtime.steady.batching.Window`."""
        batches, last = list[tuple[float, list[int]]](), max(ready, default=0.0)
        since = until = -np.inf
        for i in sorted(range(len(ready)), key=ready.__getitem__):
            now = ready[i]
            if not batches or now > until:
                since = now
                batches.append((now, []))
            until = min(now, since + _MOST_WINDOWS * self.window_s) + self.window_s
            batches[-1][1].append(i)
            batches[-1] = min(until, last), batches[-1][1]  # the step's end waits for all, so nothing is held back
        return batches


def _check(name: str, value: float, least: float) -> None:
    if not (isinstance(value, int | float | np.number) and np.isfinite(value) and value >= least):
        raise ValueError(f"{name} is {value}: a finite number, {least:g} at least, is needed.")
