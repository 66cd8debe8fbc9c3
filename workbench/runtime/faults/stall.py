"""The stall inspector: who has kept the others waiting for too long, and where does every rank stand meanwhile?

Pure, but for :func:`main_stack`; the clock is an argument.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass

_HEAD = (
    "One or more tensors were submitted to be reduced, gathered or broadcasted by subset of ranks and are waiting for "
    "remainder of ranks for more than {seconds:g} seconds. Either the missing ranks are busy with something else, or "
    "they submit other tensors than the rest, and then nobody can go on."
)
_MOST_NAMES = 6
_MOST_FRAMES = 8


@dataclass(frozen=True)
class Stalled:
    """A name that waits.

    Args:
        since: when the first rank announced it.
        missing: the ranks that have not.
    """

    since: float
    missing: tuple[int, ...]


class StallInspector:
    r"""Warns once per period about names that wait for too long.

    Args:
        warning_s: age at which a name is reported; 0 turns the inspector off.
        shutdown_s: age at which it fails on all ranks; 0 means never.

    Example:
        >>> inspector = StallInspector(warning_s=60, shutdown_s=0)
        >>> report = inspector.report({"allreduce.x": Stalled(0.0, (1, 3))}, now=61.0)
        >>> print("\n".join(report.splitlines()[1:]))
        Missing ranks:
        1: [allreduce.x]
        3: [allreduce.x]
        >>> inspector.report({"allreduce.x": Stalled(0.0, (1, 3))}, now=62.0)
        ''
    """

    def __init__(self, warning_s: float, shutdown_s: float) -> None:
        self.warning_s, self.shutdown_s = warning_s, shutdown_s
        self._reported_at = float("-inf")

    def report(self, waiting: Mapping[str, Stalled], now: float) -> str:
        """The warning, or an empty text when there is nothing (new) to say."""
        old = {name: stalled for name, stalled in waiting.items() if now - stalled.since >= self.warning_s}
        if self.warning_s <= 0 or not old or now - self._reported_at < self.warning_s:
            return ""
        self._reported_at = now
        ranks = sorted({rank for stalled in old.values() for rank in stalled.missing})
        return "\n".join([_HEAD.format(seconds=self.warning_s), "Missing ranks:", *(_line(r, old) for r in ranks)])

    def expired(self, stalled: Stalled, now: float) -> bool:
        """Has this name waited so long that it fails?"""
        return 0 < self.shutdown_s <= now - stalled.since


def _line(rank: int, waiting: Mapping[str, Stalled]) -> str:
    names = [name for name, stalled in waiting.items() if rank in stalled.missing]
    more = " ..." if len(names) > _MOST_NAMES else ""
    return f"{rank}: [{', '.join(names[:_MOST_NAMES])}{more}]"


@dataclass
class Inquiry:
    """A report that waits until every rank has said where it stands, or until ``until``.

    Args:
        report: the stall inspector's text.
        until: a rank that has not answered by then is silent: it hangs in a call that lets no other thread run.
        size: how many ranks are asked.

    Example:
        >>> inquiry = Inquiry("Missing ranks: 1", until=1.0, size=2)
        >>> inquiry.answer(0, "train.py, line 3")
        >>> inquiry.due(now=0.5), inquiry.due(now=1.0)
        (False, True)
        >>> print(inquiry.text())
        Missing ranks: 1
        Rank 0 stands at:
        train.py, line 3
        Rank 1 does not answer.
        >>> print(inquiry.text({1: "its process 4711 is stopped"}).splitlines()[-1])
        Rank 1 does not answer: its process 4711 is stopped.
    """

    report: str
    until: float
    size: int

    def __post_init__(self) -> None:
        self._stacks: dict[int, str] = {}

    def answer(self, rank: int, stack: str) -> None:
        self._stacks[rank] = stack

    def due(self, now: float) -> bool:
        """Is there nothing more to wait for?"""
        return now >= self.until or len(self._stacks) == self.size

    def text(self, silent: Mapping[int, str] | None = None) -> str:
        """The report, with a stack for each rank, or why it is silent, where that is known."""
        why = {rank: f": {reason}" for rank, reason in (silent or {}).items()}
        lines = [
            f"Rank {rank} stands at:\n{self._stacks[rank]}"
            if rank in self._stacks
            else f"Rank {rank} does not answer{why.get(rank, '')}."
            for rank in range(self.size)
        ]
        return "\n".join([self.report, *lines])


def main_stack() -> str:
    """The innermost lines of this process's main thread, from any thread."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    return "".join(traceback.format_stack(frame)[-_MOST_FRAMES:]).rstrip() if frame else "(no main thread)"
