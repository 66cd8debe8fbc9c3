"""The same contract in ranks that are threads of one process, where the framework allows it."""

from __future__ import annotations

import pytest
from frameworks.checks import VERBS, Check, cases
from frameworks.list_checks import LISTS
from frameworks.modes import AMONG_THREADS, Mode
from frameworks.test_framework_ranks import name

import workbench


@pytest.mark.parametrize(("mode", "check"), cases(AMONG_THREADS, [*VERBS, *LISTS]), ids=name)
def test_among_threads(mode: type[Mode], check: Check) -> None:
    """Each check holds on both of two threads."""
    workbench.run_threads(2, lambda: check(mode()), timeout_s=20)
