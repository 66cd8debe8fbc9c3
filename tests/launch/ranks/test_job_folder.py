"""The folder of a job: locked while the job or its watchdog lives, and deleted afterwards by whoever comes next."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from running import eventually

from workbench.launch.ranks import job_folder
from workbench.launch.ranks.watchdog import runs

_JOB = "import os, time; from workbench.launch.ranks.process_tree import ProcessTree\n" + (
    "job = ProcessTree(os.environ); print(job.folder, flush=True); time.sleep(60)"
)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """The folder of a job that was killed with its watchdog at one blow, an hour ago."""
    env = os.environ | {"TMPDIR": str(tmp_path)}
    process = subprocess.Popen([sys.executable, "-c", _JOB], env=env, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        folder = Path(process.stdout.readline().strip())
    watchdogs = psutil.Process(process.pid).children()
    _age(folder)
    job_folder.delete_stale(tmp_path)
    assert folder.exists(), "the job lives"
    for each in [*watchdogs, psutil.Process(process.pid)]:
        each.suspend()
    for each in [*watchdogs, psutil.Process(process.pid)]:
        each.kill()
    process.wait()
    eventually(lambda: not any(runs(each.pid) for each in watchdogs))
    return folder


def test_a_killed_jobs_folder_is_deleted_by_the_next(job: Path, tmp_path: Path) -> None:
    """And nothing else there."""
    (tmp_path / "workbench-job-link").symlink_to(job)
    unlocked = tmp_path / "workbench-job-somebody's"
    unlocked.mkdir()
    _age(unlocked)
    folder, lock = job_folder.make(str(tmp_path / "workbench-job-next"))
    assert not job.exists()
    assert folder.is_dir()
    assert unlocked.is_dir(), "it has no lock, so it is not known to be a job's"
    os.close(lock)


def test_a_young_folder_is_left_alone(job: Path, tmp_path: Path) -> None:
    """Its job may be about to lock it."""
    os.utime(job)
    job_folder.delete_stale(tmp_path)
    assert job.exists()


def test_a_folder_is_for_its_user_alone(tmp_path: Path) -> None:
    """Whatever the umask; and one that exists is not taken over."""
    before = os.umask(0)
    try:
        folder, lock = job_folder.make(str(tmp_path / "job"))
    finally:
        os.umask(before)
    os.close(lock)
    assert folder.stat().st_mode & 0o777 == 0o700
    with pytest.raises(FileExistsError):
        job_folder.make(str(folder))


def _age(folder: Path) -> None:
    an_hour_ago = time.time() - 3600
    os.utime(folder, (an_hour_ago, an_hour_ago))
