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
    from fork_server import ForkServer
    from running import Job, Runner

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(120)]

SCRIPT = str(Path(__file__).resolve().parent / "scripts" / "init_breaks.py")
INIT_S = 60  # the deadline of init(): whoever waits for it is too late
SOON_S = 30.0  # after the end of the rank
N = 3


@pytest.fixture
def warm(torch_forks: ForkServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python has imported torch already, in which plain processes meet."""
    monkeypatch.setattr(sys, "executable", torch_forks.python)


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
@pytest.mark.parametrize(("how", "who"), [("kill amid", 0), once_more("MPI kill before", 2), once_more("kill late", 2)])
def test_a_rank_that_is_killed_while_the_others_wait_in_init(jobs: Runner, how: str, who: int) -> None:
    """Its process has ended, so it will never come: PeerLostError on every other rank, and its name.

    Who looks when another one has ended because of it cannot tell which of them was the first: "a rank was lost".
    """
    job = run(jobs, how, str(who))
    assert_learnt(job, who, N, "PeerLostError", "was lost")
    assert any(f"rank {who} was lost" in said(job, rank) for rank in set(range(N)) - {who}), job.report()


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(
    ("how", "who"), [("kill late", 1), once_more("kill amid", 0), once_more("kill late, seen at once", 1)]
)
def test_a_plain_rank_that_is_killed_while_the_others_wait_in_init(jobs: Runner, how: str, who: int) -> None:
    """The same without MPI; a store that dies with rank 0 is an error as well."""
    assert_learnt(plain(jobs, how, str(who)), who, 2)


@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(
    ("how", "who", "start"),
    [
        ("fail amid", 1, run),
        ("interrupt waiting", 1, plain),  # the others come to the exchange later
        ("fail connecting", 0, plain),  # when the others connect to it
        once_more("fail late", 1, plain),
        once_more("interrupt amid", 1, run),
    ],
)
def test_a_rank_that_fails_amid_init_tells_the_others(
    jobs: Runner, how: str, who: int, start: Callable[..., Job]
) -> None:
    """LaunchError on every rank, with that rank's own words."""
    words = "it was interrupted" if "interrupt" in how else "OSError: a mistake on purpose"
    assert_learnt(
        start(jobs, how, str(who)), who, N if start is run else 2, "LaunchError", f"failed on rank {who}", words
    )


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ("MPI raise before", 1, "ValueError: a mistake on purpose"),
        ("MPI exit before no data", 1, "no data"),
        once_more("MPI site's exit before 7", 7, ""),
        once_more("MPI hook before", 1, "my own words: a mistake on purpose"),
    ],
)
def test_a_rank_that_ends_before_init(jobs: Runner, how: str, code: int, words: str) -> None:
    """Under ``workbench run`` an exception or ``sys.exit`` ends the job, though MPI_Finalize would wait for the others.

    The exit code is its, with its words; a script's own ``sys.excepthook`` is called.
    """
    job = run(jobs, how, "1", n=2)
    assert job.code == code, job.report()
    ended = re.search(r"ends at ([\d.]+)", said(job, 1))
    assert ended, job.report()
    assert job.ended - float(ended[1]) < SOON_S, job.report()
    assert words in job.err(0), job.report()
    assert f"Rank 1 ended with exit code {code}" in job.err(0), job.report()
    assert not job.left, job.report()


def test_an_exit_that_the_script_catches(jobs: Runner) -> None:
    """Nothing has failed then: the job goes on, and its code is 0."""
    job = run(jobs, "MPI caught exit", "1", n=2)
    assert job.code == 0, job.report()
    for rank in range(2):
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
