"""This machine: who else is on it, who has ended, and how many files may a process open here?

The ranks tell each other ``machine()`` and ``host_id()`` to find out who shares memory, sockets and process ids. A
process may have only so many open files, and a job of many ranks needs more than a tight limit allows.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from workbench.errors import LaunchError

try:
    import resource
except ImportError:  # a browser, where a page opens no files
    resource = None  # type: ignore[assignment]

MANY_FILES = 1 << 16
"""More than strangers on a few machines can take up at once, and few enough for programs that close all that may be."""

_STOPPED = {
    "T": "its process {0} is stopped (Ctrl-Z, SIGSTOP); kill -CONT {0} lets it go on",
    "t": "a debugger has stopped its process {0}",
}
"""By the state of a process."""
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def machine() -> str:
    """Equal for processes of one machine: its host name and its kernel's boot id.

    Several machines may have the same host name, above all containers and copies of one image.
    """
    try:
        drawn = _BOOT_ID.read_text().strip()
    except OSError:  # not Linux, or hidden
        drawn = ""
    return f"{socket.gethostname()}/{drawn}"


def host_id() -> str:
    """Equal for two processes that can see each other's process ids: :func:`machine` and the PID namespace.

    The initial PID namespace has the same number on every machine, so its number alone would not do.
    """
    try:
        return f"{machine()}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return machine()


def cores() -> list[int]:
    """The numbers of the cores that this process may use; a container or batch system may allow fewer than there are.

    Systems that cannot bind a process do not number cores: then they are counted.
    """
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def a_core_each(rank: int, hosts: Sequence[str], processes: Sequence[tuple[int, Sequence[int]]]) -> bool:
    """Can all ranks of this rank's machine run at once?

    Args:
        hosts, processes: each rank's machine; its process id and :func:`cores`.

    Example:
        >>> a_core_each(0, ["a", "a", "b"], [(7, [0, 1]), (8, [0, 1]), (7, [0])])
        True
        >>> a_core_each(0, ["a", "a"], [(7, [0]), (8, [0])])  # bound to the same core
        False
        >>> a_core_each(0, ["a", "a"], [(7, [0, 1]), (7, [0, 1])])  # threads of one process
        False
    """
    here = [one for host, one in zip(hosts, processes, strict=True) if host == hosts[rank]]
    return len(here) == len(dict(here)) <= len({core for _, its in here for core in its})


def process_state(pid: int) -> tuple[str, str, int] | None:
    """A process's name, the letter of its state, and its parent; None where the system does not show them."""
    try:
        name, _, rest = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")
    except OSError:
        return None
    state, parent = rest.split()[:2]
    return name.partition("(")[2], state, int(parent)


def why_stopped(pid: int) -> str:
    """What is said of a process that is stopped at present; empty if it is not."""
    found = process_state(pid)
    return _STOPPED.get(found[1], "").format(pid) if found else ""


def suspended(pid: int) -> bool:
    """Is it stopped by a signal, and not by a debugger?"""
    found = process_state(pid)
    return found is not None and found[1] == "T"


def has_ended(pid: int) -> bool:
    """Has this process ended (a zombie counts as ended)? False if this user may not inspect it.

    And where nothing can be found out, for want of a file descriptor or of memory: what is not known is alive. The
    engine's thread asks, and it must not end because a script has opened too many files.
    """
    if pid == os.getpid():
        return False
    if found := process_state(pid):
        return found[1] in "ZX"
    try:
        os.kill(pid, 0)  # which opens nothing
    except OSError as error:
        return isinstance(error, ProcessLookupError)
    if os.path.exists("/proc/self/stat"):
        return False
    import psutil  # not at the top: only systems without /proc need it

    try:
        return bool(psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD))
    except psutil.NoSuchProcess:
        return True
    except (psutil.Error, OSError):
        return False


def check_owner(found: os.stat_result, path: Path, is_kind: Callable[[int], bool], others: int) -> None:
    """See to it that a file or folder is this user's alone.

    Args:
        found: of the path, by ``lstat`` or ``fstat``.
        path: for the error's text.
        is_kind: ``stat.S_ISDIR`` or ``stat.S_ISREG``.
        others: what others must not do, such as ``0o022``.

    Raises:
        OSError: it is another user's, of another kind, or others may do that.
    """
    if found.st_uid != os.geteuid() or not is_kind(found.st_mode) or found.st_mode & others:
        raise OSError(f"{path} is another user's, or others may change it")


def make_room(more: int, what: str) -> None:
    """See to it that this process, and those that it starts, can open so many files more.

    The soft limit is raised as far as needed and no further: programs that close all files up to it would crawl.

    Args:
        more: how many.
        what: begins the error's text, and is followed by how many files.

    Raises:
        LaunchError: the hard limit does not allow it.

    Example:
        >>> make_room(3, "3 ranks need")
    """
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _open_now() + more
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise LaunchError(f"{what} {needed} open files, but a process here may have no more than {_cure(hard, needed)}")
    with contextlib.suppress(ValueError, OSError):  # macOS has a limit of its own beyond the one that it names
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def allow_many_files() -> int:
    """Let this process open as many files as it may, :data:`MANY_FILES` at most, for connections that strangers make.

    Returns:
        How many it may open now.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, MANY_FILES)
    if soft == resource.RLIM_INFINITY or wanted <= soft:
        return MANY_FILES if soft == resource.RLIM_INFINITY else soft
    with contextlib.suppress(ValueError, OSError):  # see make_room
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def ran_out(error: OSError) -> str:
    """What to say where a file could not be opened for this reason; "" where it was another."""
    if error.errno not in (errno.EMFILE, errno.ENFILE):
        return ""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return f"{error.strerror}: a process here may have no more than {_cure(hard, 2 * hard)}"


def _cure(hard: int, needed: int) -> str:
    return (
        f"{hard} (ulimit -Hn). Allow more, with ulimit -n {needed} as root, nofile in /etc/security/limits.conf, or "
        f"--ulimit nofile={needed} for a container; or start fewer ranks."
    )


def _open_now() -> int:
    for folder in ("/proc/self/fd", "/dev/fd"):
        with contextlib.suppress(OSError):
            return len(os.listdir(folder))
    return 64
