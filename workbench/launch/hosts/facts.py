"""What a host says about itself in a rehearsal: all that must be alike on all hosts, and where it can be reached."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import ipaddress
import itertools
import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

import workbench.errors
from workbench.machine import cores, machine

PACKAGES = ("numpy", "mpi4py", "torch", "tensorflow", "jax", "cloudpickle", "ipyparallel")
"""Whose versions are compared; of a package that comes under another name, too (``tensorflow-cpu``)."""
HOME = Path(workbench.errors.__file__).resolve().parent.parent
"""The folder from which ``workbench`` is imported."""


def facts(words: Sequence[str]) -> dict[str, Any]:
    """Everything about this host, of JSON's types.

    Args:
        words: of the ranks' command; those that name files here are compared by content.
    """
    written = (Path(tempfile.gettempdir()), Path("/dev/shm"))  # by a job
    return {
        "host": socket.gethostname(),
        "machine": machine(),
        "user": os.getuid(),
        "python": platform.python_version(),
        "executable": sys.executable,
        "packages": {name: found for name in PACKAGES if (found := _version(name))},
        "code": code_hash(HOME / "workbench"),
        "folder": os.getcwd(),
        "files": file_hashes(words),
        "imports": file_hashes(map(str, imported(words))),
        "interfaces": interfaces(),
        "cores": len(cores()),
        "space": {str(path): shutil.disk_usage(path).free for path in written if path.is_dir()},
        "now": time.time(),
    }


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, version

    for other in (name, f"{name}-cpu"):
        with contextlib.suppress(PackageNotFoundError):
            return version(other)
    return ""


def code_hash(folder: Path) -> str:
    """Equal where all Python files of a folder are equal, whatever else is there."""
    found = hashlib.blake2b(digest_size=8)
    for path in sorted(folder.rglob("*.py")):
        found.update(f"{path.relative_to(folder)}\0".encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def file_hashes(words: Iterable[str]) -> dict[str, str]:
    """By name, of those words that are names of files; an empty text for a Python file that is not there."""
    found = {}
    for word in words:
        path = Path(word)
        try:
            if path.is_file() and path.stat().st_size < 1 << 20:
                found[word] = hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest()
            elif word.endswith(".py"):
                found[word] = ""
        except OSError:  # it is no name that a file can have
            continue
    return found


def imported(words: Sequence[str]) -> set[Path]:
    """The files under the folder of a Python script that it imports, itself or by way of others.

    Args:
        words: of the command; scripts are those that name a Python file, and ``-m`` with a module of this folder.
    """
    modules = [word.split(".") for flag, word in itertools.pairwise(words) if flag == "-m"]
    started = {path for parts in modules for path in (*_files(Path(), parts), *_files(Path(), [*parts, "__main__"]))}
    scripts = {Path(word) for word in words if word.endswith(".py")}
    found, looked = set(started), set[tuple[Path, Path]]()
    todo = [(path, path.parent) for path in scripts] + [(path, Path()) for path in started]
    while todo:
        path, folder = one = todo.pop()
        if one in looked:
            continue
        looked.add(one)
        mine = set(_imported_by(path, folder)) - scripts
        found |= mine
        todo += [(each, folder) for each in mine]
    return found


def _imported_by(path: Path, folder: Path) -> Iterator[Path]:
    """The files that one imports: by name from ``folder``, or relative to its own."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):  # the rank will say so
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(folder, alias.name.split("."))
        elif isinstance(node, ast.ImportFrom):
            base = [path, *path.parents][node.level] if 0 < node.level <= len(path.parents) else folder
            module = node.module.split(".") if node.module else []
            for alias in node.names:
                yield from _files(base, [*module, alias.name])


def _files(folder: Path, parts: Sequence[str]) -> Iterator[Path]:
    """Those of a module and of the packages that it is in, as far as they are there."""
    for i, name in enumerate(parts):
        package = folder.joinpath(*parts[:i])
        yield from filter(Path.is_file, (package / f"{name}.py", package / name / "__init__.py"))


def interfaces() -> list[tuple[str, str, int]]:
    """Name, address and length of the network's prefix, of each interface that is up, loopback left out."""
    up = {name for name, state in psutil.net_if_stats().items() if state.isup}
    found = []
    for name, listed in psutil.net_if_addrs().items():
        for each in listed if name in up else ():
            if each.family not in (socket.AF_INET, socket.AF_INET6) or not each.netmask:
                continue
            address = ipaddress.ip_address(each.address.partition("%")[0])
            if not (address.is_loopback or address.is_link_local):
                found.append((name, str(address), _prefix(each.netmask)))
    return found


def _prefix(netmask: str) -> int:
    """How many bits of the address are the network's.

    Example:
        >>> _prefix("255.255.252.0"), _prefix("ffff:ffff:ffff:ffff::")
        (22, 64)
    """
    return int(ipaddress.ip_address(netmask)).bit_count()


def source(address: str) -> str:
    """The address that packets of this host to ``address`` come from; "" if there is no way."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # sends nothing: it only asks the routing table
        return str(probe.getsockname()[0])
    return ""
