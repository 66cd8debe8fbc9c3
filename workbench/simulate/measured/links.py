"""The ways between ranks, as measured, and how long a reduction takes on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from workbench.collectives.ring import ring_allreduce
from workbench.simulate import algorithms
from workbench.simulate.levels import TwoLevels
from workbench.simulate.machines import Machines, Wire
from workbench.simulate.measured.fit import Fit
from workbench.simulate.schedule import timed


@dataclass(frozen=True)
class Links:
    """The ways between ranks, as measured.

    Args:
        hosts, per_host: where the ranks were.
        inside: between ranks of one host; None if there was one rank a host.
        between: between hosts; None if there was one host.
        announce_s: from the last rank's submission of a tensor to its response, without its values.
        wire: dtype of what was reduced.
    """

    hosts: int
    per_host: int
    inside: Fit | None
    between: Fit | None
    announce_s: float
    wire: str = "float32"

    def machines(self, ranks: int, hosts: int = 1, link: Wire | None = None) -> Machines:
        """So many ranks on so many hosts with these links.

        Args:
            ranks, hosts: how many.
            link: between the hosts, instead of what was measured.

        Raises:
            ValueError: the ranks do not fill the hosts, or a way that is needed was not measured.
        """
        if ranks < 1 or hosts < 1 or ranks % hosts:
            raise ValueError(f"{ranks} ranks do not fill {hosts} hosts: give a multiple of {hosts}.")
        link = link or (self.between.wire if self.between else None)
        if ranks > hosts and self.inside is None:
            raise ValueError(
                f"{ranks} ranks on {hosts} hosts are {ranks // hosts} a host, but workbench.measure() ran with one a "
                "host, so the link between ranks of a host is not known. Measure with two ranks on a host."
            )
        if hosts > 1 and link is None:
            raise ValueError(
                f"{hosts} hosts were asked for, but workbench.measure() ran on one, so the link between hosts is not "
                "known. Give it, as link=Wire(latency_s=…, per_byte_s=…), or measure on two hosts."
            )
        inside = self.inside.wire if self.inside else Wire(0, 0)
        return Machines(hosts, ranks // hosts, inside, link or Wire(0, 0))

    def __str__(self) -> str:
        ranks = f"{self.hosts * self.per_host} ranks on {self.hosts} host{'s' * (self.hosts > 1)}"
        ways = [("in a host", self.inside), ("between hosts", self.between)]
        lines = [f"{name + ':':15}{way}" for name, way in ways if way]
        return "\n".join([ranks, *lines, f"announcement:  {self.announce_s * 1e6:.0f} µs"])


def reduction(machines: Machines) -> Callable[[float], float]:
    """How long a reduction of so many bytes takes: a ring, or two levels where several ranks share a host."""
    two = machines.hosts > 1 and machines.per_host > 1
    return timed(TwoLevels(machines.per_host) if two else ring_allreduce, machines)


def reduce_scatter(machines: Machines) -> Callable[[float], float]:
    """… a reduction of which each rank keeps a part: a ring of all ranks."""
    return timed(algorithms.reduce_scatter, machines)


def gather(machines: Machines) -> Callable[[float], float]:
    """… gathering these parts: half of a reduction, or nothing where all ranks share memory."""
    both = reduction(machines)
    return lambda nbytes: both(nbytes) / 2 if machines.hosts > 1 else 0.0
