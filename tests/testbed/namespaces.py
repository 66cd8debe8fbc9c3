"""The Linux namespaces of one host: they last while nothing runs in them, and name every process that does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

GONE_WITHIN_S = 10.0


class CannotMakeHosts(Exception):  # noqa: N818 - no error of the tests, but the reason why some are skipped
    """Hosts cannot be made on this machine; the text says what is missing."""


class Namespaces:
    """Each is held by a file that it is mounted on, as ``ip netns`` does it.

    Args:
        folder: of these files, on a file system that is mounted privately: a mount namespace can be held on no other.
        name: the files are ``{name}.net``, and so on.
        kinds: the namespaces of its own that it has.
    """

    def __init__(self, folder: Path, name: str, kinds: Iterable[str] = ("net", "uts", "ipc", "mount")) -> None:
        self.files = {kind: folder / f"{name}.{kind}" for kind in kinds}

    def make(self, *command: str) -> None:
        """Make the namespaces, and run a command in them.

        Raises:
            CannotMakeHosts: this machine does not allow it.
        """
        for path in self.files.values():
            path.touch()
        check("unshare", *self._options(), "--", *command)

    def words(self, *command: str) -> list[str]:
        """A command, as it is run inside: with the working directory of the caller, in the process that is started."""
        return ["nsenter", *self._options(), "--", "env", f"--chdir={Path.cwd()}", *command]

    def processes(self) -> Iterator[int]:
        """The processes that are in one of the namespaces."""
        held = {_identity(path) for path in self.files.values()} - {None}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and not held.isdisjoint(_namespaces_of(entry)):
                yield int(entry.name)

    def remove(self) -> None:
        """Kill what runs inside, and let the namespaces go; what is not there is left out."""
        until = time.monotonic() + GONE_WITHIN_S
        while (left := list(self.processes())) and time.monotonic() < until:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)
        for path in self.files.values():
            subprocess.run(["umount", path], capture_output=True)
            path.unlink(missing_ok=True)

    def _options(self) -> list[str]:
        return [f"--{kind}={path}" for kind, path in self.files.items()]


def check(*command: str | Path) -> str:
    """What a command prints. It ends with its caller, so that it makes nothing that nobody would remove.

    Raises:
        CannotMakeHosts: it failed.
    """
    try:
        words = ["setpriv", "--pdeathsig", "KILL", *command]
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30.0)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotMakeHosts(f"hosts cannot be made here: {error}") from None
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise CannotMakeHosts(f"hosts cannot be made here: {command[0]} ended with {done.returncode}: {said}")
    return done.stdout


def _namespaces_of(process: Path) -> set[tuple[int, int] | None]:
    return {_identity(process / "ns" / kind) for kind in ("net", "uts", "ipc", "mnt")} - {None}


# A namespace's file has the device number of the kernel's own file system for them: a plain file is never mistaken.
def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:  # it has ended, or was never made
        return None
    return found.st_dev, found.st_ino
