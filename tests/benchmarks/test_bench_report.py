"""``benchmarks/bench.py``: its arithmetic, its tables, and a whole run that is too short to mean anything."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loading import BENCHMARKS, load

if TYPE_CHECKING:
    from running import Runner

PEERS = {
    "collectives": {
        "workbench in place",
        "workbench allreduce_ (any tensor)",
        "MPI.Allreduce",
        "Gloo",
        "Python ring over Sendrecv",
        "memcpy",
        "Horovod",
    },
    "verbs": {"workbench", "MPI", "MPI, same result array", "Gloo", "Horovod"},
    "many": {"workbench", "MPI.Iallreduce, Waitall", "Gloo", "Horovod"},
    "training": {"independent copies", "workbench", "workbench sharded", "nano", "DDP", "DDP tuned", "Horovod"},
}


figures, report = load("figures"), load("report")


def case(title: str = "4 KiB", images: int = 0, **seconds: list[float]) -> dict[str, Any]:
    """What a worker gives for one size or model."""
    return {"title": title, "seconds": seconds, "bytes": 4096, "images": images}


def result(*cases: dict[str, Any], section: str = "collectives", **more: Any) -> dict[str, Any]:
    """What a worker prints."""
    base = {"section": section, "ranks": 2, "ours": ["ours"], "limit": "limit", "cases": list(cases), "absent": {}}
    return base | more


def machine(others_percent: float = 1.0) -> dict[str, Any]:
    """What the driver knows about the machine."""
    loads = {"load_before": [0.5, 0.25, 0.1], "load_after": [2.0, 1.0, 0.5]}
    about = {"cpu": "A CPU", "cores": 2, "memory_gib": 8.0, "system": "Linux", "mpi": "MPICH", "date": "today"}
    return about | loads | {"versions": {"python": "3.11"}, "others_percent": others_percent}


# --- arithmetic ---------------------------------------------------------------------------------------


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=30))
def test_quartiles_are_in_order_and_hold_the_median(values: list[float]) -> None:
    """low ≤ median ≤ high, and the median is that of the library."""
    found = figures.quartiles(values)
    assert found.low <= found.median <= found.high
    assert found.median == pytest.approx(statistics.median(values))


def test_everybody_takes_every_place() -> None:
    """In as many rounds as peers each peer has had each place once."""
    names = ["a", "b", "c", "d"]
    orders = [figures.rotated(names, turn) for turn in range(len(names))]
    assert [sorted(column) for column in zip(*orders, strict=True)] == [names] * 4


def test_ratios_survive_a_machine_that_drifts() -> None:
    """A peer that always takes twice as long has the ratio 2, however slow the machine becomes from round to round."""
    drift = [1.0, 10.0, 3.0, 100.0]
    seconds = {"ours": drift, "peer": [2 * each for each in drift]}
    assert figures.ratios(seconds, "ours")["peer"] == figures.Quartiles(2.0, 2.0, 2.0)
    assert figures.ratios(seconds, "peer")["ours"].median == 0.5


def test_the_limit_is_never_the_best() -> None:
    """``best`` is the fastest of those that compete."""
    assert figures.best(case(limit=[0.1], ours=[2.0], peer=[1.0]), "limit") == "peer"


def test_winners_are_the_faster_ones_in_order() -> None:
    """Only others that are faster than ours, the fastest first."""
    found = figures.winners(
        case(ours=[2.0], slow=[3.0], quick=[1.0], quickest=[0.5]), "ours", ["slow", "quick", "quickest"]
    )
    assert list(found) == ["quickest", "quick"]
    assert found["quick"].median == 0.5


@given(st.floats(1e-6, 1e6))
def test_numbers_keep_three_digits(value: float) -> None:
    """A number in a table is within half a percent of what was measured, and has no exponent."""
    text = report.number(value)
    assert "e" not in text
    assert float(text) == pytest.approx(value, rel=0.0051)


# --- texts --------------------------------------------------------------------------------------------


def test_a_table_has_every_peer_and_marks_the_best() -> None:
    """A column for each peer, the limit called that, the fastest in bold and named at the end."""
    lines = report.section(result(case(ours=[0.002], peer=[0.001], limit=[0.0005])), cores=2)
    assert "| ms | ours | peer | limit (limit) | best |" in lines
    row = next(line for line in lines if line.startswith("| 4 KiB"))
    assert row == "| 4 KiB | 2.00 (2.00–2.00) | **1.00 (1.00–1.00)** | 0.500 (0.500–0.500) | peer |"


def test_a_peer_that_wins_is_said_to_win() -> None:
    """Where others are faster stands in a sentence, and a limit does not win; noise is called noise."""
    cases = [
        case("4 KiB", ours=[4.0] * 3, peer=[1.0] * 3, limit=[0.1] * 3),
        case("1 MiB", ours=[1.0] * 3, peer=[2.0] * 3),
    ]
    assert report.wins(cases, "ours", ["peer"]) == "- Where a peer wins over `ours`: 4 KiB: peer (0.250 of our time)."
    doubtful = case(ours=[1.0] * 5, peer=[0.5, 0.9, 0.9, 1.5, 1.5])
    assert "peer (0.900 of our time, within the noise)" in report.wins([doubtful], "ours", ["peer"])
    assert report.wins(cases[1:], "ours", ["peer"]).endswith("nowhere here.")


def test_training_is_told_in_images_and_shares_of_the_limit() -> None:
    """Images per second from a round's images, the share round by round."""
    one = case("CNN", images=100, ours=[2.0, 4.0], peer=[4.0, 8.0], limit=[1.0, 2.0])
    text = "\n".join(report.section(result(one, section="training"), cores=2))
    assert "| CNN | **33.3, 50 % (50–50)** | 16.7, 25 % (25–25) | 66.7 | ours |" in text


