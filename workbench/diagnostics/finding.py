"""A line of the doctor's report, and the report as a whole: text and exit code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from workbench.common.text import count


class Severity(Enum):
    """Severity; the value is its symbol."""

    OK = "✓"
    WARNING = "!"
    FAILURE = "✗"


_COLOURS = {Severity.OK: "32", Severity.WARNING: "33", Severity.FAILURE: "31"}


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    Args:
        severity: of the finding.
        what: the subject, in one or two words.
        text: what was found.
        cure: what to do about it; "" if nothing.
    """

    severity: Severity
    what: str
    text: str
    cure: str = ""

    def line(self, colour: bool = False) -> str:
        """As it is printed.

        Example:
            >>> Finding(Severity.WARNING, "disk", "0.5 GB free in /tmp", "Delete what is old.").line()
            '! disk         0.5 GB free in /tmp → Delete what is old.'
        """
        symbol = f"\033[{_COLOURS[self.severity]}m{self.severity.value}\033[0m" if colour else self.severity.value
        text = f"{self.text.rstrip('.')} → {self.cure}" if self.cure else self.text
        return f"{symbol} {self.what:<12} {' '.join(text.split())}"


def exit_code(findings: Iterable[Finding]) -> int:
    """1 if there is a failure, else 0."""
    return int(any(finding.severity is Severity.FAILURE for finding in findings))


def summary(findings: Sequence[Finding]) -> str:
    """The last line.

    Example:
        >>> summary([Finding(Severity.OK, "disk", ""), Finding(Severity.WARNING, "GPUs", "")])
        '2 checks: all is well, with 1 warning'
    """
    failures = sum(finding.severity is Severity.FAILURE for finding in findings)
    warnings = sum(finding.severity is Severity.WARNING for finding in findings)
    verdict = count(failures, "failure") if failures else "all is well"
    also = f"{' and' if failures else ', with'} {count(warnings, 'warning')}" if warnings else ""
    return f"{count(len(findings), 'check')}: {verdict}{also}"
