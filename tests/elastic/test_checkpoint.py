"""States that are given a folder: what they write when, and from where a job that starts anew goes on."""

from __future__ import annotations

import gc
import logging
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench import elastic
from workbench.elastic import (
    HostsUpdatedInterrupt,
    HostUpdate,
    ObjectState,
    checkpoint,
    checkpoint_write,
    read_checkpoint,
)
from workbench.elastic.checkpoint_files import complete, directory_of, read_manifest
from workbench.elastic.state import State
from workbench.errors import CheckpointError, CollectiveError
from workbench.job import api
from workbench.job.objects import broadcast_object


def alone(**values: Any) -> ObjectState:
    """A state of one rank, without a job."""
    return ObjectState(lambda obj: obj, lambda: 0, **values)


def of_rank(**values: Any) -> ObjectState:
    """A state of this rank of a job."""
    return ObjectState(broadcast_object, api.rank, **values)


def written(state: ObjectState) -> None:
    """Commit, and wait until that is on the disk, or has failed."""
    state.commit()
    state._checkpoints.wait()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What failed is tried again at once."""
    monkeypatch.setattr(checkpoint, "RETRY_S", 0.0)
    monkeypatch.setattr(checkpoint, "LOCK_S", 0.3)


# --- going on -----------------------------------------------------------------------------------------


def train(folder: Path, ranks: int, steps: int, every: int = 2) -> list[Any]:
    """A job of threads that trains up to a step; for each rank: where it began, and what it has at the end."""

    @elastic.run
    def loop(state: Any) -> None:
        began.append(state.step)
        while state.step < steps:
            state.w = state.w * 1.5 + api.allreduce(np.ones(1001), op=api.Average, name="grad")
            state.step += 1
            state.commit()

    began: list[int] = []

    def rank() -> Any:
        api.init()
        state = of_rank(step=0, w=np.full(1001, float(api.rank())), mine=[api.rank()])
        state.checkpoint(folder, every=every)
        loop(state)
        return state.step, state.w.tobytes(), state.mine

    ended = api.run_threads(ranks, rank)
    return [began, ended]


@pytest.mark.parametrize("m", [1, 2, 3, 4])
@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_any_number_of_ranks_goes_on_from_any_other(n: int, m: int, tmp_path: Path) -> None:
    """Stop, and start on another number of ranks: all begin at the last commit, and end where one long run ends."""
    began, _ = train(tmp_path / "parts", n, steps=5)
    assert began == [0] * n
    began, ended = train(tmp_path / "parts", m, steps=9)
    assert began == [5] * m, "5 is no multiple of 2: the end of run() has written it"
    _, undisturbed = train(tmp_path / "whole", 1, steps=9)
    assert ended == undisturbed * m


def test_a_job_that_failed_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    """An exception of the training's own: nothing more is written, and the next job has what was."""

    @elastic.run
    def loop(state: Any) -> None:
        state.step, state.notes = 1, ["one"]
        written(state)
        state.step, state.notes = 2, ["one", "two"]
        raise ZeroDivisionError

    state = alone(step=0, notes=[])
    state.checkpoint(tmp_path)
    with pytest.raises(ZeroDivisionError):
        loop(state)
    again = alone(step=0, notes=[])
    again.checkpoint(tmp_path)
    again.sync()
    assert (again.step, again.notes) == (1, ["one"])


def test_a_reset_goes_on_from_the_commit_and_not_from_the_disk(tmp_path: Path) -> None:
    """After a failed collective the copy in memory counts, which is newer; the folder is looked at once."""

    @elastic.run
    def loop(state: Any) -> int:
        began.append(state.step)
        while state.step < 5:
            state.step += 1
            state.commit()
            if state.step == 3 and len(began) == 1:
                raise CollectiveError("it failed")
        return int(state.step)

    began: list[int] = []
    api.init()
    state = of_rank(step=0)
    state.checkpoint(tmp_path, every=100)
    assert loop(state) == 5
    api.shutdown()
    assert began == [0, 3]
    assert read_checkpoint(tmp_path) == {"step": 5}


def test_a_state_without_a_folder_writes_nothing() -> None:
    """finish() and resume() do nothing then."""
    state = alone(step=0)
    state._resume()
    state.commit()
    state.finish()


