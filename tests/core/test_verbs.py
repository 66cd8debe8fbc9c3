"""A verb has a line in every table, so that none gets another one's treatment."""

from __future__ import annotations

import pytest

from workbench.core.execute import STEPS
from workbench.core.messages import Kind, ReduceOp, Response
from workbench.core.verbs import OTHERS, VERBS, goes_without_joined, verb
from workbench.training.derivatives import DERIVATIVES

ABOUT_THE_JOB = {Kind.JOIN, Kind.ADD_SET, Kind.REMOVE_SET, Kind.SHUTDOWN, Kind.STACKS, Kind.RENUMBER}


def test_every_kind_is_a_verb_or_about_the_job() -> None:
    """A new kind is one or the other, and says so."""
    assert set(VERBS) | ABOUT_THE_JOB == set(Kind)
    assert not set(VERBS) & ABOUT_THE_JOB
    assert all(verb(kind) is OTHERS for kind in ABOUT_THE_JOB)


def test_every_verb_that_moves_data_has_its_steps_and_its_derivative() -> None:
    """The three tables have the same verbs; a barrier moves nothing."""
    moves = set(VERBS) - {Kind.BARRIER}
    assert set(STEPS) | {Kind.ALLREDUCE} == moves
    assert set(DERIVATIVES) == moves


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("op", list(ReduceOp))
def test_ranks_that_have_joined_are_left_out_where_zeros_are_neutral(kind: Kind, op: ReduceOp) -> None:
    """Sums and averages go on without them, and barriers; nothing else does."""
    neutral = kind is Kind.ALLREDUCE and op in (ReduceOp.SUM, ReduceOp.AVERAGE)
    assert goes_without_joined(Response("x", kind, op=op)) == (neutral or kind is Kind.BARRIER)
