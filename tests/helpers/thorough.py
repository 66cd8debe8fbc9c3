"""Marks what is left to ``make test-all``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def once_more(*values: object) -> Any:
    """Parameters of a test: what those beside them have shown, in another mixture; for thorough runs."""
    return pytest.param(*values, marks=pytest.mark.thorough)


def quick(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Parameters of a test, of which all but these are for thorough runs."""
    return [value if value in kept else once_more(value) for value in values]
