"""``workbench run --min-np``: real processes, killed, stopped, added and taken away while they train."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from elastic_jobs import Job

pytestmark = pytest.mark.timeout(150)
TRAIN = """
import os, sys, time
import numpy as np
import workbench as hvd
from workbench import elastic
from workbench.job.objects import broadcast_object

hvd.init()
worker = os.environ["WORKBENCH_WORKER"]
state = elastic.ObjectState(broadcast_object, hvd.rank, step=0, sum=np.zeros(4), sizes=[])
last, pause, over = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]

@elastic.run
def train(state):
    print(f"begins with {hvd.size()} at {state.step}", flush=True)
    while state.step < last and not hvd.allreduce(np.array([float(os.path.exists(over))]), op=hvd.Max, name="over")[0]:
        mean = hvd.allreduce(np.full(4, state.step, np.float64), name="mean")
        state.sum = state.sum + mean
        state.step += 1
        state.sizes.append(hvd.size())
        TROUBLE
        state.commit()
        time.sleep(pause)

train(state)
assert (state.sum == sum(range(state.step))).all(), state.sum
assert state.step == len(state.sizes)
print(f"done {sorted(set(state.sizes))} rank {hvd.rank()}", flush=True)
"""


Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start("-np", "3", …)`` starts a training, which ends after so many steps, or when there is a file ``over``."""
    jobs: list[Job] = []

    def begin(*words: str, steps: int = 10**6, trouble: str = "pass") -> Job:
        script = tmp_path / "train.py"
        script.write_text(TRAIN.replace("TROUBLE", trouble))
        end = [str(steps), "0.03", str(tmp_path / "over")]
        jobs.append(Job(tmp_path, [*words, "python", str(script), *end], script))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.close()


def done(text: str) -> list[str]:
    """The last line of each worker that came to the end."""
    return re.findall(r"<stdout>:done (.*) rank", text)


