"""Real scripts as a user starts them: what ends one rank ends the job soon, says why on every rank, and leaves nothing.

Each job runs under the real mpiexec, or as plain processes over Gloo. There nobody else tidies up: mpiexec kills the
others when a rank is gone, so only without it is it seen that the ranks find out by themselves.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from thorough import once_more

if TYPE_CHECKING:
    from running import Job, Runner

pytestmark = [pytest.mark.usefixtures("warm_torch"), pytest.mark.integration, pytest.mark.parallel]

SCRIPTS = Path(__file__).resolve().parent / "scripts"
SOON_S = 20.0  # between the end of the first rank and the end of the job
DEADLINE_S = 45.0  # then the job is stopped, and the test is red
N = 2


def start(jobs: Runner, launcher: str, script: str, *words: str, n: int = 0, **env: str) -> Job:
    """Run a script on n ranks. It must end by itself, and nothing of it may be left."""
    path, n = str(SCRIPTS / script), n or N
    if launcher == "mpiexec":
        job = jobs.mpiexec(n, path, *words, deadline_s=DEADLINE_S, **env)
    else:
        port = free_port()
        each = [meeting(rank, n, port) for rank in range(n)]
        job = jobs.together(n, path, *words, deadline_s=DEADLINE_S, each=each, **env)
    assert job.code is not None, job.report()
    assert not job.left, job.report()
    return job


def meeting(rank: int, n: int, port: int) -> dict[str, str]:
    """torchrun's variables for one rank."""
    return {"RANK": str(rank), "WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


def free_port() -> int:
    """A port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def assert_soon(job: Job, who: int) -> None:
    """The job failed, and not long after the rank that is the cause."""
    assert job.code != 0, job.report()
    ended = re.search(r"ends at ([\d.]+)", job.out(who))
    assert ended is not None, job.report()
    assert job.ended - float(ended[1]) < SOON_S, job.report()


def others(job: Job, who: int) -> list[int]:
    """All ranks but one."""
    ranks = [int(path.stem) for path in job.folder.glob("*.err")]
    return sorted(rank for rank in ranks if rank != who)


# --- a rank raises ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("launcher", "how", "who"),
    [
        # test_run.py: test_a_failed_rank_ends_all_and_speaks_last
        once_more("mpiexec", "raise before the first", 0),
        once_more("plain", "raise between", 0),
        once_more("mpiexec", "raise between", 1),
    ],
)
def test_an_exception_reaches_every_rank(jobs: Runner, launcher: str, how: str, who: int) -> None:
    """A rank that raises ends the job with an exit code, and every other rank shows that rank's traceback."""
    n = 3 if launcher == "mpiexec" else N
    job = start(jobs, launcher, "rank_ends.py", how, str(who), n=n)
    assert_soon(job, who)
    for rank in range(n):
        assert "ValueError: a mistake on purpose" in job.err(rank), job.report()
        assert 'rank_ends.py", line' in job.err(rank), job.report()
        assert "came to the end" not in job.out(rank), job.report()
    for rank in others(job, who):
        assert f"RankFailedError: Rank {who} raised" in job.err(rank), job.report()


def test_an_exception_after_the_last_collective(jobs: Runner) -> None:
    """The others have what they need and come to their end; the job's exit code still tells."""
    job = start(jobs, "mpiexec", "rank_ends.py", "raise after the last", "1")
    assert_soon(job, 1)
    assert "ValueError: a mistake on purpose" in job.err(1), job.report()
    for rank in others(job, 1):
        assert "came to the end" in job.out(rank), job.report()
        assert "Error" not in job.err(rank), job.report()


@pytest.mark.thorough
def test_a_job_that_is_stopped_for_long_goes_on(jobs: Runner) -> None:
    """After Ctrl-Z and ``fg`` no rank takes another for lost that goes on a moment later, in whatever order."""
    job = start(jobs, "mpiexec", "is_stopped.py", n=3, WORKBENCH_PEER_TIMEOUT_S="3", WORKBENCH_HEARTBEAT_S="0.5")
    assert job.code == 0, job.report()
    assert all("came to the end" in job.out(rank) for rank in range(3)), job.report()


# --- a rank ends --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("launcher", "how", "who"),
    [("mpiexec", "sys.exit", 0), once_more("plain", "fewer batches", 0), once_more("mpiexec", "fewer batches", 1)],
)
def test_a_rank_that_ends_early_is_named(jobs: Runner, launcher: str, how: str, who: int) -> None:
    """sys.exit(0), or fewer batches than the others: they learn who has left, and what to do."""
    job = start(jobs, launcher, "rank_ends.py", how, str(who))
    assert_soon(job, who)
    assert ("came to the end" in job.out(who)) == (how == "fewer batches"), job.report()
    for rank in others(job, who):
        assert f"ShutDownError: Rank {who} has left the job" in job.err(rank), job.report()
        assert "'allreduce.step3'" in job.err(rank), job.report()
        assert "Make every rank call the same collectives" in job.err(rank), job.report()


@pytest.mark.parametrize(
    ("how", "who"), [("kill", 0), once_more("kill amid a large transfer", 1), once_more("os._exit", 1)]
)
def test_a_rank_that_dies_is_noticed_by_the_others(jobs: Runner, how: str, who: int) -> None:
    """Where no launcher kills the others, each of them ends with PeerLostError, also when it was rank 0 that died."""
    job = start(jobs, "plain", "rank_ends.py", how, str(who), n=3)
    assert_soon(job, who)
    for rank in others(job, who):
        assert "PeerLostError" in job.err(rank), job.report()
        assert "came to the end" not in job.out(rank), job.report()
    if "amid" not in how:
        assert all(f"Rank {who} was lost" in job.err(rank) for rank in others(job, who)), job.report()


