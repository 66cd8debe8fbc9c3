"""Marks what is left to ``make test-all``."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest


def once_more(*values: object) -> Any:
    """Parameters of a test: what those beside them have shown, in another mixture; for thorough runs."""
    return pytest.param(*values, marks=pytest.mark.thorough)


def quick(values: Iterable[Any], *kept: Any) -> list[Any]:
    """Parameters of a test, of which all but these are for thorough runs."""
    return [value if value in kept else once_more(value) for value in values]


def diagonal(*axes: Iterable[Any], most: int = 1000) -> list[Any]:
    """All mixtures of these values as parameters of a test, of which all but a few are for thorough runs.

    The few are as many as the longest axis has values, and each value is in one of them at least; or ``most`` of these.
    """
    values = [list(axis) for axis in axes]
    few = {tuple(i % len(axis) for axis in values) for i in range(min(most, max(map(len, values))))}
    places = itertools.product(*(range(len(axis)) for axis in values))
    rows = {each: [axis[i] for axis, i in zip(values, each, strict=True)] for each in places}
    return [pytest.param(*row) if each in few else once_more(*row) for each, row in rows.items()]
