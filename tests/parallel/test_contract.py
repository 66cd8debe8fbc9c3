"""The contract of the verbs and of the gradients of a step, for torch; for numpy in ``tests/threads``.

Other frameworks keep it too: ``tests/frameworks``.
"""

from __future__ import annotations

import pytest
from checks import VERBS, Check, cases
from modes import Mode, Torch


def name(value: object) -> str:
    """How a case is called."""
    return str(getattr(value, "name", None) or getattr(value, "__name__", value))


@pytest.mark.parametrize(("mode", "check"), cases([Torch], VERBS), ids=name)
def test_contract(mode: type[Mode], check: Check) -> None:
    """Each check of ``checks.py`` holds on every rank."""
    check(mode())
