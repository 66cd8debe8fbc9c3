"""Hosts with ranks, racks with hosts, and the wires between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

NOBODY = -1


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
            if not (isinstance(value, int | float | np.number) and np.isfinite(value) and value >= 0):
                raise ValueError(f"{name} is {value}: a finite number of seconds, 0 at least, is needed.")


@dataclass(frozen=True)
class Ways:
    """The constants of each rank's way to whom it sends, by rank."""

    latency_s: NDArray[np.float64]
    per_byte_s: NDArray[np.float64]
    overhead_s: NDArray[np.float64]


@dataclass(frozen=True)
class Machines:
    """Equal hosts behind switches; rank r is on host r // per_host, and host h in rack h // hosts_per_rack.

    What leaves a host takes this way, and the slowest part of it says how fast::

        GPU ── gpu ──► host ── between, shared by its ranks ──► switch of the rack ── uplink, shared by the rack ──►

    Racks are joined by ideal switches. An uplink is as fast as its hosts' wires together, by ``oversubscription``.

    Args:
        hosts: how many.
        per_host: ranks on each.
        inside: between ranks of one host.
        between: of a host to the switch. Its ranks share it.
        combine_s: to combine one byte of two arrays.
        gpu: between a GPU and its host, for what leaves the host; each GPU has its own.
        hosts_per_rack: behind one switch; 0: all of them.
        oversubscription: how many times slower a rack's uplink is than its hosts' wires together.

    Raises:
        ValueError: there is no rank, or a constant is missing or negative.

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
    gpu: Wire = field(default_factory=lambda: Wire(0.0, 0.0))
    hosts_per_rack: int = 0
    oversubscription: float = 1.0

    def __post_init__(self) -> None:
        if self.hosts < 1 or self.per_host < 1:
            raise ValueError(f"{self.hosts} hosts with {self.per_host} ranks each: at least one of each is needed.")
        for name in ("inside", "between", "gpu"):
            if not isinstance(getattr(self, name), Wire):
                raise ValueError(f"{name} is {getattr(self, name)!r}: a Wire(latency_s, per_byte_s) is needed.")
        if not (np.isfinite(self.combine_s) and self.combine_s >= 0):
            raise ValueError(f"combine_s is {self.combine_s}: 0 at least is needed.")
        if self.hosts_per_rack < 0:
            raise ValueError(f"hosts_per_rack is {self.hosts_per_rack}: give 0 for one switch, or a number of hosts.")
        if not (np.isfinite(self.oversubscription) and self.oversubscription > 0):
            raise ValueError(f"oversubscription is {self.oversubscription}: a positive number is needed, 1 for none.")

    @property
    def n(self) -> int:
        return self.hosts * self.per_host

    def needs(self, ranks: int) -> None:
        """Check that there are so many.

        Raises:
            ValueError: there are fewer.
        """
        if ranks > self.n:
            raise ValueError(
                f"{ranks} ranks do not fit: {self.hosts} hosts with {self.per_host} ranks each have {self.n}. "
                "Give Machines more hosts, or more ranks a host."
            )

    def way(self, rank: int, dest: int) -> Wire:
        """Between two ranks, while nobody else sends."""
        host, other = rank // self.per_host, dest // self.per_host
        if host == other:
            return self.inside
        to_next, to_last = self._alone
        racks = self.hosts_per_rack or self.hosts
        return to_next if host // racks == other // racks else to_last

    @cached_property
    def _alone(self) -> tuple[Wire, Wire]:
        """From the first rank to the next host, which is in its rack if that has two, and to the last host."""
        found = []
        for dest in (min(self.per_host, self.n - 1), self.n - 1):
            ways = self.ways(np.where(np.arange(self.n) == 0, dest, NOBODY))
            found.append(Wire(*(float(part[0]) for part in (ways.latency_s, ways.per_byte_s, ways.overhead_s))))
        return found[0], found[1]

    def ways(self, dest: NDArray[np.int64]) -> Ways:
        """When all ranks send at once, each to its ``dest`` (:data:`NOBODY`: it sends nothing)."""
        host = np.arange(len(dest)) // self.per_host
        leaves = (dest >= 0) & (dest // self.per_host != host)
        latency, overhead = (self.gpu.latency_s * 2 + self.between.latency_s, self.between.overhead_s)
        per_byte = np.maximum(self.between.per_byte_s * np.bincount(host, weights=leaves)[host], self.gpu.per_byte_s)
        per_byte = np.maximum(per_byte, self._uplink(host, dest, leaves))
        return Ways(
            np.where(leaves, latency, self.inside.latency_s),
            np.where(leaves, per_byte, self.inside.per_byte_s),
            np.where(leaves, overhead + self.gpu.overhead_s, self.inside.overhead_s),
        )

    def _uplink(self, host: NDArray[np.int64], dest: NDArray[np.int64], leaves: NDArray[np.bool_]) -> Any:
        """Seconds for each byte that leaves the rack, by rank."""
        if not self.hosts_per_rack:
            return 0.0
        rack = host // self.hosts_per_rack
        away = leaves & (dest // self.per_host // self.hosts_per_rack != rack)
        of_one = self.between.per_byte_s * self.oversubscription / self.hosts_per_rack
        return np.where(away, of_one * np.bincount(rack, weights=away)[rack], 0.0)
