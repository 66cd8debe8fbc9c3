"""Ranks that are killed while they reduce: the others hear of it, and nothing is left behind."""

from __future__ import annotations

import os
import random
import re
import socket
from contextlib import suppress
from pathlib import Path

import pytest
from running import Job, Runner, eventually
from thorough import once_more

pytestmark = [pytest.mark.integration, pytest.mark.parallel]

SCRIPT = str(Path(__file__).resolve().parent / "scripts" / "reduces_for_ever.py")
SOON_S = 20.0  # between the end of the first rank and the end of the job
DEADLINE_S = 45.0  # then the job is stopped, and the test is red
KILLS = int(os.environ.get("WORKBENCH_TEST_KILLS", "5"))  # in the thorough tests
ARRAYS_KB = 2 * (16 << 10)  # what two ranks have in shared memory
PATIENCE_S = 20.0  # for other jobs on the machine to come to an end


def lost_kb() -> int:
    """Shared memory of the whole machine that is in no living process: with a name, or lost.

    Each process counts with its part (Pss) of what it shares: memory that two have is not to be counted twice, or the
    end of a job beside this one would look like a loss.
    """
    in_processes = 0
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # gone by now
            in_processes += _number(r"^Pss_Shmem:", (process / "smaps_rollup").read_text())
    return _number(r"^Shmem:", Path("/proc/meminfo").read_text()) - in_processes


def lost_kb_before() -> int:
    """The same, though jobs beside this one may end between one look and the next."""
    return max(lost_kb() for _ in range(3))


def _number(name: str, text: str) -> int:
    found = re.search(rf"{name}\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) if found else 0


def nothing_is_left(job: Job) -> None:
    """No process of the job, and no name in /dev/shm, is there any more."""
    assert job.code not in (0, None), job.report()
    assert not job.left, job.report()
    names = {word for path in job.folder.glob("*.out") for word in path.read_text().split() if "/dev/shm/" in word}
    assert not [name for name in names if Path(name).exists()], job.report()


def no_memory_is_lost(kb: int) -> None:
    """As much is lost on the machine as before, once others have ended what they do."""
    assert eventually(lambda: lost_kb() <= kb + ARRAYS_KB // 2, PATIENCE_S)


@pytest.mark.timeout(60 + 20 * KILLS)
@pytest.mark.parametrize(("who", "kills"), [("everything", 1), once_more("all", KILLS), once_more("everything", KILLS)])
def test_killed_ranks_leave_nothing(jobs: Runner, kills: int, who: str) -> None:
    """kill -9 of all ranks amid a reduction, also with their launcher: /dev/shm and the machine's memory are as before.

    As often as WORKBENCH_TEST_KILLS says.
    """
    dice = random.Random(f"{who} {kills}")
    for _ in range(kills if who == "all" else -(-kills // 2)):
        kb = lost_kb_before()
        after_s = f"{dice.random() / 5:.3f}"
        job = jobs.mpiexec(2, SCRIPT, "common", who, after_s, deadline_s=DEADLINE_S)
        assert "ends at" in job.out(1), job.report()
        nothing_is_left(job)
        no_memory_is_lost(kb)


@pytest.mark.usefixtures("warm_torch")
@pytest.mark.parametrize(
    ("who", "n", "where", "backend"),
    [
        (1, 2, "common", "auto"),
        once_more(2, 3, "own", "sockets"),
        *(once_more(*each, "auto") for each in [(0, 2, "own"), (2, 3, "common")]),
        once_more(2, 4, "own", "gloo"),
    ],
)
def test_a_rank_that_is_killed_is_named(jobs: Runner, where: str, who: int, n: int, backend: str) -> None:
    """One rank is killed amid a reduction: each of the others ends soon with PeerLostError, and nothing is left.

    No launcher kills the others here, so they find out by themselves. Over TCP they also see each other's ends.
    """
    meet = {"WORLD_SIZE": str(n), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    each = [{**meet, "RANK": str(rank)} for rank in range(n)]
    way = {"WORKBENCH_BACKEND": backend}
    job = jobs.together(n, SCRIPT, where, str(who), "0.3", deadline_s=DEADLINE_S, each=each, **way)
    ended = re.search(r"ends at ([\d.]+)", job.out(who))
    assert ended is not None, job.report()
    assert job.ended - float(ended[1]) < SOON_S, job.report()
    for rank in set(range(n)) - {who}:
        assert "PeerLostError" in job.err(rank), job.report()
        assert f"Rank {who} was lost" in job.err(rank), job.report()
    nothing_is_left(job)


def free_port() -> int:
    """A port at which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
