"""Deadlines of tests follow the machine: where a core's time comes late, each test has as many times as long."""

from __future__ import annotations

import time
from typing import Any

import pytest

_MEASURED_S = 0.1
_LIMIT_S = 60.0  # of a test that says nothing, as in pyproject.toml


def slowness(measured_s: float = _MEASURED_S) -> float:
    """How many times as long a thread takes for its core's time as on an idle machine; 1 at least."""
    begun, cpu = time.perf_counter(), time.thread_time()
    while time.thread_time() - cpu < measured_s:
        pass
    return max(1.0, (time.perf_counter() - begun) / measured_s)


def pytest_configure(config: pytest.Config) -> None:
    """Measured once, before there are workers, which would count as load."""
    given = getattr(config, "workerinput", {})
    config.stash[_KEY] = given["slowness"] if "slowness" in given else slowness()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Each worker is told."""
    node.workerinput["slowness"] = node.config.stash[_KEY]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each test's limit, or that of all."""
    for item in items:
        mark = item.get_closest_marker("timeout")
        limit_s, options = (mark.args[0], mark.kwargs) if mark is not None and mark.args else (_LIMIT_S, {})
        item.add_marker(pytest.mark.timeout(limit_s * config.stash[_KEY], **options), append=False)


_KEY = pytest.StashKey[float]()
