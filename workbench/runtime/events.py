"""What else ranks tell rank 0: cells that begin and end, threads that wait, signs of life, what was lost."""

from __future__ import annotations

from dataclasses import dataclass

from workbench.core.messages import Event


@dataclass(frozen=True, slots=True)
class Began(Event):
    """``rank`` began a notebook cell.

    Args:
        numbered: has the notebook sent it? Then :class:`Sent` follows. Else another client has.
        failures: how many the notebook had counted when it sent the cell. What has more is a later cell, on any rank.
    """

    numbered: bool = False
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Ended(Event):
    """``rank`` finished a notebook cell, so nothing comes from it until it begins the next one."""


@dataclass(frozen=True, slots=True)
class Sent(Event):
    """What the notebook has sent so far, as ``rank`` knows it: see :mod:`workbench.common.cell_numbers`.

    Args:
        engine: which of the notebook's engines the rank is.
        number: of the newest cell that it has begun, or passed over.
        version: of what follows; it grows.
        sent: pairs: an engine, and the number of the newest cell that is on its way to it.
        idle: engines that have answered all, and get no other cell for the moment.
    """

    engine: int
    number: int
    version: int
    sent: tuple[tuple[int, int], ...]
    idle: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Blocked(Event):
    """Every thread of ``rank`` that submits tensors waits.

    Args:
        waits: for each waiting thread the process set, the name and the place in the user's code; empty when a
            thread goes on.
        more: a framework's graph waits, which may still submit tensors that depend on none of these.
    """

    waits: tuple[tuple[int, str, str], ...]
    more: bool = False


@dataclass(frozen=True, slots=True)
class Overdue(Event):
    """``rank`` has waited for a name of a process set for ``limit_s`` seconds, as long as its caller allows."""

    process_set: int
    name: str
    limit_s: float


@dataclass(frozen=True, slots=True)
class Stack(Event):
    """Where the main thread of ``rank`` stands, asked for by ``Kind.STACKS``."""

    text: str


@dataclass(frozen=True, slots=True)
class Beat(Event):
    """``rank`` is alive. The first beat tells who it is: its host, process id and namespace.

    Args:
        seen: as in :class:`workbench.core.messages.Announce`, for a rank that announces nothing.
    """

    host: str = ""
    pid: int = 0
    seen: int = 0


@dataclass(frozen=True, slots=True)
class Lost(Event):
    """Rank 0 has found that ``rank`` is gone; ``why`` says how. Rank 0 makes this event itself: it is never sent."""

    why: str
