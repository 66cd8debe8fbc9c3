"""What a process with learners' code may do: bounds that the kernel keeps, and that the process cannot lift again.

Landlock (Linux 5.13; signals from 6.12 on) needs no privileges, and holds for root as well. Where the kernel has it, a
confined process writes in its own folder only, reads only what Python needs, opens no TCP connection, and can neither
trace nor signal a process outside. Limits of memory, of the size of a file and of the number of processes come on top.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import workbench
from workbench.config import cache_dir

_LIBC = ctypes.CDLL(None, use_errno=True)
_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system calls, the same number on all machines
_NO_NEW_PRIVS = 38  # of prctl(2)
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL = 1, 2, 4, 8, 1 << 14, 1 << 15
_FILE_ONLY = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_ALL_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/opt", "/proc", "/sys", "/dev", "/var/lib", "/nix")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/tty")


@dataclass(frozen=True)
class Limits:
    """Of one process and of all that it starts.

    Args:
        memory: bytes of its address space.
        file: bytes of a file.
        processes: how many more of this user's processes and threads there may be than now.
        cpu_s: seconds of processor time.
    """

    memory: int = 12 << 30
    file: int = 256 << 20
    processes: int = 256
    cpu_s: int = 1200


def confine(folder: Path, limits: Limits) -> bool:
    """Bind this process, for ever. False if the kernel has no Landlock: then only the limits hold.

    Args:
        folder: the only one that it may write in.
        limits: see :class:`Limits`.
    """
    confined = sys.platform == "linux" and _landlock(folder)
    for what, most in (
        (resource.RLIMIT_AS, limits.memory),
        (resource.RLIMIT_FSIZE, limits.file),
        (resource.RLIMIT_NPROC, _threads_of_user() + limits.processes),
        (resource.RLIMIT_CPU, limits.cpu_s),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, 512),
    ):
        hard = resource.getrlimit(what)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with suppress(ValueError, OSError):
            resource.setrlimit(what, (most, most))
    return confined


def _threads_of_user() -> int:
    """How many processes and threads the user has: the limit counts them all."""
    found = 0
    for each in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            if each.name.isdigit() and each.stat().st_uid == os.getuid():
                found += len(list((each / "task").iterdir()))
    return found


def landlock_abi() -> int:
    """The kernel's version of Landlock; 0 if it has none."""
    if sys.platform != "linux":
        return 0
    return max(0, int(_LIBC.syscall(_CREATE, None, ctypes.c_size_t(0), 1)))


def _landlock(folder: Path) -> bool:
    abi = landlock_abi()
    if not abi or _LIBC.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0):
        return False
    handled = _ALL_BY_ABI[min(abi, 5)]
    network = 3 if abi >= 4 else 0  # bind and connect, by TCP
    scopes = 3 if abi >= 6 else 0  # abstract Unix sockets, signals
    text = struct.pack("QQQ", handled, network, scopes)
    text = text[: 24 if abi >= 6 else 16 if abi >= 4 else 8]
    rules = int(_LIBC.syscall(_CREATE, text, ctypes.c_size_t(len(text)), 0))
    if rules < 0:
        return False
    try:
        for path in readable():
            _allow(rules, path, _READ & handled)
        for path in _DEVICES:
            _allow(rules, path, (_READ_FILE | _WRITE_FILE) & handled)
        _allow(rules, str(folder), handled & ~_IOCTL)
        return int(_LIBC.syscall(_RESTRICT, rules, 0)) == 0
    finally:
        os.close(rules)


def _allow(rules: int, path: str, what: int) -> None:
    with suppress(OSError):
        file = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            allowed = what if Path(path).is_dir() else what & _FILE_ONLY
            _LIBC.syscall(_ADD, rules, 1, struct.pack("=Qi", allowed, file), 0)
        finally:
            os.close(file)


def readable() -> Iterator[str]:
    """Paths of what a notebook has to read: the system, Python and packages, the course and its data; no homes."""
    package = Path(workbench.__file__).resolve().parent
    python = [sys.prefix, sys.base_prefix]
    data = [str(package), *_own_data(package.parent), str(cache_dir())]
    yield from dict.fromkeys([*_SYSTEM, *python, *data, *_packages()])


def _own_data(root: Path) -> Iterable[str]:
    """What notebooks read beside the package in a checkout."""
    return [str(root / name) for name in ("lessons", "data") if (root / name).is_dir()]


def _packages() -> Iterator[str]:
    for path in sys.path:
        if path and path.endswith(("site-packages", "dist-packages")) and Path(path).is_dir():
            yield path
