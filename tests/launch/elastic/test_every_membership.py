"""The membership of an elastic job in every order in which workers can come, die, end and be told of it.

``tests/helpers/membership_model.py`` says what may happen and what must hold: an epoch begins only when no living
worker is in an older one; its ranks fit; rank 0 has what was trained, if anybody has; and from every state all can end.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from membership_model import ElasticJob
from model_check import Violation, explore

from workbench.launch.elastic.membership import Membership, Out

pytestmark = pytest.mark.long


def look(job: ElasticJob, at_least: int) -> None:
    """Go through all states of a job; there must be so many, for a model in which nothing happens shows nothing."""
    found = explore(job.start, job.actions, job.is_final)
    assert found.states >= at_least
    assert found.finals


@pytest.mark.parametrize(
    ("words", "at_least"),
    [
        ({"first": 2, "deaths": 1}, 200),
        ({"first": 2, "later": 1}, 400),
        ({"first": 2, "later": 1, "deaths": 1}, 2_000),
        ({"first": 2, "later": 1, "leaves": 1}, 1_000),
        ({"first": 3, "deaths": 1}, 1_000),
        ({"first": 2, "later": 1, "most": 2, "deaths": 1}, 1_000),
        ({"first": 2, "withdrawals": 2}, 200),
        ({"first": 2, "deaths": 1, "withdrawals": 1}, 500),
    ],
    ids=str,
)
def test_workers_come_and_go(words: dict[str, int], at_least: int) -> None:
    """One dies, one joins, one leaves, one gives up waiting."""
    look(ElasticJob(**words), at_least)


@pytest.mark.thorough
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "words",
    [
        {"first": 3, "later": 1, "deaths": 1},
        {"first": 3, "later": 1, "deaths": 2},
        {"first": 3, "later": 2},
        {"first": 2, "later": 1, "deaths": 1, "withdrawals": 1},
        {"first": 2, "later": 1, "deaths": 1, "leaves": 1},
    ],
    ids=str,
)
def test_more_workers_come_and_go(words: dict[str, int]) -> None:
    """Two die, two join."""
    look(ElasticJob(**words), 10_000)


class DoesNotWait(Membership):
    """A bug: an epoch begins although members have not come."""

    def awaited(self) -> list[int]:
        return []


class ForgetsTheLost(Membership):
    """A bug: the others are not told of a lost rank, and nobody goes on because of it."""

    def gone(self, worker: int, why: str) -> Out:
        self._workers.pop(worker, None)
        return []


class NewcomersFirst(Membership):
    """A bug: a newcomer may become rank 0."""

    def _by_host(self, workers: list[int]) -> list[int]:
        return workers[::-1]


class TrustsNewcomers(Membership):
    """A bug: who has joined counts as one that has what was trained, before its first sync."""

    def _begin(self, workers: list[int]) -> Out:
        told = super()._begin(workers)
        for each in workers:
            self._workers[each].trained = True
        return told


class NeverAnnounces(Membership):
    """A bug: a worker that is to leave is forgotten at once, and the others do not hear of it."""

    def leave(self, workers: Iterable[int]) -> Out:
        for worker in workers:
            self._workers.pop(worker, None)
        return []


@pytest.mark.parametrize(
    ("bug", "words", "told"),
    [
        (DoesNotWait, {"first": 2, "later": 1}, "in an older one"),
        (ForgetsTheLost, {"first": 2, "deaths": 1}, "no way out"),
        (NewcomersFirst, {"first": 1, "later": 1}, "have what was trained"),
        (TrustsNewcomers, {"first": 2, "later": 1, "deaths": 1, "leaves": 1}, "have what was trained"),
        (NeverAnnounces, {"first": 2, "leaves": 1}, "no way out"),
    ],
)
def test_a_bug_is_found(bug: type[Membership], words: dict[str, int], told: str) -> None:
    """The model shows each of these bugs."""
    with pytest.raises(Violation, match=told):
        look(ElasticJob(**words, make=bug), 1)
