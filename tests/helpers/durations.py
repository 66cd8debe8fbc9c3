"""A table of how long each file of tests took, and which tests are slower than five seconds, with the reason for each.

``--table FILE`` writes it as Markdown, "-" to the terminal. The reasons stand in ``tests/slow.toml``. A slow test
without one is named in the table; it is no failure, for a busy machine makes any test slow.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from project import ROOT, tomllib

SLOW_S = 5.0
REASONS = ROOT / "tests" / "slow.toml"
_FILES = 40  # in the table: those below take a second or less


def reasons() -> dict[str, str]:
    """``file.py::test`` → why it takes longer than five seconds."""
    return dict(tomllib.loads(REASONS.read_text(encoding="utf-8")))


def short(nodeid: str) -> str:
    """A test's name in ``slow.toml``: its file's name without the folders, and its own without parameters."""
    path, _, test = nodeid.partition("::")
    return f"{path.rpartition('/')[2]}::{test.partition('[')[0]}"


def table(seconds: Mapping[str, float], why: Mapping[str, str]) -> list[str]:
    """The lines of the table.

    Args:
        seconds: of each test.
        why: as :func:`reasons`.
    """
    files: dict[str, list[float]] = defaultdict(list)
    for nodeid, each in seconds.items():
        files[nodeid.partition("::")[0]].append(each)
    order = sorted(files, key=lambda name: -sum(files[name]))
    rows = [(name, f"{sum(files[name]):.0f}", str(len(files[name]))) for name in order[:_FILES]]
    slow = sorted((nodeid for nodeid, each in seconds.items() if each > SLOW_S), key=lambda nodeid: -seconds[nodeid])
    tests = [
        (nodeid, f"{seconds[nodeid]:.0f}", why.get(short(nodeid), "**no reason in tests/slow.toml**"))
        for nodeid in slow
    ]
    total = f"{sum(seconds.values()):.0f} s of {len(seconds)} tests, one after the other"
    return [
        f"### Seconds of each file ({total})",
        *_rows(("file", "seconds", "tests"), rows),
        "",
        f"### Tests slower than {SLOW_S:.0f} s",
        *_rows(("test", "seconds", "why"), tests),
    ]


def _rows(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> list[str]:
    return [f"| {' | '.join(cells)} |" for cells in (head, ("---",) * len(head), *rows)]


class Durations:
    """Adds up each test's phases, and writes the table at the end."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._seconds: dict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """After each phase; of all workers, in the process that hands out the tests."""
        self._seconds[report.nodeid] += report.duration

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """At the end."""
        lines = table(self._seconds, reasons())
        if self._target == "-":
            terminalreporter.write_sep("=", "seconds")
            for line in lines:
                terminalreporter.write_line(line)
            return
        with Path(self._target).open("a", encoding="utf-8") as file:
            file.write("\n".join([*lines, ""]))


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option."""
    parser.addoption(
        "--table", metavar="FILE", help="append how long files and slow tests took, as Markdown; - shows it"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Only where the tests are handed out."""
    target = config.getoption("--table")
    if target and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations(target))
