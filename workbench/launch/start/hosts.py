"""Hosts and their slots: ``-H a:2,b:2``, or a file with a host per line."""

from __future__ import annotations

import re
import socket
from pathlib import Path

from workbench.errors import LaunchError

Hosts = list[tuple[str, int]]

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


def _parse_one(text: str) -> tuple[str, int]:
    found = _LINE.fullmatch(text)
    if found is None:
        raise LaunchError(f"{text!r} is no host: write name:slots, such as localhost:2.")
    return found[1], int(found[2] or 1)


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
