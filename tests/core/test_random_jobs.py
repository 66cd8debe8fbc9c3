"""Jobs drawn by a seed: no rank waits for ever, whatever mistake was made, and a job without one gets no error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from random_jobs import draw_job
from thorough import once_more

from workbench.core import coordinator
from workbench.core.coordinator import Error, WaitingNames
from workbench.core.messages import Key
from workbench.runtime.faults import supervision
from workbench.runtime.faults.deadlock_detection import Attendance, Missed

JOBS = [range(120), once_more(range(120, 12_000))]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seeds", JOBS, ids=str)
def test_right_jobs_get_no_error(seeds: range) -> None:
    """Ranks submit in any order and wait in any order, are late or fast: nothing fails, and all leave together."""
    for seed in seeds:
        job = draw_job(seed, right=True)
        job.run()
        assert [error for rank in job.ranks for error in rank.errors] == [], f"seed {seed}"


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seeds", JOBS, ids=str)
def test_no_mistake_makes_ranks_wait_for_ever(seeds: range) -> None:
    """Groups, orders and objects that differ, joins, exceptions that are caught or not, early ends: waits end."""
    for seed in seeds:
        draw_job(seed, right=False).run()


class KnowsNoGroups(WaitingNames):
    """A bug: what was in a group with a name that failed still waits for it, and nobody is missed."""

    def all_missing(self) -> dict[Key, list[int]]:
        return {key: self.missing(key) for key in self}

    def related(self, key: Key) -> list[Key]:
        return [key]


class SeesNoCycle(Attendance):
    """A bug: ranks that wait for each other are not found."""

    def _cycle(self, waiting: Mapping[Key, Missed], now: float) -> dict[Key, Error]:
        return {}


class Hasty(Attendance):
    """A bug: a rank that waits counts as one that never comes."""

    def unsatisfiable(self, waiting: Mapping[Key, Missed], now: float) -> dict[Key, Error]:
        return {key: ("MissingRanksError", "hasty") for rank in self._blocked for key in waiting}


def test_a_bug_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The search finds each of these; so it would find others."""

    def found(right: bool, where: Any, name: str, bug: type) -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(where, name, bug)
            for seed in range(400):
                job = draw_job(seed, right)
                try:
                    job.run()
                except (AssertionError, KeyError):  # it stands, or the coordinator's own validate() finds it
                    return True
                if right and any(rank.errors for rank in job.ranks):
                    return True
        return False

    assert found(False, coordinator, "WaitingNames", KnowsNoGroups)
    assert found(False, supervision, "Attendance", SeesNoCycle)
    assert found(True, supervision, "Attendance", Hasty)
