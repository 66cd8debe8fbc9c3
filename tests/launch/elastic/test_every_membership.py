"""The membership of an elastic job in every order in which workers can come, die, end and be told of it.

``tests/helpers/membership_model.py`` says what may happen and what must hold: an epoch begins only when no living
worker is in an older one; its ranks fit; rank 0 has what was trained, if anybody has; and from every state all can end.
"""

from __future__ import annotations

import pytest
from membership_model import ElasticJob
from model_check import explore

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
