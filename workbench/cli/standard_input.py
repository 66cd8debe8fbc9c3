"""``workbench run -np 2 python - < train.py``: a script on standard input, for all ranks, whose own is empty."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePath
from typing import TextIO

from workbench.errors import LaunchError

_MOST_BYTES = (128 << 10) - 1  # of one argument, in Linux
_TAKE_A_WORD = ("-W", "-X", "--check-hash-based-pycs")
_RUNS_ANOTHER = re.compile(r"-[a-zA-Z]*[cmVh]|--(version|help)")


def with_script(command: Sequence[str], stream: TextIO) -> list[str]:
    """The command, with the script in place of the ``-`` for which Python would read it from standard input.

    Args:
        command: what each rank runs.
        stream: this process's standard input; read only if Python would.

    Raises:
        LaunchError: there is no script on it, it is no text, or it is too long.

    Example:
        >>> import io
        >>> with_script(["python", "-u", "-", "--epochs", "3"], io.StringIO("import sys"))
        ['python', '-u', '-c', 'import sys', '--epochs', '3']
        >>> with_script(["python", "train.py", "-"], io.StringIO("not read"))
        ['python', 'train.py', '-']
    """
    at = _place(command)
    if at is None:
        return list(command)
    named = at < len(command)
    try:
        script = stream.read(_MOST_BYTES + 1) if named or not stream.isatty() else ""
    except UnicodeDecodeError:
        raise LaunchError(f"{' '.join(command)}: what is on standard input is no text, so no script.") from None
    if not script.strip():
        raise LaunchError(
            f"{' '.join(command)}: no script. Name its file, or give its text on standard input: "
            f"workbench run -np 2 {command[0]} - < train.py"
        )
    if len(script.encode()) > _MOST_BYTES:
        raise LaunchError(
            f"The script on standard input has more than {_MOST_BYTES:,} bytes, the most that a command can take: save "
            "it in a file, and name that."
        )
    return [*command[:at], "-c", script, *command[at + 1 :]]


def _place(command: Sequence[str]) -> int | None:
    """Where the script belongs, if Python would read it from standard input: at the ``-``, or at the end."""
    if not command or not re.fullmatch(r"python[\d.]*", PurePath(command[0]).name):
        return None
    at = 1
    while at < len(command) and command[at] != "-":
        word = command[at]
        if not word.startswith("-") or _RUNS_ANOTHER.match(word):
            return None
        at += 2 if word in _TAKE_A_WORD else 1
    return min(at, len(command))
