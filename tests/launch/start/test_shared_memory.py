"""A small, read-only or missing /dev/shm: MPI is not started into it, and the text says what to do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from thorough import once_more

from workbench.launch.start import gforker, mpi, shared_memory

ROOT = pytest.mark.skipif(sys.platform != "linux" or os.geteuid() != 0, reason="mounts another /dev/shm")
BY = "from workbench import config\nprint(config.launch().launcher, config.launch().size)\n"
ADDS = """
import numpy as np, workbench as hvd
hvd.init()
print(hvd.allreduce(np.full(100_000, hvd.rank() + 1.0), op=hvd.Sum).sum())
"""


def run(folder: Path, options: str, *words: str, text: str = ADDS) -> subprocess.CompletedProcess[str]:
    """``workbench run`` with a /dev/shm of its own."""
    script = folder / "adds.py"
    script.write_text(text)
    command = [sys.executable, "-m", "workbench.cli.main", "run", *words, sys.executable, str(script)]
    within = ["unshare", "-m", "sh", "-c", f'mount -t tmpfs -o {options} tmpfs /dev/shm && exec "$@"', "sh"]
    env = mpi.environment(1)
    return subprocess.run([*within, *command], env=env, capture_output=True, text=True, timeout=55, check=False)


@ROOT
@pytest.mark.parallel
@pytest.mark.parametrize("options", ["size=1m", once_more("ro")])
def test_without_room_the_ranks_take_another_way(tmp_path: Path, options: str) -> None:
    """Where MPI was not asked for, they run without it, and a line says why."""
    done = run(tmp_path, options, "-np", "2", text=BY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(":torchrun 2\n") == 2, done.stdout
    assert "2 ranks of MPI need 25.2 MB in /dev/shm" in done.stderr
    assert "--shm-size" in done.stderr


@ROOT
@pytest.mark.parallel
@pytest.mark.parametrize("options", ["size=1m", once_more("ro")])
def test_without_room_mpi_alone_is_refused(tmp_path: Path, options: str) -> None:
    """``--mpi``: one line names /dev/shm, the need, what is free, and the cure. No rank starts."""
    done = run(tmp_path, options, "-np", "4", "--mpi")
    assert (done.returncode, done.stdout) == (1, "")
    assert len(done.stderr.splitlines()) == 1
    for word in ("4 ranks of MPI", "37.7 MB", "/dev/shm", "free", "--shm-size"):
        assert word in done.stderr


@ROOT
@pytest.mark.parallel
def test_with_room_for_just_so_many_ranks_mpi_runs(tmp_path: Path) -> None:
    """What is counted for a rank is enough for it."""
    done = run(tmp_path, f"size={shared_memory.needed_bytes(2)}", "-np", "2", "--mpi")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(":300000.0\n") == 2


def test_a_folder_that_is_not_there_is_no_room(tmp_path: Path) -> None:
    """The reason is the system's own word; one rank needs none."""
    assert "No such file" in shared_memory.problem(2, tmp_path / "no")
    assert shared_memory.problem(1, tmp_path / "no") == ""
    assert shared_memory.problem(2, tmp_path) == ""
    assert not list(tmp_path.iterdir())


def test_the_gforker_does_without_memfd_create(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox may forbid it: then the file is one of the disk, and has no name either."""

    def forbidden(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", forbidden)
    file = gforker._aside(b"data")
    assert os.pread(file, 10, 0) == b"data"
    assert os.get_inheritable(file)
    os.close(file)
