"""The Linux namespaces of one host: they last while nothing runs in them, and name every process that does."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterable
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

    def remove(self) -> None:
        """Kill what runs inside, and let the namespaces go; what is not there is left out.

        Then it kills once more: a command may have been on its way in, whose caller was killed. Open files keep the
        namespaces from vanishing meanwhile, for others could get their numbers.
        """
        with contextlib.ExitStack() as opened:
            held = set()
            for path in self.files.values():
                with contextlib.suppress(OSError):
                    held.add(_identity(opened.enter_context(path.open()).fileno()))
            _kill_all_in(held)
            for path in self.files.values():
                subprocess.run(["umount", "--lazy", path], capture_output=True)
            _kill_all_in(held)

    def _options(self) -> list[str]:
        return [f"--{kind}={path}" for kind, path in self.files.items()]


def check(*command: str | Path) -> str:
    """What a command prints.

    Raises:
        CannotMakeHosts: it failed.
    """
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30.0)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise CannotMakeHosts(f"hosts cannot be made here: {error}") from None
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise CannotMakeHosts(f"hosts cannot be made here: {command[0]} ended with {done.returncode}: {said}")
    return done.stdout


def _kill_all_in(namespaces: set[tuple[int, int]]) -> None:
    """Until nobody is there at two looks: who has opened a namespace enters it a moment later."""
    until, empty = time.monotonic() + GONE_WITHIN_S, 0
    while empty < 2 and time.monotonic() < until:
        found = [int(each.name) for each in Path("/proc").glob("[0-9]*") if _namespaces_of(each) & namespaces]
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        empty = 0 if found else empty + 1
        time.sleep(0.005)


def _namespaces_of(process: Path) -> set[tuple[int, int]]:
    found = set()
    for kind in ("net", "uts", "ipc", "mnt"):
        with contextlib.suppress(OSError):  # it has ended
            found.add(_identity(process / "ns" / kind))
    return found


# A namespace's file has the device number of the kernel's own file system for them: a plain file is never mistaken.
def _identity(file: Path | int) -> tuple[int, int]:
    found = os.stat(file)
    return found.st_dev, found.st_ino
