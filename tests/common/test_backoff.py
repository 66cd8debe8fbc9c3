"""Pauses double up to the longest, and end at the deadline."""

from __future__ import annotations

import time
from typing import Any

import pytest

from workbench.common import backoff
from workbench.common.backoff import Backoff


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were taken, on a clock that moves by them only."""
    taken: list[float] = []

    class Clock:
        """In the place of the module ``time``."""

        @staticmethod
        def monotonic() -> float:
            return sum(taken)

        @staticmethod
        def sleep(seconds: float) -> None:
            taken.append(seconds)

    module: Any = Clock
    monkeypatch.setattr(backoff, "time", module)
    return taken


def test_pauses_double_up_to_the_longest(clock: list[float]) -> None:
    """A quick answer is seen at once, a slow one costs few looks."""
    wait = Backoff(timeout_s=1.0, first_s=0.001, longest_s=0.005)
    for _ in range(5):
        assert wait.pause()
    assert clock == [0.001, 0.002, 0.004, 0.005, 0.005]


def test_nothing_pauses_past_the_deadline_twice(clock: list[float]) -> None:
    """The look after the last pause still counts; then it is over, without another pause."""
    wait = Backoff(timeout_s=0.25, first_s=0.1, longest_s=0.1)
    assert [wait.pause() for _ in range(5)] == [True, True, True, False, False]
    assert len(clock) == 3
    assert wait.over()


def test_it_keeps_real_time() -> None:
    """A tenth of a second is not less, and comes to an end."""
    begun, wait = time.monotonic(), Backoff(0.1)
    while wait.pause():
        pass
    assert time.monotonic() - begun >= 0.1
