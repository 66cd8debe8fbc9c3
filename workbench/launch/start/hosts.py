"""Hosts and their slots: ``-H a:2,b:2``, a file with a host per line, or a script that prints such lines."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import shutil
import socket
import subprocess
from pathlib import Path

from workbench.errors import LaunchError
from workbench.launch.ranks.process_tree import ProcessTree

Hosts = list[tuple[str, int]]
ONCE = "Name it once, with all its slots."
"""What to do about a machine that is named twice, by one name or by two."""

_DISCOVERY_S = 20.0
# A name that no program takes for an option or a path, an IPv4 address, [fd00::1] or fd00::1; then :2, or what files of
# MPI's say. An IPv6 address with slots needs its brackets, for its last part could be their number.
_LINE = re.compile(
    r"(?:\[(?P<v6>[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%\w+)?)\]|(?P<bare>[0-9A-Fa-f]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*(?:%\w+)?)"
    r"|(?P<name>(?!-)[^\s:\[\]/]+))(?::(?P<slots>\d+))?(?P<words>(?:\s+(?:slots|max[_-]slots)\s*=\s*\d+)*)"
)
_WORD = re.compile(r"(slots|max[_-]slots)\s*=\s*(\d+)")


def parse(text: str) -> Hosts:
    """Names and slots; one slot where none are given.

    Raises:
        LaunchError: a part is neither ``host`` nor ``host:slots``, or has no slots.

    Example:
        >>> parse("localhost:2,127.0.0.1,[fd00::1]:4")
        [('localhost', 2), ('127.0.0.1', 1), ('fd00::1', 4)]
    """
    return [_parse_one(part.strip(), least=1) for part in text.split(",")]


def read(path: str) -> Hosts:
    """The same from a file with a host per line, as ``host slots=2`` or ``host:2``; # begins a comment.

    Of MPI's words ``max_slots=4`` may follow: an upper bound, which no job here passes, for it keeps to its slots.

    Raises:
        LaunchError: the file cannot be read, or as :func:`parse`.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise LaunchError(f"The host file {path} cannot be read: {error.strerror}.") from None
    except UnicodeDecodeError:
        raise LaunchError(f"The host file {path} is not text: write name:slots, a host a line.") from None
    found = []
    for number, line in enumerate(lines, 1):
        if words := line.partition("#")[0].strip():
            try:
                found.append(_parse_one(words, least=1))
            except LaunchError as error:
                raise LaunchError(f"{path}, line {number}: {error}") from None
    if not found:
        raise LaunchError(f"The host file {path} names no host: write name:slots, a host a line.")
    return found


def discover(script: str, slots: int = 1, limit_s: float = _DISCOVERY_S) -> Hosts:
    """The same from what a script prints, which is run once, here.

    Args:
        script: a program and its arguments, as one text.
        slots: of a host that the script prints without.
        limit_s: deadline; then the script and what it has started are killed.

    Raises:
        LaunchError: the script cannot be run, fails, takes too long, or prints no host, or what is none.

    Example:
        >>> discover("echo localhost:2")
        [('localhost', 2)]
    """
    name = f"The host discovery script {script}"
    if not (words := shlex.split(script)):
        raise LaunchError("--host-discovery-script is empty: name a program that prints host:slots, one a line.")
    try:
        code, out, said = _run_script(words, limit_s)
    except subprocess.TimeoutExpired:
        cure = "Run it by hand: what does it wait for?"
        raise LaunchError(f"{name} had not ended after {limit_s:g} s, and was killed. {cure}") from None
    except LaunchError as error:
        raise LaunchError(f"{name}: {str(error).rstrip('.')}. Is it executable, and its path right?") from None
    if code:
        raise LaunchError(f"{name} ended with exit code {code}: {said or 'it printed nothing'}. Run it by hand.")
    try:
        found = [_parse_one(line, slots) for line in map(str.strip, out.splitlines()) if line]
    except LaunchError as error:
        raise LaunchError(f"{name} printed a line that is not a host: {error}") from None
    if not found:
        raise LaunchError(f"{name} printed no host. It should print host:slots, one a line.")
    return found


def _run_script(words: list[str], limit_s: float) -> tuple[int, str, str]:
    """Exit code, output, and the last words of stderr."""
    with contextlib.ExitStack() as stack:
        processes = ProcessTree(os.environ)
        stack.callback(processes.stop)
        try:
            process = processes.start_with_pipes("discovery", words)
        except LaunchError as error:
            if not isinstance(error.__cause__, OSError) or error.__cause__.errno != errno.ENOEXEC:
                raise
            # A script without #! is a shell's, as for who types its name.
            script = shutil.which(words[0]) or words[0]
            process = processes.start_with_pipes("discovery", ["/bin/sh", script, *words[1:]])
        for stream in (process.stdin, process.stdout):
            if stream:
                stack.enter_context(stream)
        out, _ = process.communicate(timeout=limit_s)
        said = " ".join(processes.log("discovery").read_text(errors="replace").split()[-50:])
        return process.returncode, out.decode(errors="replace"), said


def _parse_one(text: str, slots: int = 1, least: int = 0) -> tuple[str, int]:
    """A host and its slots.

    Args:
        text: as it was written.
        slots: where it names none.
        least: so many it must have. What a script prints may have none at the moment.

    Raises:
        LaunchError: it is no host, or has too few slots.
    """
    found = _LINE.fullmatch(text)
    if found is None:
        raise LaunchError(
            f"{text[:200]!r} is not a host: write name:slots, such as localhost:2 or [fd00::1]:2; in a file also "
            "name slots=2 max_slots=4."
        )
    words = {name.replace("-", "_"): int(number) for name, number in _WORD.findall(found["words"])}
    number = int(found["slots"] or words.get("slots", min(slots, words.get("max_slots", slots))))
    if number < least:
        raise LaunchError(
            f"{text[:200]!r} has {number} slots, so no rank can start there: leave it out, or give it slots."
        )
    return found["v6"] or found["bare"] or found["name"], number


def check(hosts: Hosts, n: int) -> None:
    """See to it that hosts have slots for ``n`` ranks, and that each is named once.

    Raises:
        LaunchError: they have not, or it is not.
    """
    slots, names = sum(slots for _, slots in hosts), [name for name, _ in hosts]
    if hosts and n > slots:
        raise LaunchError(f"{n} ranks do not fit the {slots} slots of {', '.join(names)}.")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise LaunchError(f"{', '.join(twice)}: named twice. {ONCE}")


def is_here(name: str) -> bool:
    """Is a host this machine? It is if one can listen at its address.

    Example:
        >>> is_here("localhost"), is_here("192.0.2.1")
        (True, False)
    """
    if name in ("localhost", socket.gethostname()):
        return True
    try:
        for family, kind, protocol, _, address in socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM):
            with socket.socket(family, kind, protocol) as listener:
                listener.bind(address)
        return True
    except (OSError, UnicodeError):  # a name that is too long for DNS is none of this machine's
        return False
