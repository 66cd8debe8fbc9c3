"""A rank that does not come through ``init()``: the others learn it at once, and not at the deadline."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from thorough import once_more

if TYPE_CHECKING:
    from running import Job, Runner

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(120)]

SCRIPT = str(Path(__file__).resolve().parent / "scripts" / "init_breaks.py")
INIT_S = 60  # the deadline of init(): whoever waits for it is too late
SOON_S = 30.0  # after the end of the rank
N = 3


def run(jobs: Runner, *words: str, n: int = N) -> Job:
    """``workbench run``."""
    start = ("-m", "workbench.cli.main", "run", "-np", str(n), sys.executable, SCRIPT)
    return jobs.python(*start, *words, deadline_s=INIT_S + 30, WORKBENCH_INIT_TIMEOUT_S=str(INIT_S))


def plain(jobs: Runner, *words: str, n: int = 2) -> Job:
    """Plain processes, with torchrun's variables."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
    meet = {"WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    each = [{"RANK": str(rank)} for rank in range(n)]
    env = {"WORKBENCH_INIT_TIMEOUT_S": str(INIT_S)} | meet
    return jobs.together(n, SCRIPT, *words, deadline_s=INIT_S + 30, each=each, **env)


def said(job: Job, rank: int) -> str:
    """What a rank has printed, itself or through the launcher."""
    lines = [line for line in job.out(0).splitlines() if line.startswith(f"[{rank}]<stdout>:")]
    return "\n".join(lines) or job.out(rank)


def assert_learnt(job: Job, who: int, n: int, *words: str) -> None:
    """All others raised one of our errors with these words, long before the deadline."""
    assert job.code not in (0, None), job.report()
    ended = re.search(r"ends at ([\d.]+)", said(job, who))
    assert ended, job.report()
    assert job.ended - float(ended[1]) < SOON_S, job.report()
    for rank in set(range(n)) - {who}:
        assert "Error: init()" in said(job, rank), job.report()
        for word in words:
            assert word in said(job, rank), job.report()
    assert not job.left, job.report()


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for the launcher's children")
@pytest.mark.parametrize(
    ("how", "who"),
    [
        ("kill before", 0),
        ("MPI kill before", 2),
        ("kill amid", 0),
        ("kill late", 2),
        once_more("kill before", 2),
        once_more("MPI kill before", 0),
        once_more("kill amid", 2),
        once_more("kill late", 0),
    ],
)
def test_a_rank_that_is_killed_while_the_others_wait_in_init(jobs: Runner, how: str, who: int) -> None:
    """Its process has ended, so it will never come: PeerLostError on every other rank, and its name.

    Who looks when another one has ended because of it cannot tell which of them was the first: "a rank was lost".
    """
    job = run(jobs, how, str(who))
    assert_learnt(job, who, N, "PeerLostError", "was lost")
    assert any(f"rank {who} was lost" in said(job, rank) for rank in set(range(N)) - {who}), job.report()


@pytest.mark.parametrize(
    ("how", "who"),
    [
        ("kill amid", 0),
        ("kill late", 1),
        ("kill late, seen at once", 1),
        once_more("kill amid", 1),
        once_more("kill late", 0),
    ],
)
def test_a_plain_rank_that_is_killed_while_the_others_wait_in_init(jobs: Runner, how: str, who: int) -> None:
    """The same without MPI; a store that dies with rank 0 is an error as well."""
    assert_learnt(plain(jobs, how, str(who)), who, 2)


@pytest.mark.parametrize(
    ("how", "start"),
    [
        ("fail amid", run),
        ("fail late", plain),
        ("interrupt amid", run),
        once_more("fail amid", plain),
        once_more("fail late", run),
        once_more("interrupt amid", plain),
    ],
)
def test_a_rank_that_fails_amid_init_tells_the_others(jobs: Runner, how: str, start: Callable[..., Job]) -> None:
    """LaunchError on every rank, with that rank's own words."""
    job = start(jobs, how, "1")
    words = "it was interrupted" if how == "interrupt amid" else "OSError: a mistake on purpose"
    assert_learnt(job, 1, N if start is run else 2, "LaunchError", "failed on rank 1", words)


@pytest.mark.parametrize("start", [run, once_more(plain)])
def test_a_rank_that_is_interrupted_amid_an_exchange(jobs: Runner, start: Callable[..., Job]) -> None:
    """The others come to it later, and learn that rank's problem; that rank itself raises KeyboardInterrupt."""
    job = start(jobs, "interrupt waiting", "1")
    assert_learnt(job, 1, N if start is run else 2, "LaunchError", "failed on rank 1", "it was interrupted")


@pytest.mark.parametrize("who", [0, once_more(1)])
def test_a_rank_that_fails_while_the_others_connect(jobs: Runner, who: int) -> None:
    """Amid Gloo's own wait for all connections the others learn that this rank has given up, and why."""
    job = plain(jobs, "fail connecting", str(who))
    assert_learnt(job, who, 2, "LaunchError", f"failed on rank {who}", "OSError: a mistake on purpose")


@pytest.mark.parametrize("how", ["MPI raise before", once_more("raise before")])
def test_a_rank_that_raises_before_init(jobs: Runner, how: str) -> None:
    """Under ``workbench run`` it ends the job, though MPI_Finalize would wait for the others. The exit code is its."""
    job = run(jobs, how, "1")
    assert job.code == 1, job.report()
    ended = re.search(r"ends at ([\d.]+)", said(job, 1))
    assert ended, job.report()
    assert job.ended - float(ended[1]) < SOON_S, job.report()
    assert "ValueError: a mistake on purpose" in job.err(0), job.report()
    assert "Rank 1 ended with exit code 1" in job.err(0), job.report()
    assert not job.left, job.report()


def assert_ended(job: Job, code: int) -> None:
    """Rank 1 has ended with this code, and the job with it, long before the deadline."""
    assert job.code == code, job.report()
    ended = re.search(r"ends at ([\d.]+)", said(job, 1))
    assert ended, job.report()
    assert job.ended - float(ended[1]) < SOON_S, job.report()
    assert f"Rank 1 ended with exit code {code}" in job.err(0), job.report()
    assert not job.left, job.report()


@pytest.mark.parametrize(
    ("whose", "how", "code"),
    [
        ("MPI", "7", 7),
        ("MPI site's", "no data", 1),
        once_more("MPI", "no data", 1),
        once_more("MPI site's", "7", 7),
    ],
)
def test_a_rank_that_exits_before_init(jobs: Runner, whose: str, how: str, code: int) -> None:
    """``sys.exit`` and ``exit`` with a code or a text end the job as an exception does, with what they say."""
    job = run(jobs, f"{whose} exit before {how}", "1")
    assert_ended(job, code)
    assert code != 1 or how in job.err(0), job.report()


@pytest.mark.thorough
def test_a_rank_that_raises_before_init_with_a_hook_of_its_own(jobs: Runner) -> None:
    """A script's ``sys.excepthook`` is called, and the job ends."""
    job = run(jobs, "MPI hook before", "1")
    assert_ended(job, 1)
    assert "my own words: a mistake on purpose" in job.err(0), job.report()


def test_an_exit_that_the_script_catches(jobs: Runner) -> None:
    """Nothing has failed then: the job goes on, and its code is 0."""
    job = run(jobs, "MPI caught exit", "1")
    assert job.code == 0, job.report()
    for rank in range(N):
        assert "caught 7" in said(job, rank), job.report()
        assert "came through" in said(job, rank), job.report()


@pytest.mark.parametrize("flag", ["", once_more("--gloo")])
def test_a_timeline_that_cannot_be_written(jobs: Runner, tmp_path: Path, flag: str) -> None:
    """The launcher says so before it starts a rank; and where a rank finds out, all of them say so, at once."""
    path = str(tmp_path / "not there" / "timeline.json")
    words = ("-m", "workbench.cli.main", "run", "-np", "2", *filter(None, [flag]))
    job = jobs.python(*words, "--timeline-filename", path, "true", deadline_s=40)
    assert job.code == 1, job.report()
    assert "is not there" in job.err(0), job.report()
    env = f"HOROVOD_TIMELINE={path}"
    job = jobs.python(*words, "env", env, sys.executable, SCRIPT, "nothing", "0", deadline_s=INIT_S)
    assert job.code == 3, job.report()
    for rank in range(2):
        assert "LaunchError: " in said(job, rank), job.report()
        assert f"The timeline {path} cannot be written: No such file" in said(job, rank), job.report()
    assert not job.left, job.report()
