"""For tests that run inside the ranks of one job: every rank runs the same tests in the same order.

``tests/test_parallel.py`` starts them. A run that names them starts two ranks; for another number of ranks::

    WORKBENCH_TEST_INSIDE_RANKS=1 mpiexec -n 3 python -m pytest tests/parallel -x -k allgather

The ranks are processes; or threads of one, each test in a job of its own (``helpers/thread_ranks.py``)::

    WORKBENCH_TEST_INSIDE_RANKS=1 WORKBENCH_TEST_THREADS=2 python -m pytest tests/parallel -k allgather

What only processes can show has the marker ``processes``, with the reason.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import workbench as hvd
from workbench import config
from workbench.job.context import HOLDER

LAUNCH = config.launch()
AMONG_THREADS = int(os.environ.get("WORKBENCH_TEST_THREADS", "0")) > 0
if AMONG_THREADS:
    import thread_ranks  # and torch with it


def pytest_configure(config: pytest.Config) -> None:
    """The markers, and the file with this rank's outcomes."""
    config.addinivalue_line("markers", "ranks(n): needs at least n ranks")
    config.addinivalue_line("markers", "processes(why): its ranks are processes; threads of one do not show it")
    if AMONG_THREADS:
        config.pluginmanager.register(thread_ranks.Ranks())
    # A rank that ends would look through all of TensorFlow's half a million objects several times: 1.4 s of a core.
    atexit.register(gc.freeze)
    folder = os.environ.get("WORKBENCH_TEST_OUT")
    if folder:
        # Of its own: pytest clears old ones away at its end, and the ranks would do so at the same time.
        config.option.basetemp = str(Path(folder) / f"tmp{LAUNCH.rank}")
        config.pluginmanager.register(Outcomes(Path(folder) / f"{LAUNCH.rank}.json"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave out what needs more ranks than there are."""
    for item in items:
        mark = item.get_closest_marker("ranks")
        if mark is not None and mark.args[0] > LAUNCH.size and not AMONG_THREADS:
            item.add_marker(pytest.mark.skip(f"needs {mark.args[0]} ranks"))


def pytest_collection_finish() -> None:
    """What is there stays: a test that collects garbage looks through what it has made, not through all of torch."""
    gc.collect()
    gc.freeze()


class Outcomes:
    """Writes for the driver which tests passed and which failed on this rank, and where a test stands that hangs."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._said: dict[str, Any] = {"passed": [], "failed": [], "running": ""}

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """Before a test."""
        self._write(running=nodeid)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """After each of a test's three phases."""
        if report.failed:
            self._said["failed"].append([report.nodeid, report.longreprtext])
            self._write()
        elif report.passed and report.when == "call":
            self._said["passed"].append(report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """A file that cannot be imported."""
        if report.failed:
            self._said["failed"].append([report.nodeid, report.longreprtext])

    def pytest_sessionfinish(self) -> None:
        """After the last test."""
        self._write(running="")

    def _write(self, **news: Any) -> None:
        self._said |= news
        self._path.write_text(json.dumps(self._said))


@pytest.fixture(scope="session", autouse=True)
def job() -> Iterator[None]:
    """The job of all ranks. A rank whose test failed leaves it, which ends the others' waits."""
    if AMONG_THREADS:
        yield
        return
    hvd.init()
    yield
    hvd.shutdown()


@pytest.fixture(autouse=True)
def ranks_world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Among threads: in which world the test's jobs are."""
    if not AMONG_THREADS:
        return ""
    for name, value in thread_ranks.WORLDS[request.param][2].items():
        monkeypatch.setenv(name, value)
    return str(request.param)


@pytest.fixture(autouse=True)
def together(job: None) -> None:
    """Begin every test at the same time on all ranks."""
    if not AMONG_THREADS:
        hvd.barrier()


@pytest.fixture
def rank() -> int:
    """This rank. Among threads each gets its own when the test begins."""
    return -1 if AMONG_THREADS else hvd.rank()


@pytest.fixture
def n(request: pytest.FixtureRequest) -> int:
    """How many ranks there are."""
    return thread_ranks.size(request.node) if AMONG_THREADS else hvd.size()


@pytest.fixture
def job_with(ranks_world: str) -> Iterator[Callable[..., None]]:
    """Ends the job and begins another, with settings of its own: ``job_with(BUCKET_BYTES=0)``; a plain one follows."""
    before = dict(os.environ)

    def begin(**settings: object) -> None:
        variables = {f"WORKBENCH_{name}": str(value) for name, value in settings.items()}
        if AMONG_THREADS:
            thread_ranks.begin(variables)
            return
        hvd.shutdown()
        os.environ.update(variables)
        hvd.init()

    yield begin
    os.environ.clear()
    os.environ.update(before)
    if not AMONG_THREADS:
        hvd.shutdown()
        hvd.init()


@pytest.fixture
def in_memory(n: int, ranks_world: str) -> bool:
    """Do the ranks share their memory? Not under WORKBENCH_BACKEND=mpi, nor alone."""
    if AMONG_THREADS:
        return ranks_world == thread_ranks.IN_MEMORY
    return n > 1 and HOLDER.get().sets.everybody.name == "SHM"
