"""How a command ends: with an exit code, and with one line where it fails. ``python -m …as_command MODULE WORDS…``.

The command ``workbench`` starts its larger parts by their names, so that ``workbench --help`` loads none of them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from workbench.common.whole_file import write_whole
from workbench.errors import LaunchError, WorkbenchError
from workbench.launch.ranks.output import log

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # what a write can meet that no program can foresee


def as_command(act: Callable[[], int]) -> int:
    """Do what a command does, and say what has failed without a traceback.

    Args:
        act: does it, and returns the exit code.

    Returns:
        The exit code: 1 for an error of the user's or of the disk's, 130 after Ctrl-C, 141 where nobody reads the
        output any more, as after ``| head``.

    Example:
        >>> as_command(lambda: 3)
        3
    """
    try:
        code = act()
        sys.stdout.flush()
        return code
    except (WorkbenchError, ValueError) as error:
        log(str(error))
        code = 1
    except BrokenPipeError:
        code = 141
    except OSError as error:
        if not (error.filename or error.errno in _DISK):
            raise
        log(f"{error.filename or 'The output cannot be written'}: {error.strerror}.")
        code = 1
    except KeyboardInterrupt:
        code = 130
    _drop_rest()
    return code


def _drop_rest() -> None:
    """What stdout still holds and cannot be written, about which Python would complain at its exit."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        return
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_named(path: Path, content: bytes) -> None:
    """Write a file that the user has named, as a whole or not at all.

    Raises:
        LaunchError: it cannot be written.
    """
    try:
        write_whole(path, content)
    except OSError as error:
        raise LaunchError(f"{path} cannot be written: {error.strerror}.") from None


def words(module: str, *more: str) -> list[str]:
    """What starts a module's ``main(words)`` as a command, in a process of its own.

    Example:
        >>> words("workbench.observe.report", "compare", "a.html")[1:]
        ['-m', 'workbench.launch.as_command', 'workbench.observe.report', 'compare', 'a.html']
    """
    return [sys.executable, "-m", "workbench.launch.as_command", module, *more]


def become(module: str, *more: str) -> NoReturn:
    """Go on as that command, in this process."""
    sys.stdout.flush()
    os.execv(sys.executable, words(module, *more))


if __name__ == "__main__":
    sys.exit(as_command(lambda: int(import_module(sys.argv[1]).main(sys.argv[2:]))))
