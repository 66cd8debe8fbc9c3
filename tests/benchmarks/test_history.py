"""``benchmarks/history.py``: what it keeps of a run, and when it calls a commit slower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from loading import load

history = load("history")
ABOUT = {"cpu": "A CPU", "cores": 2, "date": "2026-01-01T00:00:00+00:00"}


def result(ours: list[float], peer: list[float], name: str = "MPI.Allreduce", **more: Any) -> dict[str, Any]:
    """What a worker gives for one size."""
    seconds = {"workbench": ours, name: peer}
    case = {"title": "4 KiB", "seconds": seconds, "bytes": 4096, "images": 0}
    return {"section": "collectives", "ranks": 2, "ours": ["workbench"], "limit": "", "cases": [case]} | more


def run(commit: str, ratios: list[float], kind: str = "quick") -> list[Any]:
    """A run in which the peer took so many times our time, round by round."""
    found: list[Any] = history.lines(kind, ABOUT, [result([1.0] * len(ratios), ratios)], commit)
    return found


def test_a_run_is_read_as_it_was_written(tmp_path: Path) -> None:
    """What is appended comes back, in order and with its numbers; the second run adds no second head."""
    path = tmp_path / "history.csv"
    first, second = run("aaa", [2.0, 4.0, 3.0]), run("bbb", [2.0, 2.0, 2.0])
    history.append(path, first)
    history.append(path, second)
    assert history.read(path) == first + second
    assert (first[0].ours_ms, first[0].ratio, first[0].low, first[0].high) == (1000.0, 3.0, 2.5, 3.5)
    path.write_text(path.read_text() + "ccc,today\n")
    with pytest.raises(ValueError, match=r"history\.csv: .*ccc.* is no line of a history"):
        history.read(path)


def test_failed_workers_and_stand_ins_leave_no_line() -> None:
    """Only what was measured against a real peer is kept."""
    stand_in = result([1.0], [2.0], name=history.STAND_IN)
    failed = {"section": "training", "ranks": 2, "failed": "was not done"}
    assert history.lines("quick", ABOUT, [stand_in, failed], "aaa") == []


@pytest.mark.parametrize(
    ("ratios", "worse"),
    [
        ([2.0, 2.1, 2.2], False),  # as before
        ([1.7, 1.8, 2.5], False),  # slower in most rounds, within the noise
        ([1.0, 1.1, 1.2], True),  # the peer has gained on us
        ([3.0, 3.1, 3.2], False),  # faster
    ],
)
def test_worse_is_what_lies_below_the_noise(ratios: list[float], worse: bool) -> None:
    """A commit is marked if its upper quartile is below the lower quartiles of those before, and only then."""
    lines = [*run("aaa", [2.0, 2.2, 2.4]), *run("bbb", [1.9, 2.1, 2.2]), *run("ccc", ratios)]
    (points,) = history.compare(lines, last=5).values()
    assert [point.worse for point in points] == [False, False, worse]
    shown = history.text({("quick", "A CPU", "collectives", "2", "4 KiB", "workbench", "MPI"): points})
    assert ("▼ ccc: collectives, 2 ranks, 4 KiB, workbench: MPI took 1.10 of our time" in shown) is worse
    assert ("Nothing got worse beyond its noise." in shown) is not worse


def test_only_like_is_compared_with_like() -> None:
    """Runs of another kind are another row; runs of one commit are one point, and the last commits count."""
    lines = [*run("aaa", [9.0]), *run("bbb", [4.0]), *run("bbb", [2.0]), *run("ccc", [3.0]), *run("ccc", [1.0], "full")]
    rows = history.compare(lines, last=2)
    assert {key[0]: [(p.commit, p.ratio) for p in points] for key, points in rows.items()} == {
        "quick": [("bbb", 3.0), ("ccc", 3.0)],
        "full": [("ccc", 1.0)],
    }


def test_the_command_says_what_got_worse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A table with a column for each commit; the exit code is 1 if the newest is worse, 0 without a history."""
    path = tmp_path / "history.csv"
    assert history.main(["--file", str(path)]) == 0
    history.append(path, run("aaa", [2.0]) + run("bbb", [1.0]))
    assert history.main(["--file", str(path)]) == 1
    assert "| 4 KiB | workbench | MPI.Allreduce | 2.00 | 1.00 ▼ |" in capsys.readouterr().out
    assert history.main(["--file", str(path), "--row", "no such row"]) == 0
