"""Producers, consumers and our own stream are late, and memory is let go early: results are right nevertheless."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from gpu_running import WAYS, marks, results

if TYPE_CHECKING:
    from gpu_running import Runner

pytestmark = [*marks(), pytest.mark.timeout(200)]


def test_a_thousand_rounds_on_one_rank(jobs: Runner) -> None:
    """With short delays of chance length, which is where a race would show."""
    assert results(jobs, 1, "nccl", "late", "--rounds", "1000", deadline_s=180.0) == [{"wrong": 0}]


@pytest.mark.parametrize("way", WAYS)
def test_rounds_on_two_ranks(jobs: Runner, way: str) -> None:
    """Each rank with delays of its own."""
    assert results(jobs, 2, way, "late", "--rounds", "500", deadline_s=180.0) == [{"wrong": 0}] * 2


@pytest.mark.parametrize(("ranks", "way"), [(1, "nccl"), (1, "staged"), (2, "nccl"), (2, "staged")])
def test_rounds_with_long_delays(jobs: Runner, ranks: int, way: str) -> None:
    """Longer than anything that Python does meanwhile: the waits are made by streams, and none is missing."""
    right = dict.fromkeys(["ready", "done", "memory", "keep", "in_place"], 0)
    assert results(jobs, ranks, way, "late", "--leave-out", "nothing") == [right] * ranks


@pytest.mark.parametrize("wait", ["ready", "done", "memory", "keep"])
def test_every_wait_is_needed(jobs: Runner, wait: str) -> None:
    """The rounds above are worth something: without any one of the four waits the round that needs it goes wrong."""
    (found,) = results(jobs, 1, "nccl", "late", "--leave-out", wait)
    assert found[wait] > 0


def test_results_lie_in_the_pool_of_the_callers_stream(jobs: Runner) -> None:
    """Of the default stream, too: else their memory could be another stream's before the caller is done with it."""
    assert results(jobs, 1, "nccl", "late", "--pools") == [{"default": True, "side": True}]
