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
    [{jax}] JAX

Available Controllers:
    [{mpi}] MPI
    [{gloo}] Gloo

Available Tensor Operations:
    [{nccl}] NCCL
    [{ddl}] DDL
    [{ccl}] CCL
    [{mpi}] MPI
    [{gloo}] Gloo"""

_UNKNOWN = """

[?]: not known. The question was not answered within {limit:g} s, or its process crashed. Ask again later."""

# Asked in a process of its own: this one stays small and can go on to start ranks.
_ASK_NCCL = "import cupy; from cupy.cuda import nccl; assert cupy.is_available() and nccl.available"
_MARKS = {True: "X", False: " ", None: "?"}
_ASK_TIMEOUT_S = 60.0


def report() -> str:
    """The whole text. Takes as long as importing torch."""
    asks = {"mpi": has_mpi, "nccl": has_nccl}
    with ThreadPoolExecutor() as pool:
        answers: dict[str, bool | None] = dict(zip(asks, pool.map(lambda ask: ask(), asks.values()), strict=True))
    answers |= {name: has_framework(name) for name in ("tensorflow", "torch", "mxnet", "jax")}
    answers |= {"gloo": True, "ddl": False, "ccl": False}  # ranks without MPI; IBM's and Intel's
    text = _TEXT.format(version=__version__, **{name: _MARKS[there] for name, there in answers.items()})
    return text + (_UNKNOWN.format(limit=_ASK_TIMEOUT_S) if None in answers.values() else "")


def has_framework(name: str) -> bool:
    """Is a framework installed, and the workbench's module for it here? Neither is imported."""
    return find_spec(name) is not None and find_spec(f"workbench.{name}") is not None


def has_mpi() -> bool | None:
    """Is there an mpiexec that fits mpi4py's library? None: there was no answer."""
    try:
        return bool(mpi.find_mpiexec())
    except LaunchError as error:
        cause: BaseException | None = error
        while cause and not isinstance(cause, subprocess.TimeoutExpired):
            cause = cause.__cause__
        return None if cause else False


def has_nccl() -> bool | None:
    """Is there a backend for NCCL, the package that it needs, and a GPU? None: there was no answer."""
    return find_spec("workbench.transport.gpu.nccl") is not None and _works("cupy", _ASK_NCCL)


def _works(package: str, code: str) -> bool | None:
    if find_spec(package) is None:
        return False
    try:
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=_ASK_TIMEOUT_S, cwd="/")
    except subprocess.TimeoutExpired:
        return None
    return done.returncode == 0 if done.returncode >= 0 else None  # a signal has ended it