def test_nothing_new_is_not_written_again(tmp_path: Path) -> None:
    """A job that starts, finds its training done and ends leaves the folder as it was."""
    train(tmp_path, 2, steps=4)
    before = complete(tmp_path)
    train(tmp_path, 2, steps=4)
    assert complete(tmp_path) == before


# --- when ---------------------------------------------------------------------------------------------


def test_every_and_keep(tmp_path: Path) -> None:
    """Each third commit is written, the last two are kept, and the end writes what is left."""
    state = alone(step=0)
    checkpoints = state.checkpoint(tmp_path, every=3, keep=2)
    for step in range(1, 11):
        state.step = step
        written(state)
        assert checkpoints.newest == (step // 3 or None)
    assert [read_manifest(directory_of(tmp_path, n))["commit"] for n in complete(tmp_path)] == [6, 9]
    state.finish()
    assert read_checkpoint(tmp_path) == {"step": 10}
    assert [read_manifest(directory_of(tmp_path, n))["commit"] for n in complete(tmp_path)] == [9, 10]


@pytest.mark.parametrize("wrong", [{"every": 0}, {"keep": 0}, {"keep": -1}], ids=str)
def test_every_and_keep_are_at_least_1(wrong: dict[str, int], tmp_path: Path) -> None:
    """Both are named, with their values."""
    with pytest.raises(ValueError, match="at least 1"):
        alone(step=0).checkpoint(tmp_path, **wrong)


@pytest.fixture
def slow_disk(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """A disk that writes nothing until the event is set."""
    go, flush = threading.Event(), os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (go.wait(30), flush(handle)))
    return go


def test_a_commit_waits_for_no_disk(tmp_path: Path, slow_disk: threading.Event) -> None:
    """While one is written, commits go on; the first commit after it is written next, none between."""
    state = alone(step=0, w=np.zeros(1000))
    checkpoints = state.checkpoint(tmp_path)
    for step in range(1, 6):
        state.step = step
        state.w[:] = step  # in place: what is being written is the commit's copy
        state.commit()
    assert checkpoints.postponed == 4
    assert checkpoints.newest is None
    slow_disk.set()
    checkpoints.wait()
    found = read_checkpoint(tmp_path)
    assert (found["step"], set(found["w"])) == (1, {1.0})
    state.step = 6
    written(state)
    assert read_checkpoint(tmp_path)["step"] == 6


def test_a_restore_while_it_is_written_changes_nothing_of_it(tmp_path: Path, slow_disk: threading.Event) -> None:
    """Nor does what the training does with the restored values."""
    state = alone(w=np.zeros(1000), notes=["a"])
    checkpoints = state.checkpoint(tmp_path)
    state.commit()
    state.restore()
    state.w += 1
    state.notes.append("b")
    slow_disk.set()
    checkpoints.wait()
    found = read_checkpoint(tmp_path)
    assert (set(found["w"]), found["notes"]) == ({0.0}, ["a"])


# --- what is refused ----------------------------------------------------------------------------------


def test_what_is_not_plain_is_refused_at_once(tmp_path: Path) -> None:
    """When the folder is given, by the attribute's name; the state can be used without one."""
    state = alone(step=0, lock=print)
    with pytest.raises(CheckpointError, match=r"'lock' is of type builtin_function.*outside of the state"):
        state.checkpoint(tmp_path)
    state.commit()
    state.finish()
    assert complete(tmp_path) == []


def test_a_state_of_one_s_own_is_told_what_to_write(tmp_path: Path) -> None:
    """The two methods that it lacks."""

    class Own(State):
        pass

    with pytest.raises(CheckpointError, match=r"Own has no checkpoints: write _copies\(\) and _take"):
        Own(lambda obj: obj, lambda: 0).checkpoint(tmp_path)


def test_a_checkpoint_of_another_training_is_refused(tmp_path: Path) -> None:
    """Both attributes are named, what is in memory stays, and so does the checkpoint."""
    state = alone(step=3, lr=0.1)
    state.checkpoint(tmp_path)
    state.commit()
    state.finish()
    other = alone(step=0, rate=0.2)
    other.checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match=r"to another training: it lacks 'rate'; it has 'lr'. Give this tr"):
        other.sync()
    assert (other.step, other.rate) == (0, 0.2)
    assert read_checkpoint(tmp_path) == {"step": 3, "lr": 0.1}


