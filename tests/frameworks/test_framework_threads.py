"""The same contract in ranks that are threads of one process, where the framework allows it."""

from __future__ import annotations

import pytest
from checks import VERBS, Check, cases
from frameworks.test_framework_ranks import name
from list_checks import LISTS, local_gradients_of_a_rank_outside_are_whole
from modes import AMONG_THREADS, Mode

import workbench


@pytest.mark.parametrize(("mode", "check"), cases(AMONG_THREADS, [*VERBS, *LISTS]), ids=name)
def test_among_threads(mode: type[Mode], check: Check) -> None:
    """Each check holds on both of two threads."""
    workbench.run_threads(2, lambda: check(mode()), timeout_s=20)


@pytest.mark.parametrize(
    ("mode", "check"), cases(AMONG_THREADS, [local_gradients_of_a_rank_outside_are_whole]), ids=name
)
def test_among_three_threads(mode: type[Mode], check: Check) -> None:
    """What two ranks cannot tell holds on three."""
    workbench.run_threads(3, lambda: check(mode()), timeout_s=20)
