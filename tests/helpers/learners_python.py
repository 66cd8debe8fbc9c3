"""A Python that learners, who are not root, may run: the system's, with what is installed here."""

from __future__ import annotations

import getpass
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import workbench

SYSTEM = "/usr/bin/python3"  # which everybody may run; that of a root's home nobody else may
ROOT = Path(workbench.__file__).parent.parent
MADE = os.getpid()
"""In the names of folders that a class's sockets need to be short."""


@contextmanager
def learners_python() -> Iterator[Path]:
    """Such an environment, in a folder that everybody can reach; the test is skipped where it cannot be made."""
    version = subprocess.run([SYSTEM, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, text=True)
    if getpass.getuser() != "root" or version.stdout.split() != [str(each) for each in sys.version_info[:2]]:
        pytest.skip("needs root, and a Python of the system of the same version")
    folder = Path(f"/tmp/wb-python-{MADE}")
    subprocess.run([SYSTEM, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next((folder / "lib").glob("python*/site-packages"))
    (site / "here.pth").write_text(f"{Path(pytest.__file__).parents[1]}\n{ROOT}\n")
    for kind, pattern in (("lib", "libmpi*"), ("lib", "mpich"), ("bin", "mpiexec*"), ("bin", "hydra*")):  # MPI wheel
        for path in Path(sys.prefix, kind).glob(pattern):
            (folder / kind / path.name).symlink_to(path)
    try:
        yield folder / "bin" / "python"
    finally:
        shutil.rmtree(folder)