def test_all_ranks_are_told_of_it_alike(tmp_path: Path) -> None:
    """Rank 0 alone reads; no rank is left waiting for it."""

    def rank() -> str:
        api.init()
        state = of_rank(rate=0.2)
        state.checkpoint(tmp_path)
        with pytest.raises(CheckpointError) as caught:
            state.sync()
        api.barrier()
        return str(caught.value)

    state = alone(step=3)
    state.checkpoint(tmp_path)
    state.commit()
    state.finish()
    told = api.run_threads(3, rank)
    assert len(set(told)) == 1
    assert "to another training: it lacks 'rate'" in told[0]


def test_no_checkpoint_is_an_error_for_who_reads_one(tmp_path: Path) -> None:
    """An empty folder and one that is not there."""
    with pytest.raises(CheckpointError, match="no finished checkpoint"):
        read_checkpoint(tmp_path)
    with pytest.raises(CheckpointError, match="No such file or directory"):
        read_checkpoint(tmp_path / "nowhere")


@pytest.mark.parametrize("where", ["/proc/here", "file/here"])
def test_a_folder_that_cannot_be_written_to_is_refused_at_once(where: str, tmp_path: Path) -> None:
    """Not after hours of training."""
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="No checkpoints can be written: "):
        alone(step=0).checkpoint(tmp_path / where)


# --- what fails ---------------------------------------------------------------------------------------


def test_a_folder_that_goes_is_a_warning_and_comes_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, impatient: None
) -> None:
    """The next commit says what to do; training goes on; when the folder is there again, it is written to."""
    folder = tmp_path / "here"
    state = alone(step=0)
    checkpoints = state.checkpoint(folder)
    written(state)
    shutil.rmtree(folder)
    written(state)
    assert not folder.exists(), "a folder that is gone may be a disk that is not mounted"
    assert caplog.records == []
    folder.mkdir()
    state.step = 5
    state.commit()
    (said,) = [record.getMessage() for record in caplog.records]
    assert "Checkpoint 2 failed on rank 0" in said
    assert "The folder is gone: create it again" in said
    checkpoints.wait()
    state.commit()
    assert len(caplog.records) == 1
    state.finish()
    assert read_checkpoint(folder) == {"step": 5}


