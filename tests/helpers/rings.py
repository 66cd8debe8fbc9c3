"""The first ring: the tests that start no process (``--no-processes``, as ``make quick`` says).

What has a marker that says so is left out beforehand. Any other test that starts a process is skipped as soon as it
tries, so nobody has to keep a list.
"""

from __future__ import annotations

import os
import subprocess
from typing import Any

import pytest

# A test with one of these markers starts processes, or takes long.
OTHER_RINGS = {"long", "process", "parallel", "integration", "slow", "thorough", "engines", "pods", "gpu"}
# Replaced, and not watched by an audit hook: such a hook is called amid sys.settrace(), which some tests use.
STARTS = [(subprocess.Popen, "__init__"), *((os, name) for name in ("fork", "forkpty", "posix_spawn", "system"))]


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option."""
    parser.addoption("--no-processes", action="store_true", help="only tests that start no process: make quick")


def pytest_configure(config: pytest.Config) -> None:
    """A test that is broken off leaves files and sockets open, of which a later one would hear."""
    if config.getoption("--no-processes"):
        config.addinivalue_line("filterwarnings", "ignore::pytest.PytestUnraisableExceptionWarning")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the other rings."""
    if not config.getoption("--no-processes"):
        return
    others = [item for item in items if OTHER_RINGS & {mark.name for mark in item.iter_markers()}]
    config.hook.pytest_deselected(items=others)
    left_out = set(others)
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish(session: pytest.Session) -> None:
    """From now on no process is started. While the tests were collected some asked programs for their versions."""
    if session.config.getoption("--no-processes"):
        for owner, name in STARTS:
            setattr(owner, name, _skip)


def _skip(*_: Any, **__: Any) -> None:
    pytest.skip("starts a process")
