"""Ranks that die in a simulated run, and how the others go on.

A rank that is killed stops at once. What it had sent still arrives. ``notice_s`` later the others know, all of them at
the same time: whoever waits then, or later asks for a message, gets a RankDiedError. So no survivor waits for ever,
and none waits for another one that has already given up. The way out is :meth:`Comm.shrink`: a communicator of those
who live, in which no message of the old one can arrive.

    >>> from workbench.course.simulator import simulate
    >>> def total(comm):
    ...     try:
    ...         return comm.allreduce(10 + comm.rank)
    ...     except RankDiedError as error:
    ...         comm = comm.shrink()
    ...         return f"without {error.ranks}: rank {comm.rank} of {comm.size}", comm.allreduce(1)
    >>> run = simulate(3, total, kills=[Kill(rank=1, message=0)])
    >>> run.results[0], run.results[1], run.results[2]
    (('without (1,): rank 0 of 2', 2), None, ('without (1,): rank 1 of 2', 2))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from workbench.course.simulator.deadline import Halt
from workbench.errors import WorkbenchError

NOTICE_S = 1e-3
"""From a death to the moment when the others know, in virtual seconds."""
NEVER = float("inf")


@dataclass(frozen=True)
class Kill:
    """The death of a rank: at a time of the virtual clock, or in place of a message.

    Args:
        rank: of the whole world, as at the beginning of the run.
        at_s: in virtual seconds.
        message: it dies where it would send its message of this number, counted from 0.

    Raises:
        ValueError: neither is given, or both are.
    """

    rank: int
    at_s: float | None = None
    message: int | None = None

    def __post_init__(self) -> None:
        if (self.at_s is None) == (self.message is None):
            raise ValueError("Kill needs either at_s=…, a time, or message=…, the number of one.")


class RankDiedError(WorkbenchError):
    """A rank of this communicator is dead, and its collectives cannot end.

    Attributes:
        ranks: the dead, by their numbers at the beginning of the run.
    """

    def __init__(self, text: str, ranks: tuple[int, ...]) -> None:
        super().__init__(text)
        self.ranks = ranks


class Died(Halt):
    """Ends the thread of a rank that was killed."""


@dataclass
class Failures:
    """Who is to die, who is dead, and who belongs together.

    Args:
        size: ranks at the beginning.
        kills: what is to happen.
        notice_s: from a death to its notice.

    Attributes:
        died: by rank, when.
        epochs: the members of each communicator: of all ranks, and then of each shrink().

    Raises:
        ValueError: a kill names no rank of this run.
    """

    size: int
    kills: Sequence[Kill] = ()
    notice_s: float = NOTICE_S
    died: dict[int, float] = field(default_factory=dict)
    epochs: list[tuple[int, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.epochs.append(tuple(range(self.size)))
        wrong = [kill.rank for kill in self.kills if not 0 <= kill.rank < self.size]
        if wrong:
            raise ValueError(f"Kill(rank={wrong[0]}): there is no such rank among {self.size}.")

    def due_s(self, rank: int) -> float:
        """When a rank is to die by the clock; infinity if it is not."""
        if not self.kills:
            return NEVER
        return min((kill.at_s for kill in self.kills if kill.rank == rank and kill.at_s is not None), default=NEVER)

    def due_instead_of(self, rank: int, message: int) -> bool:
        """Is it to die where it would send this message?"""
        return any(kill.rank == rank and kill.message == message for kill in self.kills)

    def noticed_s(self, epoch: int) -> float:
        """When the members of an epoch learn that one of them is dead; infinity if all live."""
        if not self.died:
            return NEVER
        dead = [self.died[rank] for rank in self.epochs[epoch] if rank in self.died]
        return min(dead, default=NEVER) + self.notice_s

    def error(self, rank: int, epoch: int, call: str) -> RankDiedError:
        """What a survivor is told in a call that cannot end."""
        dead = tuple(sorted(one for one in self.epochs[epoch] if one in self.died))
        who = f"rank {dead[0]} is" if len(dead) == 1 else f"ranks {', '.join(map(str, dead))} are"
        return RankDiedError(
            f"Rank {rank} in {call}(): {who} dead, so this cannot end. comm.shrink() gives those who live a "
            "communicator of their own.",
            dead,
        )
