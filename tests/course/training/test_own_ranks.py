"""A small network on ranks that run: what lesson 16 times there, and sends by a schedule."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

import workbench
from workbench.course.schedules.messages import Messages, in_turn
from workbench.course.training.own_ranks import SIZES, network, repeated, sent_by, trained
from workbench.simulate.steps import Span

WEIGHTS = [a * b for a, b in itertools.pairwise(SIZES)]
LAYERS = [
    Span("update", 1e-3, 0.0, 0),
    *(Span(f"{i}", 1e-3, 2e-3, n) for i, n in enumerate(WEIGHTS)),
    Span("loss", 0, 0, 0),
]


def in_thirds(layers: Sequence[Span], reduce_s: Any) -> Messages:
    """Each layer in three messages, the first one's first."""
    whole = [message[0] for message in in_turn(layers)[::-1]]
    return [[(i, n * part // 3, n * (part + 1) // 3)] for i, _, n in whole for part in range(3)]


@pytest.mark.parametrize("n", [1, 2, 3])
def test_sums_are_those_of_plain_allreduces(n: int) -> None:
    """On every rank, whose batches differ; the schedule is called there, and its messages are counted."""
    found = workbench.run_threads(n, lambda: sent_by(in_thirds, LAYERS, lambda nbytes: 1e-4))
    assert [(one["right"], one["messages"]) for one in found] == [(True, 9)] * n


def test_a_schedule_that_loses_a_piece_is_refused() -> None:
    """Before anything is sent, with the gradients that are missing."""

    def loses_one(layers: Sequence[Span], reduce_s: Any) -> Messages:
        return in_thirds(layers, reduce_s)[:-1]

    with pytest.raises(Exception, match="are in no message"):
        workbench.run_threads(1, lambda: sent_by(loses_one, LAYERS, lambda nbytes: 1e-4))


def test_times_are_the_slowest_rank_s() -> None:
    """So they are equal on all ranks, and as many as asked."""

    def timed() -> tuple[Any, float, int]:
        return repeated(4000, rounds=3), trained(steps=3), sum(each.numel() for each in network().parameters())

    first, second = workbench.run_threads(2, timed)
    assert first == second
    (nbytes, seconds), step_s, values = first
    assert (nbytes, len(seconds), values) == (4000, 3, sum(WEIGHTS))
    assert min(seconds) > 0
    assert step_s > 0