def test_after_several_failures_in_a_row_a_commit_raises(
    tmp_path: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last failure is told; the committed state is in memory."""
    monkeypatch.setattr(checkpoint, "LIMIT", 3)
    state = alone(step=0)
    state.checkpoint(tmp_path / "here")
    shutil.rmtree(tmp_path / "here")
    for _ in range(3):
        written(state)
    state.step = 4
    with pytest.raises(CheckpointError, match=r"3 checkpoints in a row failed\. Checkpoint 3 failed"):
        state.commit()
    state.step = 9
    state.restore()
    assert state.step == 4


def test_after_a_failure_the_next_one_waits_a_moment(tmp_path: Path) -> None:
    """Five commits within a second must not use up all attempts."""
    state = alone(step=0)
    state.checkpoint(tmp_path / "here")
    shutil.rmtree(tmp_path / "here")
    for _ in range(20):
        written(state)


def test_the_end_raises_where_the_last_one_cannot_be_written(tmp_path: Path, impatient: None) -> None:
    """On all ranks alike."""

    def rank() -> str:
        api.init()
        state = of_rank(step=0)
        state.checkpoint(tmp_path / "here")
        api.barrier()
        if api.rank() == 0:
            shutil.rmtree(tmp_path / "here")
        api.barrier()
        state.commit()
        with pytest.raises(CheckpointError, match="failed on rank 0") as caught:
            state.finish()
        return str(caught.value)

    one, two = api.run_threads(2, rank)
    assert one == two


def test_a_rank_without_a_folder_is_missed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Rank 0 says which ranks wrote nothing; the training goes on."""

    def rank() -> None:
        api.init()
        state = of_rank(step=0)
        if api.rank() == 0:
            checkpoints = state.checkpoint(tmp_path)
            checkpoints._patience_s = 0.2
        state.commit()
        if api.rank() == 0:
            checkpoints.wait()
        state.commit()

    api.run_threads(3, rank)
    assert "The parts of ranks [1, 2] did not appear" in caplog.text


def test_ranks_that_change_keep_rank_0_from_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a reset the part of a rank that has gone is given up soon, and that is no failure of the disk."""
    monkeypatch.setattr(checkpoint_write, "_CUT_SHORT_S", 0.1)
    monkeypatch.setattr(api, "size", lambda: 2)
    monkeypatch.setattr(api, "is_initialized", lambda: True)
    state = alone(step=1)
    checkpoints = state.checkpoint(tmp_path)
    state.commit()
    time.sleep(0.3)
    assert checkpoints.busy()
    state.on_reset()
    checkpoints.wait(10.0)
    assert "ranks [1]" in checkpoints.problem()
    assert checkpoints._failures == 0


def test_a_commit_at_which_ranks_leave_is_written(tmp_path: Path, slow_disk: threading.Event) -> None:
    """Whether or not it is due, and though one is being written; who leaves stays until it is on the disk."""
    state = alone(step=0)
    checkpoints = state.checkpoint(tmp_path, every=100)
    checkpoints._since = 99
    for state.step in (1, 2):
        state.commit()
    assert checkpoints.busy()
    threading.Timer(0.2, slow_disk.set).start()
    state.step = 3
    state.on_hosts_updated(1.0, HostUpdate.REMOVED)
    with pytest.raises(HostsUpdatedInterrupt):
        state.commit()
    state._on_leave()
    assert read_checkpoint(tmp_path) == {"step": 3}
    assert [read_manifest(directory_of(tmp_path, n))["commit"] for n in complete(tmp_path)] == [1, 3]


# --- one job at a time --------------------------------------------------------------------------------

OTHER = """
import sys, time
from workbench.elastic import ObjectState
state = ObjectState(lambda obj: obj, lambda: 0, step=1)
checkpoints = state.checkpoint(sys.argv[1])
state.sync(); state.commit(); checkpoints.wait()
print("writes", flush=True)
time.sleep(60)
"""


def test_two_jobs_on_one_folder(tmp_path: Path, impatient: None) -> None:
    """The second is told who is there. When the first is killed, the second goes on from what it has written."""
    with subprocess.Popen([sys.executable, "-c", OTHER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "writes\n"
            state = alone(step=0)
            state.checkpoint(tmp_path)
            with pytest.raises(CheckpointError, match=f"process {other.pid} on .* writes checkpoints to {tmp_path}"):
                state.sync()
            assert state.step == 0
            assert read_checkpoint(tmp_path) == {"step": 1}, "who only reads needs no lock"
        finally:
            other.kill()
    state = alone(step=0)
    state.checkpoint(tmp_path)
    state.sync()
    assert state.step == 1


def test_a_cell_that_is_run_again_takes_the_folder_over(tmp_path: Path) -> None:
    """The state of the cell before is still there: it writes no more, and says so; the new one goes on."""
    before = alone(step=1)
    checkpoints = before.checkpoint(tmp_path)
    written(before)
    after = alone(step=0)
    after.checkpoint(tmp_path)
    after.sync()
    assert after.step == 1
    written(before)
    assert "Another state of this process writes" in checkpoints.problem()
    after.step = 2
    after.commit()
    after.finish()
    assert read_checkpoint(tmp_path) == {"step": 2}


def test_a_state_that_is_gone_holds_no_lock(tmp_path: Path) -> None:
    """No file of it stays open."""
    state: Any = alone(step=1)
    state.checkpoint(tmp_path)
    state.commit()
    state._checkpoints.wait()

    def is_open() -> bool:
        links = [Path(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd")]
        return any(str(tmp_path) in os.readlink(link) for link in links if link.is_symlink())

    assert is_open()
    del state
    gc.collect()
    assert not is_open()


def test_the_log_says_where_it_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As information; without a checkpoint nothing is said."""
    with caplog.at_level(logging.INFO, "workbench"):
        for said in (0, 1):
            state = alone(step=0)
            state.checkpoint(tmp_path)
            state.sync()
            state.commit()
            state.finish()
            assert caplog.text.count("continuing from") == said