@pytest.mark.thorough
@pytest.mark.parametrize(("stage", "when"), [("parameters", "forward"), once_more("gradients", "backward")])
def test_a_rank_that_dies_with_its_part(jobs: Runner, stage: str, when: str) -> None:
    """Amid a gather of parameters, or a reduction of gradients: an error on each rank that lives, and none hangs."""
    job = start(jobs, "plain", "sharded_rank_dies.py", stage, when, n=3)
    for rank in others(job, 1):
        assert "PeerLostError: Rank 1 was lost" in job.err(rank), job.report()
        assert "came to the end" not in job.out(rank), job.report()


# --- forks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("launcher", "ending"), [("mpiexec", "os._exit"), once_more("plain", "sys.exit")])
def test_fork_after_init(jobs: Runner, launcher: str, ending: str) -> None:
    """A forked child is no rank: a collective there says so, its end disturbs nobody, and the parent goes on."""
    job = start(jobs, launcher, "forks.py", ending)
    assert job.code == 0, job.report()
    for rank in range(N):
        assert f"was forked from rank {rank} and is not a rank itself" in job.out(rank), job.report()
        assert "came to the end" in job.out(rank), job.report()


@pytest.mark.timeout(150)
@pytest.mark.parametrize("loader", ["a pool", once_more("DataLoader")])
def test_workers_by_each_start_method(jobs: Runner, loader: str) -> None:
    """They feed a rank by each start method; a worker is told at once that it is none.

    Also where it imports a script that calls init() at its top. The script's own signal handlers stay.
    """
    command = ("-m", "workbench.cli.main", "run", "-n", "1", "python")
    job = jobs.python(*command, str(SCRIPTS / "loads_data.py"), loader, deadline_s=3 * DEADLINE_S)
    assert (job.code, job.left) == (0, ()), job.report()
    of_rank = "rank 0 and is not a rank itself"
    for how, error in (("forked from", "PeerLostError"), ("started by", "NotInitializedError")):
        assert re.search(f": {error}: This process was {how} {of_rank}.*main process", job.out(0)), job.report()
    for method in ("fork", "spawn", "forkserver", "import"):
        assert re.search(rf"{method}: LaunchError: init\(\): .*{of_rank}", job.out(0)), job.report()
    assert "came to the end" in job.out(0), job.report()


# --- the start ----------------------------------------------------------------------------------------


def test_init_again_after_its_deadline(jobs: Runner) -> None:
    """init() ends at its deadline, and says what to do; called again, it meets the others when they come."""
    job = start(jobs, "mpiexec", "init_again.py", n=2, WORKBENCH_INIT_TIMEOUT_S="2")
    assert job.code == 0, job.report()
    assert re.search(r"again: .*within 2 s.*init\(\) on every rank", job.out(0)), job.report()
    assert all("came to the end" in job.out(rank) for rank in range(2)), job.report()


def test_the_wrong_mpiexec(jobs: Runner) -> None:
    """Another vendor's mpiexec is a sentence with both names before MPI can abort the process."""
    job = jobs.python(str(SCRIPTS / "wrong_vendor.py"), deadline_s=DEADLINE_S)
    assert job.code == 1, job.report()
    assert "LaunchError: This process was started by" in job.err(0), job.report()
    assert "Open MPI" in job.err(0), job.report()
    assert "MPICH" in job.err(0), job.report()
    assert not job.left, job.report()


def test_a_plain_script_is_a_world_of_one(jobs: Runner) -> None:
    """``python script.py``: rank 0 of 1, at once; before init() everything says what is missing."""
    job = jobs.python(str(SCRIPTS / "alone.py"), deadline_s=DEADLINE_S)
    assert job.code == 0, job.report()
    assert job.out(0).strip() == "rank 0 of 1 [0.0, 1.0, 2.0]"
    assert not job.err(0)
    assert not job.left, job.report()


@pytest.mark.parametrize("rank", [0, once_more(1)])
def test_nobody_at_the_address(jobs: Runner, rank: int) -> None:
    """torchrun's variables, but the other rank never comes: a LaunchError within the deadline of init()."""
    port = free_port()
    env = meeting(rank, 2, port) | {"WORKBENCH_INIT_TIMEOUT_S": "3"}
    job = jobs.python(str(SCRIPTS / "alone.py"), deadline_s=DEADLINE_S, **env)
    assert job.code == 1, job.report()
    assert job.seconds < SOON_S + 3, job.report()
    assert "LaunchError" in job.err(rank), job.report()
    assert (f"127.0.0.1:{port}" if rank else "not all 2 ranks came") in job.err(rank), job.report()
    assert not job.left, job.report()


@pytest.mark.thorough
def test_a_stranger_at_the_address(jobs: Runner) -> None:
    """At the address listens a program of another kind, which never answers: a LaunchError that names the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = int(server.getsockname()[1])
        env = meeting(1, 2, port) | {"WORKBENCH_INIT_TIMEOUT_S": "3"}
        job = jobs.python(str(SCRIPTS / "alone.py"), deadline_s=DEADLINE_S, **env)
    assert job.code == 1, job.report()
    assert job.seconds < SOON_S + 3, job.report()
    assert "LaunchError" in job.err(1), job.report()
    assert f"127.0.0.1:{port}" in job.err(1), job.report()
    assert not job.left, job.report()
