"""``workbench check-build``: the frameworks and libraries here, in the format of ``horovodrun --check-build``."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec

from workbench._version import __version__
from workbench.errors import LaunchError
from workbench.launch.start import mpi

_TEXT = """\
workbench v{version}:

Available Frameworks:
    [{tensorflow}] TensorFlow
    [{torch}] PyTorch
    [{mxnet}] MXNet

Available Controllers:
    [{mpi}] MPI
    [{gloo}] Gloo

Available Tensor Operations:
    [{nccl}] NCCL
    [{ddl}] DDL
    [{ccl}] CCL
    [{mpi}] MPI
    [{gloo}] Gloo"""

# Asked in a process of its own: this one stays small and can go on to start ranks.
_ASK_GLOO = "import torch.distributed as d; assert d.is_available() and d.is_gloo_available()"
_ASK_NCCL = "import cupy; from cupy.cuda import nccl; assert cupy.is_available() and nccl.available"
_ASK_TIMEOUT_S = 60.0


def report() -> str:
    """The whole text. Takes as long as importing torch."""
    asks = {"mpi": has_mpi, "gloo": has_gloo, "nccl": has_nccl}
    with ThreadPoolExecutor() as pool:
        answers = dict(zip(asks, pool.map(lambda ask: ask(), asks.values()), strict=True))
    answers |= {name: has_framework(name) for name in ("tensorflow", "torch", "mxnet")}
    answers |= {"ddl": False, "ccl": False}  # IBM's and Intel's: nothing here speaks to them
    boxes = {name: "X" if there else " " for name, there in answers.items()}
    return _TEXT.format(version=__version__, **boxes)


def has_framework(name: str) -> bool:
    """Is a framework installed, and the workbench's module for it here? Neither is imported."""
    return find_spec(name) is not None and find_spec(f"workbench.{name}") is not None


def has_mpi() -> bool:
    """Is there an mpiexec that fits mpi4py's library?"""
    try:
        return bool(mpi.find_mpiexec())
    except LaunchError:
        return False


def has_gloo() -> bool:
    """Does the installed torch bring Gloo?"""
    return _works("torch", _ASK_GLOO)


def has_nccl() -> bool:
    """Is there a backend for NCCL, the package that it needs, and a GPU?"""
    return find_spec("workbench.transport.gpu.nccl") is not None and _works("cupy", _ASK_NCCL)


def _works(package: str, code: str) -> bool:
    if find_spec(package) is None:
        return False
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=_ASK_TIMEOUT_S, cwd="/")
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
