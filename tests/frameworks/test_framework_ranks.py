"""The contract of the verbs and of the gradients of a step, in every framework and every way in which it runs."""

from __future__ import annotations

import pytest
from checks import VERBS, Check, cases
from list_checks import LISTS
from modes import MODES, Mode, Torch

OTHERS = [mode for mode in MODES if mode not in (Mode, Torch)]  # these two are in tests/parallel


def name(value: object) -> str:
    """How a case is called."""
    return str(getattr(value, "name", None) or getattr(value, "__name__", value))


@pytest.mark.parametrize(("mode", "check"), cases(OTHERS, VERBS), ids=name)
def test_verbs(mode: type[Mode], check: Check) -> None:
    """Each check of ``checks.py`` holds on every rank."""
    check(mode())


@pytest.mark.parametrize(("mode", "check"), cases(OTHERS, LISTS), ids=name)
def test_gradients_of_a_step(mode: type[Mode], check: Check) -> None:
    """Each check of ``list_checks.py`` holds on every rank."""
    check(mode())
