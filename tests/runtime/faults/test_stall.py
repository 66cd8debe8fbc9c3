"""The stall inspector: says who keeps the others waiting, not too early and not too often."""

from __future__ import annotations

import pytest
from coordination import Coordinator

from workbench.core.messages import Announce, Kind, Request
from workbench.runtime.events import Overdue
from workbench.runtime.faults.stall import Stalled, StallInspector


def test_a_warning_names_ranks_and_tensors() -> None:
    """Each rank that is waited for has a line with what it has not submitted; those that came have none."""
    waiting = {"a": Stalled(0.0, (1, 3)), "b": Stalled(0.0, (3,)), "young": Stalled(9.0, (2,))}
    report = StallInspector(warning_s=10.0, shutdown_s=0.0).report(waiting, now=10.0)
    assert report.splitlines()[1:] == ["Missing ranks:", "1: [a]", "3: [a, b]"]
    assert "10 seconds" in report


def test_it_is_said_once_per_period() -> None:
    """Nothing before the age, then a warning, and the next one only a whole period later."""
    inspector, waiting = StallInspector(warning_s=10.0, shutdown_s=0.0), {"x": Stalled(0.0, (1,))}
    times = [0.0, 9.9, 10.0, 10.1, 19.9, 20.0, 25.0, 30.0]
    assert [now for now in times if inspector.report(waiting, now)] == [10.0, 20.0, 30.0]


def test_zero_turns_it_off() -> None:
    """With warning_s 0 nothing is reported, with shutdown_s 0 nothing fails, however long it takes."""
    inspector = StallInspector(warning_s=0.0, shutdown_s=0.0)
    assert inspector.report({"x": Stalled(0.0, (1,))}, now=1e9) == ""
    assert not inspector.expired(Stalled(0.0, (1,)), now=1e9)


@pytest.mark.parametrize("grouped", [False, True])
def test_what_stalls_for_too_long_fails_for_all(grouped: bool) -> None:
    """After shutdown_s the tensor ends with a DeadlineError that names the missing rank; younger ones go on waiting."""
    coordinator = Coordinator(3, stall=StallInspector(warning_s=1.0, shutdown_s=5.0))
    fields = {"group": "g", "group_size": 2} if grouped else {}
    old = [Request(name, Kind.ALLREDUCE, "int8", (1,), **fields) for name in "ab"]
    for rank in (0, 2):
        coordinator.take(Announce(rank, tuple(old)), 0.0)
    coordinator.take(Announce(0, (Request("young", Kind.BARRIER),)), 4.0)
    report, out = coordinator.stalled(4.9)
    assert report.endswith("Missing ranks:\n1: [a, b]")
    assert out == []
    report, out = coordinator.stalled(5.0)
    assert report == "", "it has been said"
    assert sorted(response.name for response in out) == ["a", "b"]
    for response in out:
        assert response.error[0] == "DeadlineError"
        assert "rank 1" in response.error[1]
    assert list(coordinator.waiting()) == ["young"]


@pytest.mark.parametrize("grouped", [False, True])
def test_what_is_overdue_on_one_rank_fails_for_all(grouped: bool) -> None:
    """Whoever waits is told for whom, with the time that ran out; what all have announced is not concerned."""
    coordinator = Coordinator(3)
    fields = {"group": "g", "group_size": 2} if grouped else {}
    late = [Request(name, Kind.ALLREDUCE, "int8", (1,), **fields) for name in "ab"]
    for rank in (0, 2):
        coordinator.take(Announce(rank, tuple(late)), 0.0)
    coordinator.take(Announce(1, (late[0],)), 0.0)
    out = coordinator.take(Overdue(2, 0, "b", 1.5), 1.5)
    assert sorted(response.name for response in out) == (["a", "b"] if grouped else ["b"])
    for response in out:
        kind, text = response.error
        assert kind == "DeadlineError"
        assert text.startswith(f"{response.name!r}, submitted by ") or grouped
        assert "has waited for rank 1, longer than the timeout of 1.5 s that rank 2 has set" in text
    assert coordinator.take(Overdue(0, 0, "b", 1.5), 1.6) == []
    assert coordinator.waiting() == {}
