"""Runs ``tests/parallel``: among threads of one process, in ranks under mpiexec, torchrun, and in plain processes.

A rank's own tests are judged by that rank; what is judged here is that all ranks ran the same tests, that there
were some, and that all passed. A failing test shows the rank whose failure came first, then the others'.

Among threads all of it runs that threads can show, on two ranks, or on four where it needs them; the rest runs in two
processes. In processes alone, and in other ways, it runs where thorough tests run.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from running import Job, Runner

pytestmark = [pytest.mark.parallel, pytest.mark.usefixtures("warm_torch")]

HERE = Path(__file__).resolve().parent
PYTEST = (
    "-m", "pytest", "-v", "-x", "-p", "pytest_timeout", "-p", "no:cacheprovider", "--color=no",
    "-c", str(HERE.parent / "pyproject.toml"),
)  # fmt: skip
# 1. Other plug-ins cost each rank three seconds of its core, and none of them is needed there.
# 2. Where Python is told to keep no compiled files, each rank compiles all tests for itself, a second long.
ENV = {"WORKBENCH_TEST_INSIDE_RANKS": "1", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": ""}
DEADLINE_S = 800.0
# On one rank: what is done without others. Between two hosts, and without shared memory: what is cut in another way.
ALONE = ("contract", "verbs", "optimizer")
BUCKETS = ("buckets_life", "buckets_place", "buckets_ranks")
SHARDED = ("sharded_life", "sharded_ranks", "sharded_state", "zero_ranks")
OPTIMIZER = ("optimizer", "optimizer_classes", "optimizer_life", "optimizer_sparse")
ALWAYS = "not slow and not thorough"
# Ranks, settings, and what can tell that it is another way.
SCALED = ("scaling", *BUCKETS, *SHARDED)
WAYS: dict[str, tuple[int, dict[str, str], tuple[str, ...]]] = {
    "3 ranks": (3, {}, ("memory_ranks", *SCALED)),
    "2 ranks over MPI": (2, {"WORKBENCH_BACKEND": "mpi"}, SCALED),
    "3 ranks over MPI": (3, {"WORKBENCH_BACKEND": "mpi"}, (*BUCKETS, *SHARDED)),
    "2 + 2 ranks": (4, {"MPIR_CVAR_NUM_CLIQUES": "2"}, ("world", *SCALED)),
    "nothing is eager": (2, {"WORKBENCH_EAGER_BYTES": "0"}, ("contract", "allreduce", "verbs", "order", *OPTIMIZER)),
    "nothing is eager among 4 ranks": (4, {"WORKBENCH_EAGER_BYTES": "0"}, ("contract", "order", "process_sets")),
}
# What a rank says when another one has failed: not the cause, so it is shown last.
_FOLLOW = re.compile(r"^E +.*\b(ShutDownError|RankFailedError|PeerLostError)\b", re.MULTILINE)


def problem(job: Job, n: int) -> str:
    """What is wrong with an inner run on n ranks, ready to be shown; empty if all is well."""
    files = [job.folder / f"{rank}.json" for rank in range(n)]
    said = [json.loads(path.read_text()) if path.exists() else None for path in files]
    wrong: list[tuple[int, str]] = []  # the cause first: 0 a failed test, 1 a rank that was stopped, 2 what followed
    for rank, mine in enumerate(said):
        if mine is None:
            wrong.append((1, f"rank {rank} did not get as far as the tests"))
            continue
        for test, text in mine["failed"]:
            wrong.append((2 if _FOLLOW.search(text) else 0, f"rank {rank} failed {test}\n{text}"))
        if mine["running"]:
            wrong.append((1, f"rank {rank} never came out of {mine['running']}\n{last_words(job.err(rank))}"))
    passed = [set(mine["passed"]) for mine in said if mine is not None]
    if not wrong and len(passed) == n:
        common = set.intersection(*passed)
        for rank, names in enumerate(passed):
            if names != common:
                wrong.append((0, f"only rank {rank} ran {', '.join(sorted(names - common))}"))
        if not common:
            wrong.append((0, "no test ran"))
    if not wrong and not job.left and job.code == 0:
        return ""
    headline = f"{n} ranks, passed on each: {[len(names) for names in passed]}."
    return "\n\n".join([headline, *(text for _, text in sorted(wrong, key=lambda each: each[0])), job.report(1500)])


def last_words(err: str, most: int = 8000) -> str:
    """The end of what a rank wrote; of a rank that crashed, the stack of the thread that did, and those after it."""
    crashed = err.rfind("Fatal Python error")
    if crashed < 0:
        return err[-most:]
    thread = max(crashed, err.find("Current thread", crashed))
    return err[crashed:].split("\n", 1)[0] + "\n" + err[thread : thread + most]


def check(job: Job, n: int) -> None:
    """Fail with the ranks' own words if anything is wrong."""
    text = problem(job, n)
    if text:
        pytest.fail(text, pytrace=False)


