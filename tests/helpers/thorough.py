"""Marks what is left to ``make test-all``."""

from __future__ import annotations

from typing import Any

import pytest


def once_more(*values: object) -> Any:
    """Parameters of a test: what those beside them have shown, in another mixture; for thorough runs."""
    return pytest.param(*values, marks=pytest.mark.thorough)
