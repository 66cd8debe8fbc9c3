"""Checkpoints against real trouble: kill -9 amid a write, a disk that is full, a rank that is killed alone."""

from __future__ import annotations

import logging
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from thorough import once_more

from workbench.elastic import ObjectState, checkpoint, read_checkpoint
from workbench.elastic.checkpoint import newest_complete
from workbench.elastic.checkpoint_files import complete, directory_of, numbers, part_name
from workbench.elastic.checkpoint_values import NUMPY
from workbench.elastic.checkpoint_write import Attempt, write
from workbench.errors import CheckpointError

WRITER = Path(__file__).resolve().parents[1] / "helpers" / "checkpoint_writer.py"
KILLS = 30


def is_written_to(folder: Path) -> bool:
    """Has a checkpoint been begun that is newer than all whole ones?"""
    return max(numbers(folder), default=0) > max(complete(folder), default=0)


def said_until_killed(folder: Path, ranks: int, after_s: float, amid: bool) -> list[str]:
    """Start a writer, kill it some time after it began to train, and return what it had said until then.

    Args:
        folder, ranks: the writer's.
        after_s: how long after.
        amid: and then wait until it has begun another checkpoint.
    """
    lines: list[str] = []
    began = threading.Event()
    command = [sys.executable, str(WRITER), str(folder), str(ranks), "4"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as writer:

        def read() -> None:
            for line in writer.stdout or ():
                if line.endswith("\n"):  # the last one may have been cut
                    lines.append(line.strip())
                    began.set()

        reader = threading.Thread(target=read)
        reader.start()
        started = began.wait(30)
        time.sleep(after_s if started else 0)
        until = time.monotonic() + 10
        while amid and started and not is_written_to(folder) and time.monotonic() < until:
            time.sleep(0.0005)
        writer.kill()
        reader.join(30)
        errors = writer.stderr.read() if writer.stderr else ""
    assert started, errors
    return lines


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(("ranks", "kills"), [(3, 8), once_more(1, KILLS // 2), once_more(3, KILLS // 2)])
def test_kill_9_leaves_the_last_whole_one(ranks: int, kills: int, tmp_path: Path) -> None:
    """At any moment: what is read is one step's, not older than what was announced; the next job is there."""
    moments = random.Random(ranks)
    amid_a_write = before = 0
    for kill in range(kills):
        began, *announced = said_until_killed(tmp_path, ranks, moments.uniform(0.0, 0.4), amid=bool(kill % 2))
        assert began == f"from {before}", "each job goes on from what the one before has left"
        newest = max([int(line.split()[1]) for line in announced], default=0)
        found = newest_complete(tmp_path, (NUMPY,))
        if found is None:
            assert newest == 0
            continue
        values, manifest = found
        assert manifest["number"] >= newest
        step = values["step"]
        assert step >= before
        assert (set(values["large"]), set(values["small"]), values["words"]) == ({step}, {step}, [str(step)])
        amid_a_write += is_written_to(tmp_path)
        before = step
    assert before > 0
    assert amid_a_write >= kills // 5, "the kills came amid writes, and not between them"


def test_a_rank_that_is_killed_amid_its_part(tmp_path: Path) -> None:
    """Its temporary file is nobody's part; rank 0 names the rank, and the checkpoint before is the newest."""
    state: dict[str, Any] = {"w": np.zeros(1 << 20)}
    write(tmp_path, Attempt(1, 1, 1, "aa"), 0, state, (NUMPY,), 5.0, threading.Event())
    code = (
        "import os, sys, threading, time; from pathlib import Path; import numpy as np\n"
        "from workbench.elastic.checkpoint_write import Attempt, write\n"
        "from workbench.elastic.checkpoint_values import NUMPY\n"
        "os.fsync = lambda handle: (print('amid', flush=True), time.sleep(60))\n"
        "state = {'w': np.zeros(1 << 20)}\n"
        "write(Path(sys.argv[1]), Attempt(2, 2, 2, 'bb'), 1, state, (NUMPY,), 5.0, threading.Event())"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "amid\n"
        other.kill()
    left = directory_of(tmp_path, 2) / f".{part_name(1, 2, 'bb')}.tmp"
    assert left.stat().st_size > 0
    with pytest.raises(CheckpointError, match=r"parts of ranks \[1\] did not appear"):
        write(tmp_path, Attempt(2, 2, 2, "bb"), 0, state, (NUMPY,), 0.3, threading.Event())
    assert complete(tmp_path) == [1]


# --- a full disk --------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if shutil.which("mount") is None or os.geteuid() != 0:
        pytest.skip("only root can mount a small tmpfs")
    done = subprocess.run(words, capture_output=True, text=True, timeout=20)
    if done.returncode:
        pytest.skip(f"no tmpfs can be mounted here: {done.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True, timeout=20)


def test_a_full_disk(small_disk: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A warning with the path and what to do; the last one stays; nothing half is left; with room it goes on."""
    monkeypatch.setattr(checkpoint, "RETRY_S", 0.0)
    state: Any = ObjectState(lambda obj: obj, lambda: 0, step=1, w=np.ones(1 << 17))
    checkpoints = state.checkpoint(small_disk, keep=1)
    state.commit()
    checkpoints.wait()
    (small_disk / "large").write_bytes(bytes(5 << 19))
    state.step = 2
    state.commit()
    checkpoints.wait()
    with caplog.at_level(logging.WARNING, "workbench"):
        state.commit()
        checkpoints.wait()
    assert "No space left on device" in caplog.text
    assert "Make room there, or keep fewer checkpoints." in caplog.text
    assert read_checkpoint(small_disk)["step"] == 1
    assert not list(small_disk.rglob("*.tmp"))
    (small_disk / "large").unlink()
    state.step = 3
    state.commit()
    state.finish()
    assert read_checkpoint(small_disk)["step"] == 3
    assert len(numbers(small_disk)) == 1, "what failed is deleted when a newer one is whole"


def test_a_disk_with_room_for_those_that_are_kept(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two are kept, and a third one does not fit beside them: one is always whole, and what failed is gone."""
    monkeypatch.setattr(checkpoint, "RETRY_S", 0.0)
    state: Any = ObjectState(lambda obj: obj, lambda: 0, step=0, w=np.ones(3 << 16))
    checkpoints = state.checkpoint(small_disk, keep=2)
    written, oldest = [], []
    for step in range(1, 8):
        state.step = step
        state.commit()
        checkpoints.wait()
        oldest.append(len(complete(small_disk)))
        written.append(checkpoints.newest)
        assert read_checkpoint(small_disk)["step"] == (step if checkpoints.problem() == "" else step - 1)
    assert written == [1, 2, 2, 4, 5, 6, 7], "the third one finds out that the disk is full"
    assert oldest == [1, 2, 2, 2, 2, 2, 2]
    assert numbers(small_disk) == [6, 7]


def test_what_was_given_up_takes_no_room(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank could not write its part: what rank 0 had written goes before the next attempt, which fits."""
    monkeypatch.setattr(checkpoint, "RETRY_S", 0.0)
    directory_of(small_disk, 1).mkdir()
    (directory_of(small_disk, 1) / "part-0-of-2-ab").write_bytes(bytes(3 << 20))
    state: Any = ObjectState(lambda obj: obj, lambda: 0, step=1, w=np.ones(1 << 18))
    state.checkpoint(small_disk)
    state.commit()
    state.finish()
    assert numbers(small_disk) == complete(small_disk) == [2]


def test_a_disk_that_is_full_on_one_rank_only(small_disk: Path, tmp_path: Path) -> None:
    """Rank 0 has room and hears why the other has not; it need not wait for its patience to end."""
    (tmp_path / "all").mkdir()
    attempt, state = Attempt(1, 1, 2, "ab"), {"w": np.ones(2 << 20)}
    directory = directory_of(tmp_path / "all", 1)
    directory.mkdir()
    raised: list[BaseException] = []
    (directory / f".{attempt.part(1)}.tmp").symlink_to(small_disk / "part")  # rank 1 writes to the small disk

    def rank_1() -> None:
        try:
            write(tmp_path / "all", attempt, 1, state, (NUMPY,), 30.0, threading.Event())
        except OSError as error:
            raised.append(error)

    other = threading.Thread(target=rank_1)
    other.start()
    began = time.monotonic()
    with pytest.raises(CheckpointError, match=r"Rank 1 could not write its part: .*No space left"):
        write(tmp_path / "all", attempt, 0, state, (NUMPY,), 30.0, threading.Event())
    assert time.monotonic() - began < 20
    other.join(20)
    assert len(raised) == 1
