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
from thorough import once_more

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
last, pause = int(sys.argv[1]), float(sys.argv[2])

@elastic.run
def train(state):
    print(f"begins with {hvd.size()} at {state.step}", flush=True)
    while state.step < last:
        mean = hvd.allreduce(np.full(4, state.step, np.float64), name="mean")
        state.sum = state.sum + mean
        state.step += 1
        state.sizes.append(hvd.size())
        TROUBLE
        state.commit()
        time.sleep(pause)

train(state)
assert (state.sum == sum(range(last))).all(), state.sum
print(f"done {state.step} {len(state.sizes)} {sorted(set(state.sizes))} rank {hvd.rank()}", flush=True)
"""


Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start("-np", "3", …)`` starts the training script; its words are steps and the pause after each."""
    jobs: list[Job] = []

    def begin(*words: str, steps: int = 300, pause_s: float = 0.01, trouble: str = "pass") -> Job:
        script = tmp_path / "train.py"
        script.write_text(TRAIN.replace("TROUBLE", trouble))
        jobs.append(Job(tmp_path, [*words, "python", str(script), str(steps), str(pause_s)], script))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.close()


def done(text: str) -> list[str]:
    """The last line of each worker that came to the end."""
    return re.findall(r"<stdout>:done (.*) rank", text)


@pytest.mark.parametrize("rank", [0, *map(once_more, (1, 2))])
def test_a_rank_dies_and_the_training_does_not(start: Start, rank: int) -> None:
    """Any of them, rank 0 too: the others go on from the last commit, and one comes in its place."""
    job = start("-np", "3", "--min-np", "1", steps=400)
    job.wait_for("begins with 3 at 0")
    time.sleep(0.3)
    job.kill(rank)
    job.wait_for("epoch 2 begins with 2 ranks")
    text = job.end()
    assert job.code == 0, text
    assert done(text) == ["400 400 [2, 3]"] * 3, text
    assert f"worker {rank} (rank {rank}) was lost: it was killed by SIGKILL. 2 workers left." in text


