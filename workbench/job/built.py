"""Which libraries are installed and in use: Horovod's ``*_built()`` and ``*_enabled()`` for this environment."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from workbench.config import BACKENDS
from workbench.job.context import HOLDER


def mpi_built() -> bool:
    """Is mpi4py installed?"""
    return find_spec("mpi4py") is not None


def gloo_built() -> bool:
    """Can ranks do without MPI, as Horovod's over Gloo? Always: over shared memory and TCP."""
    return True


def nccl_built() -> int:
    """NCCL's version as one number (22703 for 2.27.3), or 0 without NCCL."""
    if not has_gpu():
        return 0
    import torch.distributed

    if not torch.distributed.is_nccl_available():
        return 0
    major, minor, patch = torch.cuda.nccl.version()[:3]
    return int(major) * 10000 + int(minor) * 100 + int(patch)


def cuda_built() -> bool:
    """Was the installed torch built for CUDA?"""
    return _torch_version("cuda")


def rocm_built() -> bool:
    """Was the installed torch built for ROCm?"""
    return _torch_version("hip")


def has_gpu() -> bool:
    """Does the installed torch see a GPU?"""
    if find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def _torch_version(what: str) -> bool:
    if find_spec("torch") is None:
        return False
    import torch

    return getattr(torch.version, what, None) is not None


def ddl_built() -> bool:
    """IBM's DDL is not supported: False."""
    return False


def ccl_built() -> bool:
    """Intel's oneCCL is not supported: False."""
    return False


def mpi_enabled() -> bool:
    """Does MPI connect the ranks of the running job? Inside a machine bytes may go through shared memory instead."""
    return connected_by() == BACKENDS["mpi"]


def gloo_enabled() -> bool:
    """Are the ranks of the running job connected without MPI, as Horovod's over Gloo? As :func:`mpi_enabled`."""
    return connected_by() == BACKENDS["sockets"]


def connected_by() -> str:
    """What connects the ranks of the running job, as :data:`workbench.config.BACKENDS` names it; "" without a job."""
    context = HOLDER.find()
    link = context.sets.everybody.link if context is not None else None
    return "" if link is None else link.name


def mpi_threads_supported() -> bool:
    """True when MPI may be called from any thread, so that mpi4py and the workbench can be mixed freely.

    Raises:
        NotInitializedError: before ``init()``.
    """
    HOLDER.get()
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi is not None and mpi.Is_initialized() and mpi.Query_thread() == mpi.THREAD_MULTIPLE
