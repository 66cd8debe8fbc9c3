"""``--sync``: copy the working folder to the other hosts with rsync, before anything starts there."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.common.text import count
from workbench.errors import LaunchError
from workbench.launch.hosts.connections import Target
from workbench.launch.hosts.remote_shell import Srun, Ssh, explain

_QUIET_S = 30  # a copy fails after so long without a byte
_SHOWN = 5  # names
_SSH_FAILED, _STREAM_BROKE, _NOT_FOUND = 255, 12, 127
# What rsync says on stderr → (what it means, what to do).
_SAYS = (
    ("No space left", "its disk is full", "Delete what is old there."),
    ("Disk quota", "its disk quota is used up", "Delete what is old there."),
    ("Permission denied (13)", "{folder} cannot be written there", "Make it there for your user, or work elsewhere."),
    ("rsync: not found", "it has no rsync", "Install it: apt-get install rsync"),
    ("rsync: command not found", "it has no rsync", "Install it: apt-get install rsync"),
    ("rsync: cannot execute", "its rsync cannot be run", "Install it anew: apt-get install --reinstall rsync"),
    ("unknown option", "its rsync is older than 3.2.3", "Install a newer one, or share the folder: NFS."),
)


@dataclass(frozen=True)
class _Copy:
    target: Target
    process: subprocess.Popen[bytes]
    said: Path


def synchronize(targets: Sequence[Target], say: Callable[[str], None], verbose: bool = False) -> None:
    """Copy the working folder to the same path on each other host, and say what has changed there.

    What ``.gitignore`` files name is left out, and ``.git``. Nothing is deleted on the hosts. What a host has already,
    because the folder is shared or by an earlier copy, is not copied.

    Args:
        targets: the hosts.
        say: gets a line for each host.
        verbose: name all files.

    Raises:
        LaunchError: a copy failed; the text names the host and what to do. Files that had been copied stay there.
    """
    folder = os.getcwd()
    if any(isinstance(target.shell, Srun) for target in targets):
        raise LaunchError(
            "--sync copies by ssh, which is not used within a Slurm job. Work in a folder that the nodes share, or "
            "copy with sbcast."
        )
    if Path(folder) in (Path("/"), Path.home()):
        raise LaunchError(f"--sync would copy all of {folder}. Start in the folder of your program.")
    others = [target for target in targets if isinstance(target.shell, Ssh)]
    if not others:
        say("--sync: there is no other host")
        return
    if not shutil.which("rsync"):
        raise LaunchError("--sync needs rsync, which is not here. Install it: apt-get install rsync")
    with tempfile.TemporaryDirectory() as logs, contextlib.ExitStack() as stack:
        copies = [_begin(target, folder, Path(logs, str(i)), stack) for i, target in enumerate(others)]
        problems = [problem for copy in copies if (problem := _end(copy, folder, say, verbose))]
    if problems:
        raise LaunchError("\n  ".join(["--sync failed, and nothing was started:", *problems]))


def _begin(target: Target, folder: str, said: Path, stack: contextlib.ExitStack) -> _Copy:
    assert isinstance(target.shell, Ssh)
    name = f"[{target.name}]" if ":" in target.name else target.name  # an IPv6 address
    words = [
        *["rsync", "--archive", "--compress", "--mkpath", "--no-owner", "--no-group", f"--timeout={_QUIET_S}"],
        *["--exclude=.git/", "--exclude=__pycache__/", "--filter=:- .gitignore", "--out-format=%i %l %n"],
        *["-e", shlex.join(["ssh", *target.shell.options()]), "--", f"{folder}/", f"{name}:{folder}/"],
    ]
    env = os.environ | {"LC_ALL": "C"}
    with said.with_suffix(".out").open("wb") as out, said.with_suffix(".err").open("wb") as err:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=env)
    stack.callback(_stop, process)
    return _Copy(target, process, said)


def _end(copy: _Copy, folder: str, say: Callable[[str], None], verbose: bool) -> str:
    """Wait for a copy; returns what went wrong."""
    code = copy.process.wait()  # rsync's own deadlines end it
    if code == 0:
        listed = copy.said.with_suffix(".out").read_text(errors="replace")
        say(f"--sync: {copy.target.name}: {changes(listed, verbose)}")
        return ""
    text = copy.said.with_suffix(".err").read_text(errors="replace")
    for sign, meaning, cure in _SAYS:
        if sign in text or (sign.startswith("rsync:") and code == _NOT_FOUND):
            return f"{copy.target.name}: {meaning.format(folder=folder)}. {cure}"
    if code in (_SSH_FAILED, _STREAM_BROKE):
        meaning, cure = explain(copy.target.name, code, text, folder)
        return f"{copy.target.name}: {meaning}. {cure}"
    said = " ".join(text.strip().splitlines()[-2:]) or "it said nothing"
    return f"{copy.target.name}: rsync ended with exit code {code}: {said}"


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
        process.wait()


def changes(listed: str, verbose: bool = False) -> str:
    r"""What rsync has copied, in one line.

    Args:
        listed: lines ``<f+++++++++ 12 name``.
        verbose: name all files.

    Example:
        >>> changes("cd+++++++++ 4096 lib/\n<f+++++++++ 1200 lib/model.py\n<f.st...... 300 train.py\n")
        '2 files copied, 1,500 bytes: lib/model.py, train.py'
        >>> changes("")
        'nothing has changed'
    """
    files = [line.split(" ", 2) for line in listed.splitlines() if line.startswith("<f")]
    if not files:
        return "nothing has changed"
    names = [name for _, _, name in files]
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN and not verbose else ""
    shown = ", ".join(names if verbose else names[:_SHOWN])
    return f"{count(len(files), 'file')} copied, {sum(int(size) for _, size, _ in files):,} bytes: {shown}{more}"


__all__ = ["changes", "synchronize"]
