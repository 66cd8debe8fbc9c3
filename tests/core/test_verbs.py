"""Every kind is a verb or about the job. ``tests/training/test_derivatives.py`` says what else a verb must have."""

from __future__ import annotations

import pytest

from workbench.core.agreement import goes_without_joined
from workbench.core.messages import Response
from workbench.core.verbs import OTHERS, VERBS, Kind, ReduceOp, verb

MESSAGES = {Kind.SEND, Kind.SOURCE}  # between two ranks
ABOUT_THE_JOB = {Kind.JOIN, Kind.ADD_SET, Kind.REMOVE_SET, Kind.SHUTDOWN}
ABOUT_THE_JOB |= {Kind.STACKS, Kind.RENUMBER, Kind.TUNE, Kind.SLOTS}


def test_every_kind_is_a_verb_or_about_the_job() -> None:
    """A new kind is one or the other, and says so."""
    unknown = [kind.value for kind in Kind if kind not in {*VERBS, *ABOUT_THE_JOB, *MESSAGES}]
    assert not unknown, f"{', '.join(unknown)}: no line in VERBS of workbench/core/verbs.py"
    assert not set(VERBS) & ABOUT_THE_JOB
    assert all(verb(kind) is OTHERS for kind in ABOUT_THE_JOB)


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("op", list(ReduceOp))
def test_ranks_that_have_joined_are_left_out_where_zeros_are_neutral(kind: Kind, op: ReduceOp) -> None:
    """Sums and averages go on without them, and barriers; nothing else does."""
    neutral = kind is Kind.ALLREDUCE and op in (ReduceOp.SUM, ReduceOp.AVERAGE)
    assert goes_without_joined(Response("x", kind, op=op)) == (neutral or kind is Kind.BARRIER)