def some(names: Iterable[str]) -> list[str]:
    """The files of these tests."""
    return [str(HERE / "parallel" / f"test_{name}.py") for name in names]


@pytest.mark.slow
@pytest.mark.timeout(DEADLINE_S + 60)
def test_threads(jobs: Runner) -> None:
    """Every test passes on ranks that are threads, in the worlds of ``thread_ranks.py``, but those for processes."""
    words = [each for each in PYTEST if each != "-x"] + [str(HERE / "parallel"), "-m", ALWAYS]
    check(jobs.python(*words, deadline_s=DEADLINE_S, WORKBENCH_TEST_THREADS="2", OMP_NUM_THREADS="1", **ENV), 1)


@pytest.mark.slow
@pytest.mark.timeout(DEADLINE_S + 60)
def test_processes(jobs: Runner) -> None:
    """What threads do not show passes on each of two ranks that mpiexec started."""
    files = [str(each) for each in (HERE / "parallel").glob("test_*.py") if "mark.processes(" in each.read_text()]
    words = (*PYTEST, *sorted(files), "-m", f"processes and {ALWAYS}")
    check(jobs.mpiexec(2, *words, deadline_s=DEADLINE_S, **ENV), 2)


@pytest.mark.slow
@pytest.mark.timeout(DEADLINE_S + 60)
def test_one_rank_alone(jobs: Runner) -> None:
    """A process that nobody has started among others is rank 0 of 1, and passes as well."""
    check(jobs.python(*PYTEST, *some(ALONE), "-m", ALWAYS, deadline_s=DEADLINE_S, **ENV), 1)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(DEADLINE_S + 60)
@pytest.mark.parametrize("n", [1, 2, 4])
def test_mpiexec(jobs: Runner, n: int) -> None:
    """Every test of tests/parallel passes on each of n ranks that mpiexec started."""
    words = (*PYTEST, str(HERE / "parallel"), "-m", "not slow")
    check(jobs.mpiexec(n, *words, deadline_s=DEADLINE_S, **ENV), n)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(DEADLINE_S + 60)
@pytest.mark.parametrize("way", WAYS)
def test_other_ways(jobs: Runner, way: str) -> None:
    """Uneven cuts, over MPI, on two hosts, in the data plane: whatever could tell passes on each rank."""
    n, settings, names = WAYS[way]
    words = (*PYTEST, *some(names), "-m", "not slow")
    check(jobs.mpiexec(n, *words, deadline_s=DEADLINE_S, **settings, **ENV), n)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(DEADLINE_S + 360)
@pytest.mark.parametrize("n", [2, 4])
def test_many_rounds(jobs: Runner, n: int) -> None:
    """The long tests of tests/parallel pass, too: 100,000 tensors in another order on every rank, overlapping sets."""
    words = (*PYTEST, str(HERE / "parallel"), "-m", "slow")
    check(jobs.mpiexec(n, *words, deadline_s=DEADLINE_S + 300, **ENV), n)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.timeout(DEADLINE_S + 60)
@pytest.mark.parametrize(
    "names", [("world", "contract", "allreduce", "verbs", "order"), ("errors", "lifecycle")], ids="-".join
)
def test_plain_processes(jobs: Runner, names: tuple[str, ...]) -> None:
    """Where nobody but torchrun's variables says who is there, the ranks know who they are."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    meet = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    each = [{**meet, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(2)]
    job = jobs.together(2, *PYTEST, *some(names), "-m", "not slow", deadline_s=DEADLINE_S, each=each, **ENV)
    check(job, 2)


@pytest.mark.timeout(DEADLINE_S + 60)
def test_torchrun(jobs: Runner) -> None:
    """Ranks that the real torchrun started know who they are, and all verbs work without MPI."""
    check(jobs.torchrun(2, *PYTEST, *some(("world", "verbs")), deadline_s=DEADLINE_S, **ENV), 2)


# --- the driver's own tests ---------------------------------------------------------------------------


def test_a_file_that_a_run_names_runs_in_ranks(jobs: Runner) -> None:
    """Named as CONTRIBUTING.md says, it passes on each of two ranks, with no word of ours in the environment."""
    check(jobs.python("-m", "pytest", *some(["world"]), deadline_s=120.0), 2)


def test_a_run_that_also_names_others_is_refused(jobs: Runner) -> None:
    """What runs in ranks and what runs beside none cannot be one run; both are named."""
    job = jobs.python("-m", "pytest", *some(["nano"]), str(HERE / "core"), deadline_s=60.0)
    assert job.code == pytest.ExitCode.USAGE_ERROR
    assert "test_nano.py runs in ranks" in job.err(0), job.report()
    assert f"{HERE / 'core'} does not" in job.err(0), job.report()


_FAILS_ON_ONE = """
import numpy as np, workbench as hvd

