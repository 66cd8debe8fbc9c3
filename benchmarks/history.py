"""Has a commit made something slower? ``python benchmarks/history.py`` shows the last commits' ratios, row by row.

``history.csv`` gets a line for each figure of ``make bench`` and ``make bench-full``. Seconds of two runs cannot be
compared, for the machine drifts; ratios to a peer in the same run can. So each line has the ratio of a peer's time to
ours, with its quartiles over the rounds: above 1 the peer is slower, and the larger the better for us.

A commit is *worse* in a row if its upper quartile is below the median of the lower quartiles of those before: what the
rounds of one run differ by, and what the runs differ by, is not called a change. Only runs of one kind on one kind of
machine are compared.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from figures import quartiles, ratios
from report import Result, number, table

HERE = Path(__file__).resolve().parent
FILE = HERE / "history.csv"
_LEFT_OUT = ("Gloo", "Python ring over Sendrecv")  # the one by the scheduler's ticks, the other compared with nobody
STAND_IN = "stand-in for Horovod"  # in the name of a peer that is not what it is called: nothing for a history
_IGNORED = (":!benchmarks/results", ":!benchmarks/history.csv")


@dataclass(frozen=True)
class Line:
    """A figure of one run.

    Args:
        commit, date: of what, when.
        kind, machine: quick or full, processor and cores.
        section, ranks, row: which worker, how many ranks, a size or a model.
        ours, peer: who is compared.
        ours_ms: the median time of ours.
        ratio, low, high: the peer's time over ours, the median and the quartiles over rounds.
    """

    commit: str
    date: str
    kind: str
    machine: str
    section: str
    ranks: int
    row: str
    ours: str
    peer: str
    ours_ms: float
    ratio: float
    low: float
    high: float

    @property
    def key(self) -> tuple[str, ...]:
        """Lines with the same one are compared."""
        return (self.kind, self.machine, self.section, str(self.ranks), self.row, self.ours, self.peer)


@dataclass(frozen=True)
class Point:
    """A commit in a row: the medians over its runs, and whether it is worse than those before."""

    commit: str
    ratio: float
    low: float
    high: float
    worse: bool


def lines(kind: str, about: Mapping[str, Any], results: Iterable[Result], commit: str) -> list[Line]:
    """What one run of the benchmarks adds."""
    made = []
    for result in results:
        for case in result.get("cases", []):
            for ours in set(result["ours"]) & case["seconds"].keys():
                for peer, ratio in ratios(case["seconds"], ours).items():
                    if peer in result["ours"] or peer in _LEFT_OUT or STAND_IN in peer:
                        continue
                    made.append(
                        Line(
                            commit=commit,
                            date=about["date"],
                            kind=kind,
                            machine=f"{about['cpu']}, {about['cores']} cores",
                            section=result["section"],
                            ranks=result["ranks"],
                            row=case["title"],
                            ours=ours,
                            peer=peer,
                            ours_ms=round(1e3 * quartiles(case["seconds"][ours]).median, 5),
                            ratio=round(ratio.median, 4),
                            low=round(ratio.low, 4),
                            high=round(ratio.high, 4),
                        )
                    )
    return sorted(made, key=lambda line: line.key)


def append(path: Path, new: Sequence[Line]) -> None:
    """Add lines to a history, which is begun if there is none."""
    begun = path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, [field.name for field in fields(Line)], lineterminator="\n")
        if not begun:
            writer.writeheader()
        writer.writerows(asdict(line) for line in new)


def read(path: Path) -> list[Line]:
    """All lines, the oldest first.

    Raises:
        ValueError: a line is not what :func:`append` writes; the text says which.
    """
    found = []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            try:
                values: dict[str, Any] = {**row, "ranks": int(row["ranks"])}
                values |= {name: float(row[name]) for name in ("ours_ms", "ratio", "low", "high")}
                found.append(Line(**values))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path}: {row} is no line of a history: {error}") from error
    return found


def compare(history: Iterable[Line], last: int) -> dict[tuple[str, ...], list[Point]]:
    """For each row its last commits, the oldest first; runs of one commit are one point."""
    rows: dict[tuple[str, ...], dict[str, list[Line]]] = {}
    for line in history:
        rows.setdefault(line.key, {}).setdefault(line.commit, []).append(line)
    found = {}
    for key, commits in rows.items():
        points: list[Point] = []
        for commit, runs in list(commits.items())[-last:]:
            ratio, low, high = (
                statistics.median(values) for values in zip(*((r.ratio, r.low, r.high) for r in runs), strict=True)
            )
            worse = bool(points) and high < statistics.median(point.low for point in points)
            points.append(Point(commit, ratio, low, high, worse))
        found[key] = points
    return found


def text(rows: Mapping[tuple[str, ...], Sequence[Point]]) -> str:
    """A table for each kind, machine, section and number of ranks, ▼ for worse. At the end, what is worse."""
    parts, worse = [], []
    for part in dict.fromkeys(key[:4] for key in rows):
        kind, machine, section, ranks = part
        mine = {key[4:]: points for key, points in rows.items() if key[:4] == part}
        commits = list(dict.fromkeys(point.commit for points in mine.values() for point in points))
        body = []
        for (row, ours, peer), points in mine.items():
            shown = {point.commit: f"{number(point.ratio)}{' ▼' if point.worse else ''}" for point in points}
            body.append([row, ours, peer, *(shown.get(commit, "") for commit in commits)])
            worse += [(point, section, ranks, row, ours, peer, points[0]) for point in points if point.worse]
        parts += [f"{section}, {ranks} ranks, {kind}; {machine}", "", *table(["", "ours", "peer", *commits], body), ""]
    parts += [
        f"▼ {point.commit}: {section}, {ranks} ranks, {row}, {ours}: {peer} took {number(point.ratio)} of our time "
        f"({number(point.low)}–{number(point.high)}), {number(first.ratio)} at {first.commit}"
        for point, section, ranks, row, ours, peer, first in worse
    ]
    return "\n".join([*parts, *([] if worse else ["Nothing got worse beyond its noise."])])


def head() -> tuple[str, bool]:
    """(the commit that is checked out, is everything as committed?); ("", False) without git."""
    try:
        commit = _git("rev-parse", "--short=10", "HEAD")
        return commit, not _git("status", "--porcelain", "--untracked-files=no", "--", ".", *_IGNORED)
    except (OSError, subprocess.CalledProcessError):
        return "", False


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=HERE.parent, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def main(argv: Sequence[str] | None = None) -> int:
    """Show the history; the exit code is 1 if the newest commit is worse in a row."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--last", type=int, default=5, metavar="N", help="how many commits")
    parser.add_argument("--row", default="", metavar="TEXT", help="only rows with this in their name")
    parser.add_argument("--file", type=Path, default=FILE)
    args = parser.parse_args(argv)
    if not args.file.exists():
        print(f"{args.file} is not there yet: `make bench` begins it where everything is committed.")
        return 0
    rows = compare(read(args.file), args.last)
    rows = {key: points for key, points in rows.items() if args.row in " ".join(key)}
    print(text(rows))
    return int(any(points[-1].worse for points in rows.values()))


if __name__ == "__main__":
    sys.exit(main())
