"""Checks of programs, packages and the machine: values in, findings out, no I/O.

Each function judges one thing. A warning or failure says in a sentence what to do.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from workbench.common.text import count, size
from workbench.diagnostics.finding import Finding, Severity
from workbench.launch.start import gforker, mpi
from workbench.launch.start.shared_memory import CURE, most_ranks

PYTHON = (3, 10)
FULL_BYTES = 100 * 10**6  # a disk with less is as good as full
SCARCE_BYTES = 10**9
SHM_BYTES = 256 * 10**6  # a container gets 64 MB where nobody asked for more, which DataLoader workers soon fill
_WITHOUT = "workbench run does without; for a notebook's engines:"


@dataclass(frozen=True)
class Mpiexec:
    """An ``mpiexec`` at hand: its full path, its vendor, or the problem with it; does it listen on all interfaces?"""

    path: str
    vendor: str = ""
    problem: str = ""
    listens: bool = False


# --- programs and packages ----------------------------------------------------------------------------


def python(version: Sequence[int], path: str) -> Finding:
    """Is this Python new enough?"""
    text = f"{'.'.join(map(str, version[:3]))}, {path}"
    if tuple(version[:2]) >= PYTHON:
        return Finding(Severity.OK, "Python", text)
    wanted = ".".join(map(str, PYTHON))
    return Finding(Severity.FAILURE, "Python", text, f"Use {wanted} or newer: make setup PYTHON=python{wanted}.")


def library(vendor: str, problem: str = "") -> Finding:
    """Does mpi4py load an MPI library that is known?"""
    if vendor:
        return Finding(Severity.OK, "MPI library", f"mpi4py uses {vendor}")
    text = f"mpi4py does not load: {problem.rstrip('.')}"
    return Finding(Severity.WARNING, "MPI library", text, f"{_WITHOUT} {mpi.MPI_EXTRA}.")


def mpiexec(found: Sequence[Mpiexec], vendor: str) -> Finding:
    """Is there an ``mpiexec`` that fits mpi4py's library? ``workbench run`` takes the first; of others it warns.

    Args:
        found: see :func:`workbench.launch.start.mpi.candidates`.
        vendor: the library's; "" if that is not known.
    """
    install = mpi.INSTALL.get(vendor, mpi.MPI_EXTRA)
    if not found:
        text = f"there is none next to {sys.executable} or on PATH"
        return Finding(
            Severity.WARNING, "mpiexec", text, f"{_WITHOUT} {install}, or load your site's MPI module first."
        )
    fitting = [each for each in found if mpi.same_family(each.vendor, vendor) or not vendor]
    right = [each for each in fitting if not each.problem]
    faults = "; ".join(_fault(each, vendor) for each in found if each not in right)
    if not right:
        cure = f"Run {install}, or build mpi4py again with the MPI that you want."
        return Finding(Severity.FAILURE, "mpiexec", faults, cure)
    if faults:
        text = f"workbench run takes {right[0].path}: {right[0].vendor}, as well; but {faults}"
        cure = f"Before you type mpiexec yourself: export PATH={Path(right[0].path).parent}:$PATH"
        return Finding(Severity.WARNING, "mpiexec", text, cure)
    if right[0].listens:
        text = f"{right[0].path}: {right[0].vendor}, as well; but while a job runs it listens on all interfaces"
        cure = f"Where others can reach this machine: pip install mpich, which brings {gforker.NAME}."
        return Finding(Severity.WARNING, "mpiexec", text, cure)
    text = f"{' and '.join(each.path for each in right)}: {right[0].vendor}, as well"
    if right[0].vendor == "MPICH":  # workbench run has another launcher
        text += "; if you start it yourself, it listens on all addresses"
    return Finding(Severity.OK, "mpiexec", text)


def _fault(each: Mpiexec, vendor: str) -> str:
    return each.problem.rstrip(".") or f"{each.path} is {each.vendor or 'of no known vendor'}, but mpi4py uses {vendor}"


def packages(versions: Mapping[str, str], needed: Sequence[str]) -> list[Finding]:
    """What is installed; "" as a version means that it is not. Only what is needed must be there."""
    missing = [name for name in needed if not versions[name]]
    cure = f"Run pip install {' '.join(missing)}, or make setup." if missing else ""
    first = _versions({name: versions[name] for name in needed})
    more = _versions({name: version for name, version in versions.items() if name not in needed})
    return [
        Finding(Severity.FAILURE if missing else Severity.OK, "packages", first, cure),
        Finding(Severity.OK, "optional", more),
    ]


def _versions(versions: Mapping[str, str]) -> str:
    there = ", ".join(f"{name} {version}" for name, version in versions.items() if version)
    missing = ", ".join(name for name, version in versions.items() if not version)
    return "; ".join(filter(None, (there, missing and f"not installed: {missing}")))


# --- the machine --------------------------------------------------------------------------------------


def loopback(problem: str = "") -> Finding:
    """Can ranks of this machine reach each other?"""
    if not problem:
        return Finding(Severity.OK, "network", "a port on 127.0.0.1 can be bound and reached")
    cure = "Bring the loopback interface up (ip link set lo up), or allow it in the sandbox or firewall."
    return Finding(Severity.FAILURE, "network", f"no port on 127.0.0.1: {problem}", cure)


def disk(name: str, path: str, free_bytes: int, writable: bool = True) -> Finding:
    """Is there room in a folder?

    Example:
        >>> disk("temp", "/tmp", 5 * 10**6).severity.name
        'FAILURE'
    """
    variable = {"temp": "TMPDIR", "cache": "XDG_CACHE_HOME"}.get(name, "TMPDIR")
    text = f"{size(free_bytes)} free in {path}"
    move = f"set {variable} to a folder on another disk"
    if not writable and name == "cache":
        text = f"{path} cannot be written, so downloaded data is not kept; all else works"
        return Finding(Severity.WARNING, name, text, f"Become its owner, or {move}.")
    if not writable:
        return Finding(Severity.FAILURE, name, f"{path} cannot be written", f"Become its owner, or {move}.")
    if free_bytes < FULL_BYTES:
        return Finding(Severity.FAILURE, name, text, f"Delete what is not needed, or {move}.")
    if free_bytes < SCARCE_BYTES:
        return Finding(Severity.WARNING, name, text, f"It is almost full: delete what is not needed, or {move}.")
    return Finding(Severity.OK, name, text)


def shared_memory(free_bytes: int | None) -> Finding:
    """Is there room in /dev/shm, which ranks and DataLoader workers share? None: the system has no such disk."""
    if free_bytes is None and sys.platform == "linux":
        return Finding(Severity.WARNING, "/dev/shm", "it is not there, or cannot be written", CURE)
    if free_bytes is None:
        return Finding(Severity.OK, "/dev/shm", "none on this system")
    fit = count(most_ranks(free_bytes), "rank")
    text = f"{size(free_bytes)} free: space for {fit} of MPI"
    if free_bytes < SHM_BYTES:
        cure = f"Remove files of dead ranks there. {CURE}"
        return Finding(Severity.WARNING, "/dev/shm", text, cure)
    return Finding(Severity.OK, "/dev/shm", text)
