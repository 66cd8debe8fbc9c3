"""Shared by all tests: start programs of several processes, with a deadline, and leave none of them behind."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from running import Runner

# These run inside ranks; test_parallel.py starts them there, with this variable.
collect_ignore = [] if "WORKBENCH_TEST_INSIDE_RANKS" in os.environ else ["parallel", "frameworks"]
# MXNet needs an environment of its own, with an older numpy: `make legacy-test` makes it, and runs these there.
collect_ignore += [] if find_spec("mxnet") else ["legacy"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest file comes first: where two are run side by side, neither is left with it at the end."""
    items.sort(key=lambda item: item.path.name != "test_parallel.py")


@pytest.fixture
def new_children() -> Callable[[], list[psutil.Process]]:
    """Gives the living descendants that this process has got since the test began.

    Others belong to nobody's test: the resource tracker of multiprocessing, once started, stays to the end of the run.
    """
    before = set(psutil.Process().children(recursive=True))

    def look() -> list[psutil.Process]:
        new = set(psutil.Process().children(recursive=True)) - before
        return [each for each in new if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]

    return look


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[Runner]:
    """Starts jobs; what a failing or interrupted test leaves running is ended."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))  # they end by SIGABRT
    runner = Runner(tmp_path)
    yield runner
    runner.stop()