def test_what_is_missing_or_failed_is_said() -> None:
    """An absent peer has a line with the reason, a failed worker its last words; the rest is still there."""
    failed = {"section": "training", "ranks": 2, "failed": "was not done after 60 s"}
    good = result(case(ours=[1.0], limit=[0.5]), absent={"Horovod": "not importable here"})
    text = report.markdown("quick", machine(), [good, failed])
    assert "Not here: Horovod: not importable here." in text
    assert "training, 2 ranks: failed" in text
    assert "was not done after 60 s" in text


@pytest.mark.parametrize(("percent", "warns"), [(1.0, False), (40.0, True)])
def test_a_busy_machine_is_named(percent: float, warns: bool) -> None:
    """The share of other processes is always said; a large one is a warning."""
    text = "\n".join(report.about(machine(percent)))
    assert f"Other processes took {percent:g} %" in text
    assert ("do not read small differences" in text) is warns


# --- the ranks ----------------------------------------------------------------------------------------


@pytest.mark.parallel
def test_ranks_that_hang_are_ended(tmp_path: Path, new_children: Callable[[], list[psutil.Process]]) -> None:
    """At the deadline the ranks are killed, though they are in other process groups, and the error names the script."""
    children = load("children")
    script = tmp_path / "hangs.py"
    # One write for a line, whatever the buffering: two ranks share the pipe.
    script.write_text("import os, time\nos.write(1, b'here\\n')\ntime.sleep(600)\n")
    begun = time.monotonic()
    with pytest.raises(children.ChildError, match=r"hangs\.py with 2 ranks was not done in time \(12 s\):\n(here\n)+"):
        children.run(2, script, [], 12.0)
    assert time.monotonic() - begun < 50
    assert new_children() == []


@pytest.mark.parallel
@pytest.mark.usefixtures("by_mpiexec")
def test_ranks_that_fail_are_quoted(tmp_path: Path) -> None:
    """What they wrote last is in the error."""
    children = load("children")
    script = tmp_path / "fails.py"
    script.write_text("raise ArithmeticError('a wrong sum')\n")
    with pytest.raises(children.ChildError, match=r"(?s)ended with exit code 1.*a wrong sum"):
        children.run(2, script, [], 30.0)


RIVALS = """
import json, sys
print("a library's own words")
for name in ("workbench", "one that fails", "the last"):
    if name not in sys.argv:
        print("The turn of:", name, file=sys.stderr, flush=True)
        if name in ("one that fails", "workbench" * ("--broken" in sys.argv)):
            raise OSError("not with this model")
print(json.dumps({"section": "rivals", "absent": {"another": "not importable here"}, "cases": []}))
print("and the same at its end")
"""


@pytest.mark.parallel
@pytest.mark.usefixtures("by_mpiexec")
def test_a_rival_that_ends_the_ranks_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are measured without it; if one of ours fails, the run has failed."""
    bench = load("bench")
    monkeypatch.setattr(bench, "HERE", tmp_path)
    (tmp_path / "rivals.py").write_text(RIVALS)
    found = bench.measure(1, "rivals", ["--models", "mlp"], 60.0, None)
    why = "ended the ranks: OSError: not with this model"
    assert found["absent"] == {"another": "not importable here", "one that fails": why}
    assert "not with this model" in bench.measure(1, "rivals", ["--broken"], 60.0, None)["failed"]


@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.parallel
@pytest.mark.timeout(240)
@pytest.mark.thorough
def test_a_short_run_has_all_peers(jobs: Runner, tmp_path: Path) -> None:
    """The driver, on two ranks: all sums right, three files, and every peer measured or said to be absent."""
    job = jobs.python(str(BENCHMARKS / "bench.py"), "--smoke", "--ranks", "2", "--out", str(tmp_path), deadline_s=220.0)
    assert job.code == 0, job.report()
    assert not job.left, job.report()
    everything = json.loads((tmp_path / "bench-smoke.json").read_text())
    text, picture = (tmp_path / "bench-smoke.md").read_text(), (tmp_path / "bench-smoke.svg").read_text()
    results = {each["section"]: each for each in everything["results"] if "cases" in each}
    for section, peers in PEERS.items():
        found = results[section]
        for one in found["cases"]:
            assert peers <= set(one["seconds"]) | set(found["absent"])
            assert all(second > 0 for seconds in one["seconds"].values() for second in seconds)
            assert set(one["summary"]["ratio_to"]) == set(found["ours"])
        assert all(peer in text for peer in peers)
        assert section in ("many", "verbs") or all(peer in picture for peer in set(one["seconds"]))
    idle = {each["library"]: each for each in everything["results"] if "library" in each}
    assert {name: len(each["idle_percent"]) for name, each in idle.items()} == {"workbench": 2, "gloo": 2}
    assert {name: len(each) for name, each in idle["workbench"]["step_ms"].items()} == {
        "engine": 2,
        "caller": 2,
        "coordinator": 1,
    }
    assert "Where a peer wins over" in text
    assert everything["machine"]["cores"] >= 1
    assert everything["machine"]["copy_gb_s"] > 0.1
    assert 0 < everything["machine"]["flag_us"] < 1000
    assert picture.lstrip().startswith("<?xml")
