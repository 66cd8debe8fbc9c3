"""What happened in a simulated run: messages, clocks, results, or why nobody could go on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from workbench.course.simulator.deadlock import Wait
from workbench.errors import WorkbenchError


class DeadlockError(WorkbenchError):
    """No rank can go on. ``run`` holds what happened until then.

    Attributes:
        waits: by rank, in what each one waits.
        run: messages and clocks so far.
    """

    def __init__(self, text: str, waits: list[Wait], run: Run) -> None:
        super().__init__(text)
        self.waits, self.run = waits, run


@dataclass(frozen=True)
class SimulatedMessage:
    """One message; times in seconds of the virtual clock.

    Args:
        posted: the sender had it ready.
        begin, end: of its transfer.
        held: the sender waited for it from then on: once ready, or in the wait() of an isend; its beginning if never.
        awaited: likewise the receiver, once it has asked for it, or in the wait() of an irecv.
        verb: the sender's.
    """

    source: int
    dest: int
    tag: int
    nbytes: int
    posted: float
    begin: float
    end: float
    held: float
    awaited: float
    verb: str


@dataclass(frozen=True)
class Computed:
    """``rank`` computed from ``begin`` to ``end``."""

    rank: int
    begin: float
    end: float
    label: str = ""


@dataclass(frozen=True)
class InVain:
    """``rank`` waited from ``begin`` to ``end`` for a message that could not come any more: a rank was dead.

    Args:
        peer: the rank at the other end of that message; negative: any rank.
        verb: what it waited in.
    """

    rank: int
    peer: int
    begin: float
    end: float
    verb: str


@dataclass
class Run:
    """What happened.

    Attributes:
        results: by rank, what the function returned.
        clocks: by rank, when it did, in virtual seconds.
        messages: in the order of their beginning.
        computed: likewise.
        unwaited: (rank, peer, verb) of isend, irecv and their like that nobody has waited for.
        unreceived: (source, dest, verb) of what was sent, and never asked for.
        died: by rank, when it was killed.
        in_vain: waits that ended with the news of a death.
    """

    size: int
    results: list[Any] = field(default_factory=list)
    clocks: list[float] = field(default_factory=list)
    messages: list[SimulatedMessage] = field(default_factory=list)
    computed: list[Computed] = field(default_factory=list)
    unwaited: list[tuple[int, int, str]] = field(default_factory=list)
    unreceived: list[tuple[int, int, str]] = field(default_factory=list)
    died: dict[int, float] = field(default_factory=dict)
    in_vain: list[InVain] = field(default_factory=list)

    @property
    def time_s(self) -> float:
        """Until the last rank had returned."""
        return max(self.clocks, default=0.0)

    def sent(self) -> list[tuple[int, int]]:
        """By rank, messages and bytes sent."""
        of = [[one for one in self.messages if one.source == rank] for rank in range(self.size)]
        return [(len(mine), sum(one.nbytes for one in mine)) for mine in of]

    def received(self) -> list[tuple[int, int]]:
        """By rank, messages and bytes received."""
        of = [[one for one in self.messages if one.dest == rank] for rank in range(self.size)]
        return [(len(mine), sum(one.nbytes for one in mine)) for mine in of]
