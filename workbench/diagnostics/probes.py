"""What ``workbench doctor`` looks at on this machine: each function returns values for ``diagnosis``."""

from __future__ import annotations

import os
import shutil
import socket
from pathlib import Path

from workbench.diagnostics.diagnosis import Mpiexec
from workbench.errors import LaunchError
from workbench.launch.start import mpi

NEEDED = ("numpy", "mpi4py", "ipyparallel", "cloudpickle", "psutil")
OPTIONAL = ("torch", "tensorflow", "jax", "jupyterlab", "matplotlib")
_TIMEOUT_S = 10.0


def library() -> tuple[str, str]:
    """(vendor of mpi4py's MPI library, "") or ("", why it is not known)."""
    try:
        return mpi.library_vendor(), ""
    except LaunchError as error:
        return "", str(error.__cause__ or error)


def mpiexecs() -> list[Mpiexec]:
    """Each ``mpiexec`` at hand, asked for its version."""
    return [_mpiexec(path) for path in mpi.candidates()]


def _mpiexec(path: str) -> Mpiexec:
    try:
        vendor = mpi.mpiexec_vendor(path)
        return Mpiexec(path, vendor, listens=not mpi.forker(path))
    except LaunchError as error:
        return Mpiexec(path, problem=str(error))


def versions() -> dict[str, str]:
    """The version of each package that matters, "" where it is not installed. None is imported."""
    return {name: _version(name) for name in (*NEEDED, *OPTIONAL)}


def _version(name: str) -> str:
    from importlib.metadata import PackageNotFoundError, packages_distributions, version  # email and zipfile, too

    try:
        return version(name)
    except PackageNotFoundError:  # it may come under another name, as tensorflow does in tensorflow-cpu
        return next(map(version, packages_distributions().get(name, ())), "")


def loopback() -> str:
    """Listen on a port of this machine, connect to it, send a byte; "" or what went wrong."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.settimeout(_TIMEOUT_S)
            with socket.create_connection(server.getsockname(), _TIMEOUT_S) as client, server.accept()[0] as other:
                client.sendall(b"?")
                return "" if other.recv(1) == b"?" else "the message did not arrive"
    except OSError as error:
        return str(error)


def space(folder: Path) -> tuple[int, bool]:
    """(free bytes where a folder is or would be, may this user write there)."""
    there = next(each for each in (folder, *folder.parents) if each.exists())
    return shutil.disk_usage(there).free, os.access(there, os.W_OK | os.X_OK)


def shared_memory(folder: Path = Path("/dev/shm")) -> int | None:
    """Free bytes for shared memory; None where there is no such folder that can be written."""
    free, writable = space(folder) if folder.is_dir() else (0, False)
    return free if writable else None