@pytest.mark.parametrize("backend", [once_more("gloo"), once_more("sockets")])
def test_on_another_data_plane(start: Start, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gloo and TCP alone, without shared memory: the same."""
    monkeypatch.setenv("WORKBENCH_BACKEND", backend)
    trouble = 'assert hvd.allreduce(np.ones(100_000), op=hvd.Sum, name="long")[-1] == hvd.size()'
    job = start("-np", "3", "--min-np", "1", trouble=trouble)
    job.wait_for("begins with 3 at 0")
    time.sleep(0.3)
    job.kill(0)
    job.wait_for("epoch 2 begins with 2 ranks")
    text = job.end()
    assert job.code == 0, text
    assert "300 300 [2, 3]" in done(text), text


def test_all_die_at_once(start: Start) -> None:
    """What was trained is lost, and the job says so; it does not begin anew unasked."""
    job = start("-np", "2", "--min-np", "1", steps=10_000)
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


def test_a_stopped_rank_is_ended_so_that_the_others_go_on(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGSTOP: after WORKBENCH_PEER_TIMEOUT_S it counts as lost, and is killed for the sake of the next epoch."""
    monkeypatch.setenv("WORKBENCH_PEER_TIMEOUT_S", "2")
    job = start("-np", "3", "--min-np", "1", steps=200)
    job.wait_for("begins with 3 at 0")
    os.kill(job.ranks()[1], signal.SIGSTOP)
    job.wait_for("worker 1 has said nothing for 2 s, and is killed")
    text = job.end()
    assert job.code == 0, text
    assert "200 200 [2, 3]" in done(text), text


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
    assert done(text) == ["320 320 [2, 3]"] * 2, text


def test_hosts_join_and_leave(start: Start, tmp_path: Path) -> None:
    """The script's hosts are followed: two names of this machine, whose ranks share no GPU; one comes and goes."""
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:1\n")
    words = ["--min-np", "1", "--max-np", "3", "--host-discovery-script", f"cat {hosts}", "--reset-limit", "2"]
    told = 'state._host_messages.empty() or print("told of hosts", flush=True)'
    job = start(*words, steps=700, trouble=told)
    job.wait_for("begins with 1 at 0")
    hosts.write_text("localhost:1\n127.0.0.1:2\n")
    job.wait_for("begins with 3 at")
    assert sorted(psutil.Process(pid).environ()["LOCAL_RANK"] for pid in job.ranks().values()) == ["0", "1", "2"]
    hosts.write_text("localhost:1\n")
    job.wait_for("begins with 1 at (?!0)")
    text = job.end()
    assert job.code == 0, text
    assert done(text)[0] == "700 700 [1, 3]", text
    assert text.index("told of hosts") < text.index("epoch 2 begins"), "as soon as they are found"
    assert "2 workers will leave at a commit" in text


def test_a_script_that_fails_or_prints_nonsense_changes_nothing(start: Start, tmp_path: Path) -> None:
    """It is complained about once, and the hosts stay as they were."""
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:2\n")
    job = start("--min-np", "1", "--host-discovery-script", f"cat {hosts}", steps=300)
    job.wait_for("begins with 2 at 0")
    hosts.write_text("a b c d\n")
    job.wait_for("printed a line that is not a host.*stay as they were")
    hosts.unlink()
    job.wait_for("No such file.*stay as they were")
    text = job.end()
    assert job.code == 0, text
    assert done(text) == ["300 300 [2]"] * 2
    assert text.count("stay as they were") == 2


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
    assert done(text) == ["500 500 [1, 2]"], text
    assert "localhost is not used" in text


def test_too_few_for_too_long(start: Start) -> None:
    """--elastic-timeout ends the wait, with its reason."""
    words = ["--min-np", "2", "--elastic-timeout", "3", "--blacklist-cooldown-range", "60", "60"]
    job = start("-np", "2", *words, steps=10_000)
    job.wait_for("begins with 2 at 0")
    job.kill(0)
    text = job.end(60)
    assert job.code != 0
    assert "waited longer than 3 s (--elastic-timeout): 1 worker of at least 2 (min-np)." in text


def test_ctrl_c_ends_it_and_leaves_nothing(start: Start) -> None:
    """As for a job of fixed size."""
    job = start("-np", "2", "--min-np", "1", steps=10_000)
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
    job = start("-np", "2", "--min-np", "1", steps=10_000)
    job.wait_for("begins with 2 at 0")
    family = psutil.Process(job.process.pid).children(recursive=True)
    job.process.kill()
    _, alive = psutil.wait_procs(family, timeout=40)
    assert alive == []


def test_process_sets_live_on_where_their_ranks_do(start: Start) -> None:
    """After a reset the sets are registered again; one whose ranks are gone waits until there are such ranks."""
    trouble = (
        "pair = next((one for one in [hvd.ProcessSet([0, 1])] if one.process_set_id is not None), None) "
        "or (hvd.add_process_set([0, 1]) if state.step == 1 else None)\n"
        "        if state.step > 1: assert bool(pair) == (hvd.size() > 1), (pair, hvd.size())\n"
        "        if pair and pair.included(): hvd.allreduce(np.ones(2), process_set=pair, name='pair')"
    )
    job = start("-np", "3", "--min-np", "1", "--blacklist-cooldown-range", "2", "2", trouble=trouble, steps=600)
    job.wait_for("begins with 3 at 0")
    time.sleep(0.3)
    job.kill(2)
    job.wait_for("epoch 2 begins with 2 ranks")
    time.sleep(0.3)
    job.kill(0)
    job.wait_for("the process set .0, 1. must wait: the job has size 1 now")
    text = job.end()
    assert job.code == 0, text
    assert "600 600 [1, 2, 3]" in done(text), text


def test_a_rank_leaves_on_sigterm(start: Start) -> None:
    """It trains on to the next commit, and its process ends well; one comes in its place."""
    job = start("-np", "3", "--min-np", "1", steps=500)
    job.wait_for("begins with 3 at 0")
    time.sleep(0.3)
    os.kill(job.ranks()[0], signal.SIGTERM)
    job.wait_for("epoch 2 begins with 2 ranks")
    job.wait_for("epoch 3 begins with 3 ranks")
    text = job.end()
    assert job.code == 0, text
    assert done(text) == ["500 500 [2, 3]"] * 3, text
    assert "worker 0 got SIGTERM, and leaves at its next commit." in text
    assert "was lost" not in text


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
    assert done(text) == ["5 5 [2]"] * 2, text
    assert text.count("child -15") == 2, text
    assert "leaves" not in text


def test_the_launcher_gets_sigterm(start: Start) -> None:
    """All ranks leave at one commit, within the grace period, and none is killed."""
    job = start("-np", "3", "--min-np", "1", steps=10_000, trouble="time.sleep(0.2)")
    job.wait_for("begins with 3 at 0")
    time.sleep(0.5)
    family = psutil.Process(job.process.pid).children(recursive=True)
    job.process.terminate()
    text = job.end(60)
    assert job.code == 128 + signal.SIGTERM, text
    assert "The job was ended by SIGTERM." in text
    assert "Traceback" not in text
    assert text.count("leaves at its next commit") == 3
    _, alive = psutil.wait_procs(family, timeout=40)
    assert alive == []


def test_all_ranks_get_sigterm(start: Start) -> None:
    """As from a batch system: all leave after a commit, and nobody begins anew without what was trained."""
    job = start("-np", "2", "--min-np", "1", steps=10_000)
    job.wait_for("begins with 2 at 0")
    time.sleep(0.3)
    for pid in job.ranks().values():
        os.kill(pid, signal.SIGTERM)
    text = job.end(60)
    assert job.code == 128 + signal.SIGTERM, text
    assert "All ranks have left the job" in text
    assert text.count("begins with") == 2, text
