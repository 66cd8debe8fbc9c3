"""The contract of the verbs and of the gradients of a step, in every framework and every way in which it runs."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import pytest
from checks import VERBS, Check, cases
from list_checks import LISTS
from modes import MODES, Mode, Torch
from thorough import once_more

# These two are in tests/parallel.
OTHERS = sorted((mode for mode in MODES if mode not in (Mode, Torch)), key=lambda mode: mode.module)


def name(value: object) -> str:
    """How a case is called."""
    return str(getattr(value, "name", None) or getattr(value, "__name__", value))


IN_EACH = {
    "allreduce_is_the_closed_form", "a_group_is_as_its_members", "allgather_is_concatenation",
    "broadcast_is_the_root_s", "alltoall_sends_where_splits_say", "reducescatter_in_groups_with_factors",
    "objects_travel", "a_mismatch_is_said_to_all", "allreduce_has_a_derivative", "allgather_has_a_derivative",
    "broadcast_has_a_derivative", "alltoall_has_a_derivative", "reducescatter_has_a_derivative",
}  # fmt: skip
"""What binds a verb to a framework: these are checked in each. Of all others one framework shows it, in turns."""


def in_turns(checks: Iterable[Check]) -> list[Any]:
    """Every check with every mode; but where thorough tests run, with one mode, or one of each framework, in turns."""
    rows = []
    for i, check in enumerate(checks):
        groups = [list(modes) for _, modes in groupby(cases(OTHERS, [check]), lambda case: case[0].module)]
        for j, able in enumerate(groups):
            kept = able[i % len(able)] if check.__name__ in IN_EACH or j == i % len(groups) else None
            rows += [case if case is kept else once_more(*case) for case in able]
    return rows


@pytest.mark.parametrize(("mode", "check"), in_turns(VERBS), ids=name)
def test_verbs(mode: type[Mode], check: Check) -> None:
    """Each check of ``checks.py`` holds on every rank."""
    check(mode())


@pytest.mark.parametrize(("mode", "check"), in_turns(LISTS), ids=name)
def test_gradients_of_a_step(mode: type[Mode], check: Check) -> None:
    """Each check of ``list_checks.py`` holds on every rank."""
    check(mode())
