"""Real servers on loopback and over the machine's own sockets, ended after each test."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from coordination import Coordinator
from hands import HEARTBEAT_S, LINUX, SECRET, Job
from thorough import once_more

from workbench.runtime.control.server import ControlServer
from workbench.runtime.faults.stall import StallInspector


@pytest.fixture
def start() -> Iterator[Callable[..., Job]]:
    """Starts servers that are ended after the test."""
    jobs = []

    def make(
        size: int, interface: str = "127.0.0.1", near: bool = True, stall_warning_s: float = 0.0, **options: float
    ) -> Job:
        options = {"heartbeat_s": HEARTBEAT_S} | options
        coordinator = Coordinator(size, grace_s=0.1, stall=StallInspector(stall_warning_s, 0))
        server = ControlServer(coordinator.whole, SECRET, interface, **options)
        server.start()
        jobs.append(Job(server, near))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()


@pytest.fixture(params=["127.0.0.1", pytest.param("", marks=LINUX)], ids=["tcp", "local"])
def interface(request: pytest.FixtureRequest) -> str:
    """Where rank 0 listens: on a port, or on a socket of this machine only."""
    return request.param


# All other ranks are far: what it is for them is shown beside a near rank 0, too.
@pytest.fixture(params=[True, once_more(False)], ids=["near", "far"])
def near(request: pytest.FixtureRequest) -> bool:
    """Does rank 0's own client call the server, or is it connected as the others are?"""
    return request.param


@pytest.fixture
def job(start: Callable[..., Job], interface: str, near: bool) -> Job:
    """A job of three ranks that have met."""
    job = start(3, interface, near)
    job.join()
    return job
