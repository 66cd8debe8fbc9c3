"""What a process with learners' code may do: bounds that the kernel keeps, and that the process cannot lift again.

1. *Landlock* (Linux 5.13; signals from 6.12 on) needs no privileges, and holds for root as well. Where the kernel has
   it, a confined process writes in its own folder only, reads only what Python needs, and signals nobody outside.
2. *A filter of system calls* (``filter.py``): no network, no tracing, no memory, queue or key that outlives it, no
   change of another process's limits or priority. Without Landlock it also bounds signals, to the process itself.
3. *Limits* of memory, of the size of a file and of the number of processes. Root's special rights are dropped.
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
from workbench.course.grading.apart.filter import bound_calls

_LIBC = ctypes.CDLL(None, use_errno=True)
_CREATE, _ADD, _RESTRICT = 444, 445, 446  # system calls, the same number on all machines
_NO_NEW_PRIVS = 38  # of prctl(2)
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL = 1, 2, 4, 8, 1 << 14, 1 << 15
_FILE_ONLY = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
_ALL_BY_ABI = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
_SIGNALS_FROM = 6  # version of Landlock
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/opt", "/proc", "/sys", "/var/lib", "/nix")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")  # no terminal: it has an owner
_CAPABILITIES = 126 if os.uname().machine == "x86_64" else 91  # capset(2)


@dataclass(frozen=True)
class ProcessLimits:
    """Of one process and of all that it starts.

    Args:
        memory: bytes of its address space.
        file: bytes of a file.
        disk: bytes of all files together; it is looked at from time to time.
        processes: how many more of this user's processes and threads there may be than now.
        cpu_s: seconds of processor time.
    """

    memory: int = 12 << 30
    file: int = 256 << 20
    disk: int = 1 << 30
    processes: int = 256
    cpu_s: int = 1200


def confine(folder: Path, limits: ProcessLimits) -> str:
    """Bind this process, for ever. Returns what is *not* bounded by the kernel, in words; "" if everything is.

    Args:
        folder: the only one that it may write in.
        limits: see :class:`ProcessLimits`.
    """
    on_linux = sys.platform == "linux"
    abi = landlock_abi() if on_linux and _landlock(folder) else 0
    _limit(limits)
    if on_linux and os.geteuid() == 0:
        _drop_capabilities()
    filtered = bound_calls(signals=abi >= _SIGNALS_FROM)
    return "; ".join(_unbounded(abi, filtered))


def _unbounded(abi: int, filtered: bool) -> Iterator[str]:
    """What is left open."""
    if not abi:
        yield "files (this kernel has no Landlock): what your account may read, write and delete, it could"
    if not filtered:
        yield "network and system calls (this kernel has no seccomp filters)"
        if abi < _SIGNALS_FROM:
            yield "signals to processes of your account"


def _drop_capabilities() -> None:
    """Root without the rights that make it root: it owns its files, and that is all."""
    head = struct.pack("Ii", 0x20080522, 0)
    _LIBC.syscall(_CAPABILITIES, ctypes.c_char_p(head), ctypes.c_char_p(bytes(24)))


def _limit(limits: ProcessLimits) -> None:
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
