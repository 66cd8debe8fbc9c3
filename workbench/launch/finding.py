"""A line of the doctor's report, and the report as a whole: text and exit code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum


class Level(Enum):
    """How it is; the value is its mark."""

    WELL = "✓"
    WARNING = "!"
    FAILURE = "✗"


_COLOURS = {Level.WELL: "32", Level.WARNING: "33", Level.FAILURE: "31"}


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Args:
        level: how it is.
        what: one or two words.
        text: what was found.
        cure: what to do about it; "" where all is well.
    """

    level: Level
    what: str
    text: str
    cure: str = ""

    def line(self, colour: bool = False) -> str:
        """As it is printed.

        Example:
            >>> Finding(Level.WARNING, "disk", "0.5 GB free in /tmp", "Delete what is old.").line()
            '! disk         0.5 GB free in /tmp → Delete what is old.'
        """
        mark = f"\033[{_COLOURS[self.level]}m{self.level.value}\033[0m" if colour else self.level.value
        text = f"{self.text.rstrip('.')} → {self.cure}" if self.cure else self.text
        return f"{mark} {self.what:<12} {' '.join(text.split())}"


def exit_code(findings: Iterable[Finding]) -> int:
    """1 if anything is a failure."""
    return int(any(finding.level is Level.FAILURE for finding in findings))


def summary(findings: Sequence[Finding]) -> str:
    """The last line.

    Example:
        >>> summary([Finding(Level.WELL, "disk", ""), Finding(Level.WARNING, "GPUs", "")])
        '2 checks: all is well, with 1 warning'
    """
    failures = sum(finding.level is Level.FAILURE for finding in findings)
    warnings = sum(finding.level is Level.WARNING for finding in findings)
    verdict = count(failures, "failure") if failures else "all is well"
    also = f"{' and' if failures else ', with'} {count(warnings, 'warning')}" if warnings else ""
    return f"{count(len(findings), 'check')}: {verdict}{also}"


def count(n: int, noun: str) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def numbers(found: Sequence[int], noun: str) -> str:
    """``rank 1``, ``ranks 0, 1``."""
    return f"{noun}{'s' if len(found) > 1 else ''} {', '.join(map(str, found))}"