def test_one_rank_fails_while_the_others_wait():
    assert hvd.rank() != 1, "the cause"
    hvd.allreduce(np.ones(3))
"""

_HANGS_ON_ONE = """
import time, numpy as np, workbench as hvd

def test_one_rank_never_comes():
    if hvd.rank() == 1:
        the_line_that_hangs()
    hvd.allreduce(np.ones(3))

def the_line_that_hangs():
    time.sleep(1000)
"""

_DIES_ON_ONE = """
import os, signal, numpy as np, workbench as hvd

def test_one_rank_is_killed():
    if hvd.rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    hvd.allreduce(np.ones(3))
"""

_HANGS_AFTERWARDS = """
import atexit, time, workbench as hvd

def test_passes():
    hvd.barrier()

def the_end_that_hangs():
    time.sleep(1000)

if hvd.config.launch().rank == 1:
    atexit.register(the_end_that_hangs)
"""


def _written(folder: Path, text: str) -> str:
    shutil.copy(HERE / "parallel" / "conftest.py", folder)
    (folder / "test_inner.py").write_text(text)
    return str(folder / "test_inner.py")


def _inner(jobs: Runner, folder: Path, text: str, *options: str, deadline_s: float = 60.0) -> Job:
    file = _written(folder, text)
    return jobs.mpiexec(2, *PYTEST, *options, file, deadline_s=deadline_s, **ENV)


def test_a_failure_on_one_rank_is_red_on_all(jobs: Runner, tmp_path: Path) -> None:
    """A test that fails on one rank ends the others' wait, and the failure is the first thing to be read."""
    job = _inner(jobs, tmp_path, _FAILS_ON_ONE)
    text = problem(job, 2)
    assert job.code not in (0, None), text
    assert job.seconds < 30, text
    assert text.index("rank 1 failed") < text.index("AssertionError: the cause") < text.index("rank 0 failed"), text
    assert "ShutDownError" in text


def test_a_failure_among_threads_is_red(jobs: Runner, tmp_path: Path) -> None:
    """A test that fails on one thread ends the other's wait, and is red with its own error."""
    words = (*PYTEST, _written(tmp_path, _FAILS_ON_ONE))
    text = problem(jobs.python(*words, deadline_s=60.0, WORKBENCH_TEST_THREADS="2", **ENV), 1)
    assert "AssertionError: the cause" in text, text


@pytest.mark.thorough
def test_a_hang_is_red_with_stacks(jobs: Runner, tmp_path: Path) -> None:
    """A rank that never comes is red after the test's time limit, with the line that it stands at."""
    job = _inner(jobs, tmp_path, _HANGS_ON_ONE, "--timeout=5", "-o", "faulthandler_timeout=3")
    text = problem(job, 2)
    assert job.code not in (0, None), text
    assert "never came out of" in text
    assert "the_line_that_hangs" in text


@pytest.mark.thorough  # waits for its deadline; test_a_hang_is_red_with_stacks has shown the stacks
def test_a_hang_outside_of_the_tests_is_red_with_stacks(jobs: Runner, tmp_path: Path) -> None:
    """A process that does not end is stopped at the driver's deadline, with its stack, and nothing is left."""
    job = _inner(jobs, tmp_path, _HANGS_AFTERWARDS, deadline_s=8.0)
    text = problem(job, 2)
    assert job.code is None, text
    assert "the_end_that_hangs" in text
    assert not [each for each in psutil.process_iter(["cmdline"]) if str(tmp_path) in str(each.info["cmdline"])]


@pytest.mark.parametrize(("passed", "says"), [((["a"], ["a", "b"]), "only rank 1 ran b"), (([], []), "no test ran")])
def test_green_ranks_that_are_red(passed: tuple[list[str], list[str]], says: str, tmp_path: Path) -> None:
    """Not the same tests on every rank, or none, is no success, though every single one passed."""
    for rank, names in enumerate(passed):
        (tmp_path / f"{rank}.json").write_text(json.dumps({"passed": names, "failed": [], "running": ""}))
    job = SimpleNamespace(folder=tmp_path, left=(), code=0, report=lambda most: "")
    assert says in problem(job, 2)


@pytest.mark.thorough
def test_a_killed_rank_is_red(jobs: Runner, tmp_path: Path) -> None:
    """A rank that is killed amid a test is named."""
    text = problem(_inner(jobs, tmp_path, _DIES_ON_ONE), 2)
    assert "rank 1 never came out of" in text
    assert "test_one_rank_is_killed" in text