def test_ranks_die_leave_and_stop_and_the_training_does_not(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL, of rank 0 too, SIGTERM and SIGSTOP: the others go on from the last commit, and one comes each time.

    Who gets SIGTERM trains on to the next commit, and ends well; who is stopped counts as lost after a while.
    """
    monkeypatch.setenv("WORKBENCH_PEER_TIMEOUT_S", "5")
    job = start("-np", "3", "--min-np", "1", "--blacklist-cooldown-range", "0", "0")
    job.wait_for("begins with 3 at 0")
    told = job.kill(0)
    job.wait_for("begins with 3 at (?!0)", times=3, after=told)
    assert "worker 0 (rank 0) was lost: it was killed by SIGKILL. 2 workers left." in job.text()
    told = len(job.text())
    os.kill(job.ranks()[1], signal.SIGTERM)
    job.wait_for("begins with 3 at (?!0)", times=3, after=told)
    assert "worker 1 got SIGTERM, and leaves at its next commit." in job.text()
    told = len(job.text())
    os.kill(job.ranks()[2], signal.SIGSTOP)
    job.wait_for("worker 2 has said nothing for 5 s, and is killed")
    job.wait_for("begins with 3 at (?!0)", times=3, after=told)
    (tmp_path / "over").touch()
    text = job.end()
    assert job.code == 0, text
    assert [int(each[-2]) for each in done(text)] == [3] * 3, text
    assert len(re.findall(r"^workbench: worker \d \(rank \d\) was lost", text, re.M)) == 2, text


def test_all_die_at_once(start: Start) -> None:
    """What was trained is lost, and the job says so; it does not begin anew unasked."""
    job = start("-np", "2", "--min-np", "1")
    job.wait_for("begins with 2 at 0")
    for pid in job.ranks().values():
        os.kill(pid, signal.SIGKILL)
    text = job.end(60)
    assert job.code == 128 + signal.SIGKILL, text
    assert "were lost, and with them the trained state" in text


def test_a_bug_of_the_script_ends_the_job(start: Start) -> None:
    """An exception on all ranks is no reason to start others; it is told once more at the end."""
    job = start("-np", "2", "--min-np", "1", trouble="1 / 0")
    text = job.end(60)
    assert job.code == 1, text
    assert text.rstrip().endswith("ZeroDivisionError: division by zero")


def test_a_worker_that_never_comes_is_given_up(start: Start, tmp_path: Path) -> None:
    """It ends before init() each time: after some attempts the host is given up, and the job fails."""
    job = start("-np", "2", "--min-np", "2", "--blacklist-cooldown-range", "0", "0")
    job.script.write_text("import sys; sys.exit(3)")
    text = job.end(60)
    assert job.code == 3, text
    assert "localhost is not used" in text
    # Where the machine is busy, the last two may be seen to end at one look.
    assert "Fewer than 2 ranks (--min-np) are left" in text or "No rank is left" in text


@pytest.mark.thorough
def test_a_rank_that_computes_is_waited_for(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long after its last word to the launcher, while another one dies: it lives, and the next epoch has it."""
    monkeypatch.setenv("WORKBENCH_PEER_TIMEOUT_S", "2")
    busy, dies = "time.sleep(5) if worker == '0'", "os.kill(os.getpid(), 9) if worker == '1'"
    trouble = f"if state.step == 300: {busy} else {dies} else 0"
    job = start("-np", "3", "--min-np", "1", "--blacklist-cooldown-range", "60", "60", steps=320, trouble=trouble)
    text = job.end()
    assert job.code == 0, text
    assert "has said nothing" not in text
    assert done(text) == ["[2, 3]"] * 2, text


def test_hosts_join_and_leave(start: Start, tmp_path: Path) -> None:
    """The script's hosts are followed: two names of this machine, whose ranks share no GPU; one comes and goes.

    A script that prints nonsense or fails is complained about once, and changes nothing.
    """
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:1\n")
    words = ["--min-np", "1", "--max-np", "3", "--host-discovery-script", f"cat {hosts}", "--reset-limit", "2"]
    told = 'state._host_messages.empty() or print("told of hosts", flush=True)'
    job = start(*words, trouble=told)
    job.wait_for("begins with 1 at 0")
    hosts.write_text("localhost:1\n127.0.0.1:2\n")
    job.wait_for("begins with 3 at")
    assert sorted(psutil.Process(pid).environ()["LOCAL_RANK"] for pid in job.ranks().values()) == ["0", "1", "2"]
    hosts.write_text("a b c d\n")
    job.wait_for("printed a line that is not a host.*stay as they were")
    hosts.unlink()
    job.wait_for("No such file.*stay as they were")
    hosts.write_text("localhost:1\n")
    job.wait_for("begins with 1 at (?!0)")
    (tmp_path / "over").touch()
    text = job.end()
    assert job.code == 0, text
    assert done(text)[0] == "[1, 3]", text
    assert text.count("stay as they were") == 2
    assert text.index("told of hosts") < text.index("epoch 2 begins"), "as soon as they are found"
    assert "2 workers will leave at a commit" in text


@pytest.mark.thorough
def test_other_code_is_refused(start: Start) -> None:
    """Who edits the script while it trains gets no ranks that train something else; the others go on."""
    second = 'state.step == 2 and print("one step is committed", flush=True)'
    job = start("-np", "2", "--min-np", "1", "--blacklist-cooldown-range", "0", "0", steps=500, trouble=second)
    job.wait_for("one step is committed")
    job.script.write_text(job.script.read_text() + "# edited")
    job.kill(0)
    job.wait_for("worker 2 was refused: its script is .*, and the others' ")
    text = job.end()
    assert job.code == 0, text
    assert done(text) == ["[1, 2]"], text
    assert "localhost is not used" in text


def test_too_few_for_too_long(start: Start) -> None:
    """--elastic-timeout ends the wait, with its reason."""
    words = ["--min-np", "2", "--elastic-timeout", "3", "--blacklist-cooldown-range", "60", "60"]
    job = start("-np", "2", *words)
    job.wait_for("begins with 2 at 0")
    job.kill(0)
    text = job.end(60)
    assert job.code != 0
    assert "waited longer than 3 s (--elastic-timeout): 1 worker of at least 2 (min-np)." in text


def test_ctrl_c_ends_it_and_leaves_nothing(start: Start) -> None:
    """As for a job of fixed size."""
    job = start("-np", "2", "--min-np", "1")
    job.wait_for("begins with 2 at 0")
    family = psutil.Process(job.process.pid).children(recursive=True)
    job.process.send_signal(signal.SIGINT)
    text = job.end(60)
    assert job.code == 130, text
    _, alive = psutil.wait_procs(family, timeout=40)
    assert alive == []


@pytest.mark.thorough
def test_the_launcher_is_killed(start: Start) -> None:
    """Its watchdog ends all workers."""
    job = start("-np", "2", "--min-np", "1")
    job.wait_for("begins with 2 at 0")
    family = psutil.Process(job.process.pid).children(recursive=True)
    job.process.kill()
    _, alive = psutil.wait_procs(family, timeout=40)
    assert alive == []


def test_process_sets_live_on_where_their_ranks_do(start: Start, tmp_path: Path) -> None:
    """After a reset the sets are registered again; one whose ranks are gone waits until there are such ranks."""
    trouble = (
        "pair = next((one for one in [hvd.ProcessSet([0, 1])] if one.process_set_id is not None), None) "
        "or (hvd.add_process_set([0, 1]) if state.step == 1 else None)\n"
        "        if state.step > 1: assert bool(pair) == (hvd.size() > 1), (pair, hvd.size())\n"
        "        if pair and pair.included(): hvd.allreduce(np.ones(2), process_set=pair, name='pair')\n"
        "        if state.step == 3 or len({*state.sizes[-2:]}) > 1: print(f'steps with {hvd.size()}', flush=True)"
    )
    job = start("-np", "3", "--min-np", "1", "--blacklist-cooldown-range", "2", "2", trouble=trouble)
    job.wait_for("steps with 3")
    job.kill(2)
    job.wait_for("steps with 2")
    job.kill(0)
    waits = job.wait_for("the process set .0, 1. must wait: the job has size 1 now")
    job.wait_for("begins with [23] at", after=waits.end())
    (tmp_path / "over").touch()
    text = job.end()
    assert job.code == 0, text
    assert [each[-2] for each in done(text)] == ["3"] * 3, text


CHILDREN = """
        if state.step == 2:
            import multiprocessing
            for _ in range(3):
                multiprocessing.Pool(2).__exit__(None, None, None)
            child = multiprocessing.Process(target=time.sleep, args=(300,))
            child.start()
            child.terminate()
            child.join()
            print(f"child {child.exitcode}", flush=True)
"""


def test_sigterm_ends_a_child_of_a_rank(start: Start) -> None:
    """It is not the rank's own: a pool and a process end as in any program, and the rank trains on."""
    job = start("-np", "2", "--min-np", "1", steps=5, trouble=CHILDREN.strip())
    text = job.end()
    assert done(text) == ["[2]"] * 2, text
    assert text.count("child -15") == 2, text
    assert "leaves" not in text


def test_the_launcher_gets_sigterm(start: Start) -> None:
    """All ranks leave at one commit, within the grace period, and none is killed."""
    job = start("-np", "2", "--min-np", "1", trouble="time.sleep(0.2)")
    job.wait_for("begins with 2 at 0")
    time.sleep(0.5)
    family = psutil.Process(job.process.pid).children(recursive=True)
    job.process.terminate()
    text = job.end(60)
    assert job.code == 128 + signal.SIGTERM, text
    assert "The job was ended by SIGTERM." in text
    assert "Traceback" not in text
    assert text.count("leaves at its next commit") == 2
    _, alive = psutil.wait_procs(family, timeout=40)
    assert alive == []


def test_all_ranks_get_sigterm(start: Start) -> None:
    """As from a batch system: all leave after a commit, and nobody begins anew without what was trained."""
    job = start("-np", "2", "--min-np", "1")
    job.wait_for("begins with 2 at 0")
    time.sleep(0.3)
    for pid in job.ranks().values():
        os.kill(pid, signal.SIGTERM)
    text = job.end(60)
    assert job.code == 128 + signal.SIGTERM, text
    assert "All ranks have left the job" in text
    assert text.count("begins with") == 2, text
