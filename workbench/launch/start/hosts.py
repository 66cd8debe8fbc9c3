"""Hosts and their slots: ``-H a:2,b:2``, a file with a host per line, or a program that prints them."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
from pathlib import Path

from workbench.errors import LaunchError

Hosts = list[tuple[str, int]]
DISCOVERY_S = 30.0

_LINE = re.compile(r"([^\s:]+)(?:(?::|\s+slots\s*=\s*)(\d+))?")


def parse(text: str) -> Hosts:
    """Names and slots; one slot where none are given.

    Raises:
        LaunchError: a part is neither ``host`` nor ``host:slots``.

    Example:
        >>> parse("localhost:2,127.0.0.1")
        [('localhost', 2), ('127.0.0.1', 1)]
    """
    return [_parse_one(part.strip()) for part in text.split(",")]


def read(path: str) -> Hosts:
    """The same from a file with a host per line, as ``host slots=2`` or ``host:2``; # begins a comment.

    Raises:
        LaunchError: the file cannot be read, or as :func:`parse`.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise LaunchError(f"The host file {path} cannot be read: {error.strerror}.") from None
    return [_parse_one(words) for line in lines if (words := line.partition("#")[0].strip())]


def discover(script: str, slots: int = 1, timeout_s: float = DISCOVERY_S) -> Hosts:
    """The same from what a program prints, a host per line.

    Args:
        script: the program, with its arguments; found by its path, relative to the working folder, or on PATH.
        slots: of a host that is printed without any.
        timeout_s: deadline of the program.

    Raises:
        LaunchError: it cannot be run, fails, is late, or prints no hosts.
    """
    name = f"--host-discovery-script {script}"
    try:
        words = shlex.split(script)
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{name} did not end within {timeout_s:g} s. Does it end when you run it by hand?") from None
    except (OSError, ValueError, IndexError) as error:
        raise LaunchError(f"{name} cannot be run: {error}. Is it there, and executable (chmod +x)?") from None
    if done.returncode:
        said = done.stderr.strip()[-500:] or "it wrote nothing on stderr"
        raise LaunchError(f"{name} ended with exit code {done.returncode}: {said}")
    lines = [text for line in done.stdout.splitlines() if (text := line.partition("#")[0].strip())]
    if not lines:
        raise LaunchError(f"{name} printed no host. It is to print a line such as node1:4 for each.")
    try:
        return [_parse_one(line, slots) for line in lines]
    except LaunchError as error:
        raise LaunchError(f"{name}: {error}") from None


def _parse_one(text: str, slots: int = 1) -> tuple[str, int]:
    found = _LINE.fullmatch(text)
    if found is None:
        raise LaunchError(f"{text[:200]!r} is no host: write name:slots, such as localhost:2.")
    return found[1], int(found[2] or slots)


def check(hosts: Hosts, n: int) -> None:
    """See to it that hosts have slots for ``n`` ranks, and that each is named once.

    Raises:
        LaunchError: they have not, or it is not.
    """
    slots, names = sum(slots for _, slots in hosts), [name for name, _ in hosts]
    if hosts and n > slots:
        raise LaunchError(f"{n} ranks do not fit the {slots} slots of {', '.join(names)}.")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise LaunchError(f"{', '.join(twice)}: named twice. Name each host once, with all its slots.")


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
    except OSError:
        return False
