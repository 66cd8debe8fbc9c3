"""Hosts with ranks, and the wires between them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Wire:
    """LogGP's constants of a way between two ranks.

    Args:
        latency_s: from the moment in which the last byte leaves to its arrival.
        per_byte_s: 1 / bandwidth.
        overhead_s: what a message costs at either end besides.

    Raises:
        ValueError: one is negative, or no number.
    """

    latency_s: float
    per_byte_s: float
    overhead_s: float = 0.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if not (np.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value}: a finite number of seconds, 0 at least, is needed.")


@dataclass(frozen=True)
class Ways:
    """The constants of each rank's way to whom it sends, by rank."""

    latency_s: NDArray[np.float64]
    per_byte_s: NDArray[np.float64]
    overhead_s: NDArray[np.float64]


@dataclass(frozen=True)
class Machines:
    """Equal hosts on a switch; rank r is on host r // per_host.

    Args:
        hosts: how many.
        per_host: ranks on each.
        inside: between ranks of one host.
        between: of a host to the switch. Its ranks share it.
        combine_s: to combine one byte of two arrays.

    Raises:
        ValueError: there is no rank, or ``combine_s`` is negative.

    Example:
        >>> pascal = Machines(hosts=128, per_host=4, inside=Wire(5e-6, 1e-10), between=Wire(2e-5, 8 / 25e9))
        >>> pascal.n, pascal.way(3, 4) == pascal.between, pascal.way(4, 5) == pascal.inside
        (512, True, True)
    """

    hosts: int
    per_host: int
    inside: Wire
    between: Wire
    combine_s: float = 0.0

    def __post_init__(self) -> None:
        if self.hosts < 1 or self.per_host < 1:
            raise ValueError(f"{self.hosts} hosts with {self.per_host} ranks each: at least one of each is needed.")
        if not self.combine_s >= 0:
            raise ValueError(f"combine_s is {self.combine_s}: 0 at least is needed.")

    @property
    def n(self) -> int:
        """How many ranks."""
        return self.hosts * self.per_host

    def way(self, rank: int, dest: int) -> Wire:
        """Between two ranks."""
        return self.inside if rank // self.per_host == dest // self.per_host else self.between

    def ways(self, dest: NDArray[np.int64]) -> Ways:
        """When all ranks send at once, each to its ``dest`` (negative: it sends nothing)."""
        host = np.arange(len(dest)) // self.per_host
        leaves = (dest >= 0) & (dest // self.per_host != host)
        sharing = np.bincount(host, weights=leaves)[host]
        pairs = [(self.between.latency_s, self.inside.latency_s), (self.between.overhead_s, self.inside.overhead_s)]
        latency, overhead = (np.where(leaves, out, stays) for out, stays in pairs)
        return Ways(latency, np.where(leaves, self.between.per_byte_s * sharing, self.inside.per_byte_s), overhead)


__all__ = ["Machines", "Ways", "Wire"]
