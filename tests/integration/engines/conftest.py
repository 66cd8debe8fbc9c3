"""One cluster for all files of this folder, which a run gives to one worker: a start is dearer than a test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from forking import forking

from workbench import cluster


@pytest.fixture(scope="package")
def three() -> Iterator[cluster.Cluster]:
    """Three engines, in whatever state the last test left them."""
    with forking(), pytest.MonkeyPatch.context() as patch:
        patch.setenv("WORKBENCH_SHUTDOWN_TIMEOUT_S", "120")  # whoever leaves alone does not wait for that
        with cluster.up(3) as up:
            yield up


@pytest.fixture(scope="module")
def running(three: cluster.Cluster) -> Iterator[cluster.Cluster]:
    """The same, made whole before and after a file, and in no job."""
    for after in (False, True):
        three.rescue(quiet=True)
        three.view.execute("import workbench\nworkbench.shutdown()", block=True)
        if not after:
            yield three
