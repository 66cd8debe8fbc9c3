"""Finds this user's fork server on this host, and starts one for the next time where there is none."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import resource
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from workbench import config
from workbench.common.notebook import apart_from_debugger
from workbench.launch.forks import fork_client
from workbench.launch.forks.environment import PAD, THREADS, read_by_imports
from workbench.launch.ranks.watchdog import TAG

ENGINES = (
    "ipyparallel.engine.app",
    "ipyparallel.engine.nanny",
    "ipyparallel.controller.app",
    "ipykernel.debugger",
    "ipykernel.kernelapp",
    "tornado.locks",
    "tornado.platform.asyncio",
    "IPython.core.completerlib",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
    "workbench.launch.ranks.kernel",
    "workbench.launch.start.mpi",
    "mpi4py.rc",
    "numpy.random",
    "torch.utils.data",
    "workbench.torch",
    "workbench.data",
)
"""What engines and their controller import, and what their cells do."""
_LEASE = b"lease"
_ENDED = "the fork server has ended: engines that were not forked yet were started one by one"
_ANSWER_S = 3.0
_AGAIN_S = 3600.0
_LONGEST = 90  # of a path, which the system wants below 108 bytes
_PAD_BYTES = 32 << 10
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "time", "user", "uts")

# This process's leases of one server, descriptors by its socket: it ends with the last process that has one.
_leases: dict[str, int] = {}


class Forks:
    """The fork server for processes with an environment; none on other systems than Linux, or where it is not wanted.

    Args:
        env: of the processes.
        modules: what it imports.

    Attributes:
        found: is there one?

    Example:
        >>> Forks({"WORKBENCH_FORK": "0"}).command(["python", "-m", "this"])
        ['python', '-m', 'this']
    """

    def __init__(self, env: Mapping[str, str], modules: Sequence[str] = ENGINES) -> None:
        self._env, self._modules, self._silent = env, modules, False
        self._path = path(env, modules) if config.forks(env) and possible() else ""
        self.found = bool(self._path) and self._take_lease()

    def command(self, python: Sequence[str]) -> list[str]:
        """What starts ``python -m …``: by a fork, if there is a server."""
        if not self.found:
            return list(python)
        return [sys.executable, "-I", "-S", fork_client.__file__, self._path, *python]

    def start(self) -> None:
        """Start a server for the next time, unless there is one, or somebody has begun to start it."""
        if self._path and not self.found:
            start(self._path, self._env, self._modules)

    def note(self) -> str:
        """A line for whoever has started the engines: why they have not been forked, where they should have been."""
        if self._silent:
            return "the fork server does not answer: the engines were started one by one"
        return _ENDED if self.lost() else ""

    def lost(self) -> bool:
        """Has the server ended since it was found?"""
        if not self.found or self._path not in _leases:
            return False
        try:
            return not os.read(_leases[self._path], 1)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _take_lease(self) -> bool:
        """Anew each time: so the server looks whether it is what would be imported now."""
        lease = socket.socket(socket.AF_UNIX)
        lease.settimeout(_ANSWER_S)
        try:
            lease.connect(self._path)
            lease.sendall(len(_LEASE).to_bytes(4, "little") + _LEASE)
            answer = lease.recv(4096).decode().strip()
        except TimeoutError:
            self._silent, answer = True, ""
        except OSError:
            answer = ""
        _end_leases([self._path, *(each for each in _leases if not each.startswith(self._path))])
        if not answer.isdigit():
            lease.close()
            return False
        lease.setblocking(False)
        _leases[self._path] = lease.detach()
        return True


def behind(pid: int) -> int:
    """The fork for which a process stands; any other process itself.

    Example:
        >>> behind(os.getpid()) == os.getpid()
        True
    """
    with contextlib.suppress(OSError, ValueError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if words[2:3] == [fork_client.WAIT.encode()]:
            return int(words[3])
    return pid


def leave() -> None:
    """This process needs its fork server no more."""
    _end_leases(list(_leases))


def _end_leases(names: Sequence[str]) -> None:
    for each in names:
        if each in _leases:
            os.close(_leases.pop(each))


def possible() -> bool:
    """Can this system fork for another process?"""
    return sys.platform == "linux" and hasattr(socket, "recv_fds") and hasattr(os, "sched_getaffinity")


def path(env: Mapping[str, str], modules: Sequence[str]) -> str:
    """The socket of the server for such processes: what must be alike names it. "" if no folder is safe.

    Such are the Python, the variables that imports read, this user's rights and limits, and what a container or a
    batch system confines.
    """
    folder = Path(config.runtime_dir(env) or tempfile.gettempdir()) / f"workbench-forks-{os.getuid()}"
    if len(str(folder)) > _LONGEST - 24:
        folder = Path("/tmp") / folder.name
    try:
        folder.mkdir(0o700, exist_ok=True)
        about = folder.lstat()
    except OSError:
        return ""
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
        return ""
    kinds = [each for each in sorted(dir(resource)) if each.startswith("RLIMIT_")]
    limits = [resource.getrlimit(getattr(resource, each)) for each in kinds]
    name: list[object] = [sys.executable, sys.version, read_by_imports(env), list(modules), limits, __file__]
    name += [os.getresuid(), os.getresgid(), sorted(os.getgroups()), os.path.realpath("/proc/self/root")]
    for each in _NAMESPACES:
        with contextlib.suppress(OSError):
            name.append(os.readlink(f"/proc/self/ns/{each}"))
    with contextlib.suppress(OSError):
        name.append(Path("/proc/self/cgroup").read_text())
    return str(folder / hashlib.sha256(json.dumps(name).encode()).hexdigest()[:16])


def start(path: str, env: Mapping[str, str], modules: Sequence[str]) -> None:
    """Start a server, which ends with this process if nobody else has come."""
    if _was_unsafe(f"{path}.no") or (lock := _locked(f"{path}.lock")) < 0:
        return
    mine, its = socket.socketpair()
    its.set_inheritable(True)
    its_env = {name: text for name, text in env.items() if name not in (TAG, fork_client.FORK)}
    its_env |= dict.fromkeys(THREADS, "1") | {PAD: "x" * _PAD_BYTES, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
    python = [sys.executable, "-m", "workbench.launch.forks.server", path, str(its.fileno()), *modules]
    with its, apart_from_debugger(), contextlib.suppress(OSError):
        subprocess.run(
            ["sh", "-c", '"$@" &', "sh", *python],  # nobody's child: this process need not wait for its end
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=its_env,
            cwd="/",
            pass_fds=[lock, its.fileno()],
            start_new_session=True,
        )
        _end_leases([f"{path}.starter"])
        _leases[f"{path}.starter"] = mine.detach()
    os.close(lock)


def _was_unsafe(path: str) -> bool:
    """Has such a server found lately that it cannot fork? Then no start of engines pays for another one."""
    with contextlib.suppress(OSError):
        return time.time() - os.stat(path).st_mtime < _AGAIN_S
    return False


def _locked(path: str) -> int:
    """A descriptor with the lock of a server, or -1 where another one has it."""
    while True:
        lock = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(lock), os.stat(path)):
                return lock
        except FileNotFoundError:
            pass
        except OSError:
            os.close(lock)
            return -1
        os.close(lock)  # the last server has deleted it meanwhile
