"""What a learner may use: a user of the system, memory and processes by control groups, and a disk of its own.

All of it needs root. Control groups of both versions are known; where there is none that can be written, limits of a
process stand in: fewer things are held then, and :func:`kept` says which.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import psutil

from workbench.cli.class_server.place import Place
from workbench.errors import LaunchError

_GROUPS = Path("/sys/fs/cgroup")
_MARK = "learner of a workbench class"


def user(learner: str) -> str:
    """The name of the system's user."""
    return f"wb-{learner}"


def make(place: Place, learner: str) -> None:
    """A learner's home and, as root, its user, disk and control groups; what is there already stays.

    Raises:
        LaunchError: the system refuses one of them.
    """
    home = place.home(learner)
    home.mkdir(parents=True, exist_ok=True)
    if not place.apart:
        return
    try:
        pwd.getpwnam(user(learner))
    except KeyError:
        options = ("--home-dir", str(home), "--no-create-home", "--shell", "/bin/bash", "--comment", _MARK)
        _do("useradd", *options, user(learner))
    image = place.hub / "disks" / f"{learner}.img"
    if place.disk_mib and not os.path.ismount(home):
        image.parent.mkdir(parents=True, exist_ok=True)
        if not image.exists():
            with image.open("wb") as file:
                file.truncate(place.disk_mib << 20)
            _do("mkfs.ext4", "-q", "-m", "0", str(image))
        _do("mount", "-o", "loop,nosuid,nodev", str(image), str(home))
    found = pwd.getpwnam(user(learner))
    os.chown(home, found.pw_uid, found.pw_gid)
    home.chmod(0o700)
    for path, value in _groups(place, learner):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(value))


def rights(learner: str) -> dict[str, Any]:
    """For ``subprocess``: a process as the learner's user."""
    found = pwd.getpwnam(user(learner))
    return {"user": found.pw_uid, "group": found.pw_gid, "extra_groups": []}


def taken(learners: Iterable[str]) -> str:
    """The first learner whose user there is already, of another class; "" if there is none."""
    there = {each.pw_name for each in pwd.getpwall()}
    return next((each for each in learners if user(each) in there), "")


def remove(place: Place, learner: str) -> None:
    """End what the learner has left running, then take away home, user, disk and groups."""
    if not place.apart:
        shutil.rmtree(place.home(learner), ignore_errors=True)
        return
    end(learner)
    home = place.home(learner)
    if os.path.ismount(home):
        _do("umount", str(home))
    (place.hub / "disks" / f"{learner}.img").unlink(missing_ok=True)
    shutil.rmtree(home, ignore_errors=True)
    for path in {path.parent for path, _ in _groups(place, learner)}:
        for each in (path, path.parent):  # the class's own with its last learner's
            with contextlib.suppress(OSError):
                each.rmdir()
    with contextlib.suppress(KeyError, LaunchError):  # what it has left elsewhere; the next user has its number
        _do("find", "/tmp", "/var/tmp", "/dev/shm", "-xdev", "-user", user(learner), "-delete")
    with contextlib.suppress(KeyError):
        if pwd.getpwnam(user(learner)).pw_gecos.startswith(_MARK):  # never somebody else's user
            _do("userdel", user(learner))


def end(learner: str) -> None:
    """End all processes of a learner's user: stopped first, so that none makes another one meanwhile."""
    try:
        uid = pwd.getpwnam(user(learner)).pw_uid
    except KeyError:
        return
    until = time.monotonic() + 10
    while (left := _of(uid)) and time.monotonic() < until:
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in left:
                try:
                    os.kill(pid, number)
                except ProcessLookupError:
                    continue
        time.sleep(0.05)


def enter(place: Place, learner: str) -> None:
    """In the process that becomes the learner's server, before it gives up being root."""
    groups = list(_groups(place, learner))
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("0")  # the hub's is lower
    for path in {path.parent for path, _ in groups}:
        (path / "cgroup.procs").write_text(str(os.getpid()))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_NPROC, (place.processes, place.processes))
    if not any(path.name.startswith("memory") for path, _ in groups):
        most = place.memory_mib << 20
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def kept(place: Place) -> str:
    """What the limits are, and which of them hold here, in words."""
    if place.slurm is not None:
        job = f"a job of Slurm's with {place.memory_mib} MiB and {place.cores} cores"
        return f"Each has {job}. All run as you: they can read each other's work."
    if not place.apart:
        return "No limits, and all learners are you: they can read each other's work. Root can give each a user."
    memory = f"{place.memory_mib} MiB of memory"
    if not _version():
        memory += " (for each process alone: no control group can be written)"
    disk = f", {place.disk_mib} MiB of disk" if place.disk_mib else ""
    return f"Each has {memory}, {place.processes} processes, {place.cores} cores{disk}."


def _groups(place: Place, learner: str) -> list[tuple[Path, int | str]]:
    """Files of control groups, and what is written into them."""
    memory, name = place.memory_mib << 20, f"workbench-class/{learner}"
    if _version() == 2:
        group = _GROUPS / name
        cpu = f"{place.cores * 100_000} 100000"
        return [(group / "memory.max", memory), (group / "pids.max", place.processes), (group / "cpu.max", cpu)]
    if _version() == 1:
        return [
            (_GROUPS / "memory" / name / "memory.limit_in_bytes", memory),
            (_GROUPS / "pids" / name / "pids.max", place.processes),
            (_GROUPS / "cpu" / name / "cpu.cfs_quota_us", place.cores * 100_000),
        ]
    return []


def _version() -> int:
    """Of the control groups that can be written; 0: none."""
    if (_GROUPS / "cgroup.subtree_control").exists():
        with contextlib.suppress(OSError):  # in a container processes may stand in its way
            for group in (_GROUPS, _GROUPS / "workbench-class"):
                group.mkdir(exist_ok=True)
                (group / "cgroup.subtree_control").write_text("+memory +pids +cpu")
            return 2
        return 0
    return 1 if all(os.access(_GROUPS / kind, os.W_OK) for kind in ("memory", "pids", "cpu")) else 0


def _of(uid: int) -> list[int]:
    found = []
    for process in psutil.process_iter(["uids", "status"]):
        uids = process.info["uids"]
        if uids is not None and uids.real == uid and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process.pid)
    return found


def _do(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode:
        raise LaunchError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
