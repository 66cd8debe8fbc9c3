"""Shared by all tests: start programs of several processes, with a deadline, and leave none of them behind."""

from __future__ import annotations

import atexit
import gc
import os
import resource
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from fork_server import TENSORFLOW, TORCH, ForkServer
from forking import forking
from running import Runner

from workbench.launch.start import mpi

# jsonschema, which nbformat imports, compiles 38 grammars with it, for addresses that nothing here checks: seconds, in
# each of five processes. Without it there is no such check.
sys.modules.setdefault("rfc3987_syntax", None)  # type: ignore[arg-type]

# A fork server takes each process that starts engines two seconds of a core: see forked_engines.
os.environ.setdefault("WORKBENCH_FORK", "0")
# torch's compiler sets it where it is imported, as in that server; a fork is for processes that have the same.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{os.getuid()}")

gc.disable()  # until all tests are collected
pytest_plugins = ["deadlines", "durations", "rings", "scheduling", "servers"]

# These run inside ranks. test_parallel.py and its like start them there, with this variable; so does a run that names
# one of them.
INSIDE_RANKS = "WORKBENCH_TEST_INSIDE_RANKS"
FOR_RANKS = ("parallel", "frameworks", "keras2")
collect_ignore = [] if INSIDE_RANKS in os.environ else ["parallel", "frameworks"]
# MXNet needs an environment of its own, with an older numpy: `make legacy-test` makes it, and runs these there.
collect_ignore += [] if find_spec("mxnet") else ["legacy"]

# Files of a minute and more of one worker, the longest first. Those that keep the cores busy and those that mostly wait
# take turns: each worker takes the next one when it is done, so that both kinds run at a time.
LONG = (
    "test_parallel.py",
    "test_notebooks.py",
    "test_run.py",
    "test_framework_training.py",
    "test_elastic_jobs.py",
    "test_examples.py",
    "test_init_breaks.py",
    "test_links_and_backends.py",
    "test_scripts.py",
    "test_rescue.py",
    "test_frameworks.py",
    "test_no_cell_hangs.py",
    "test_keras2.py",
    "test_cluster.py",
    "test_checkpoint_restart.py",
    "test_live.py",
    "test_init_in_engines.py",
    "test_as_horovod.py",
    "test_grading.py",
    "test_attacks.py",
    "test_training_after_a_failed_cell.py",
    "test_steps.py",
    "test_jupyterlab.py",
    "test_conversion.py",
    "test_killed_amid_reductions.py",
    "test_doctor.py",
    "test_checks.py",
    "test_chaos.py",
    "test_pages.py",
    "test_engines_come_and_go.py",
    "test_chart.py",
    "test_data_service.py",
    "test_checkpoint_elastic_jobs.py",
)


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Run tests for ranks, when they are named, in two ranks: on one, an average is the identity, and all is green."""
    named = [(config.invocation_params.dir / word.split("::")[0]).resolve() for word in config.args]
    folders = [Path(__file__).resolve().parent / name for name in FOR_RANKS]
    inside = [path for path in named if any(path.is_relative_to(folder) for folder in folders)]
    if not inside or INSIDE_RANKS in os.environ:
        return None
    if others := sorted({str(path) for path in named} - {str(path) for path in inside}):
        raise pytest.UsageError(f"{inside[0]} runs in ranks, {others[0]} does not: name them in two runs.")
    ranks = [sys.executable, "-m", "workbench.cli.main", "run", "-np", "2", sys.executable, "-m", "pytest"]
    # One process for each rank; the first failure ends the others' waits.
    words = [*config.invocation_params.args, "-x", "-n0"]
    return subprocess.run([*ranks, *words], env=os.environ | {INSIDE_RANKS: "1"}, check=False).returncode


def pytest_configure(config: pytest.Config) -> None:
    """How a worker begins and ends.

    1. A shell that starts us in the background has Ctrl-C ignored, and nohup SIGHUP. What a test starts would, too.
    2. What a test aborts leaves no core. All workers have the same limits, by which they find one fork server.
    3. A worker ends without looking through all that it has imported.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    atexit.register(gc.freeze)


def pytest_collection_finish() -> None:
    """What was collected stays: no garbage collection of a test need look through it."""
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files come first, so that no worker is left with one at the end."""
    place = {name: i for i, name in enumerate(LONG)}
    items.sort(key=lambda item: place.get(item.path.name, len(LONG)))


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
    runner = Runner(tmp_path)
    yield runner
    runner.stop()


@pytest.fixture
def by_mpiexec(monkeypatch: pytest.MonkeyPatch) -> None:
    """MPI's usual launcher starts ranks, where nobody asks for another.

    MPICH's launcher for one machine may keep a core busy for two seconds when its last rank ends.
    """
    usual, path = mpi.command, mpi.find_mpiexec()
    monkeypatch.setattr(mpi, "command", lambda n, mpiexec="", **rest: usual(n, mpiexec or path, **rest))


@pytest.fixture(scope="session")
def torch_forks() -> Iterator[ForkServer]:
    """Where a process with torch costs a twentieth of a second instead of two."""
    server = ForkServer(TORCH)
    yield server
    server.close()


@pytest.fixture(scope="session")
def tensorflow_forks() -> Iterator[ForkServer]:
    """The same for TensorFlow, which takes five seconds."""
    server = ForkServer(TENSORFLOW)
    yield server
    server.close()


@pytest.fixture(scope="module")
def warm_torch(torch_forks: ForkServer) -> Iterator[None]:
    """Where ``sys.executable`` is started here, by a test or by the product, it has imported torch already.

    For tests of what runs in ranks; not for those of how a process starts, and of what the system says of it.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", torch_forks.python)
        yield


@pytest.fixture(scope="module")
def forked_engines() -> Iterator[None]:
    """For tests of what engines do: they are forks."""
    with forking():
        yield


@pytest.fixture(scope="module")
def warm_tensorflow(tensorflow_forks: ForkServer) -> Iterator[None]:
    """The same with TensorFlow, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", tensorflow_forks.python)
        yield
