"""Who moves the bytes of arrays on GPUs? What every rank sees, and what all of them do about it.

NCCL where each rank has a GPU of its own, or where NCCL lets processes share one (2.30 and later, asked for by an
environment variable). Else an MPI that reads the GPU's memory by itself; else the host, through pinned memory.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workbench import config
from workbench.config import Settings
from workbench.core.backend.base import Backend
from workbench.errors import LaunchError

if TYPE_CHECKING:
    from workbench.transport.gpu.device import Gpu

CHOICES = ("auto", "nccl", "mpi", "staged", "off")
SHARING = 23003  # the first NCCL that lets ranks share a GPU
_OLDEST_CUPY = 14
_MESSAGES = {"mpi": "collectives go through MPI, for ", "staged": "collectives go by way of the host, for "}


@dataclass(frozen=True)
class GpusSeen:
    """What one rank sees.

    Args:
        gpus: which GPUs are visible to its process, in CUDA's order; equal texts are one GPU.
        nccl: cupy's version of NCCL as one number, 0 without.
        aware: its MPI reads and writes the memory of GPUs.
        problem: why GPUs that are there cannot be used, or "".
        process: its number; 0 where that does not matter.
    """

    gpus: tuple[str, ...] = ()
    nccl: int = 0
    aware: bool = False
    problem: str = ""
    process: int = 0


@dataclass(frozen=True)
class Operations:
    """What all ranks do.

    Args:
        name: nccl, mpi, staged, or off: nothing; then arrays on GPUs are copied to the host and back.
        devices: for each rank the number of its GPU among those that it sees.
        why: in a sentence; "" where there is nothing to say.
        shared: ranks share a GPU.
    """

    name: str
    devices: tuple[int, ...] = ()
    why: str = ""
    shared: bool = False


def see(settings: Settings) -> GpusSeen:
    """Look. Neither cupy nor CUDA is begun where there is no GPU.

    Raises:
        LaunchError: WORKBENCH_GPU_OPERATIONS is none of the choices.
    """
    if settings.gpu_operations not in CHOICES:
        raise LaunchError(f"WORKBENCH_GPU_OPERATIONS={settings.gpu_operations!r}: choose {', '.join(CHOICES)}.")
    if settings.gpu_operations == "off" or not has_driver():
        return GpusSeen()
    if find_spec("cupy") is None:
        return GpusSeen(problem="cupy is not installed: pip install cupy-cuda13x, or -cuda12x for CUDA 12")
    try:
        return _ask()
    except Exception as error:  # noqa: BLE001 - whatever is wrong with it, ranks can do without
        return GpusSeen(problem=f"cupy cannot be used: {type(error).__name__}: {error}")


def has_driver() -> bool:
    """Is there a driver of NVIDIA's?"""
    return any(Path(each).exists() for each in ("/dev/nvidiactl", "/dev/dxg"))


def _ask() -> GpusSeen:
    import cupy

    if int(cupy.__version__.partition(".")[0]) < _OLDEST_CUPY:
        return GpusSeen(problem=f"cupy {cupy.__version__} is too old: version {_OLDEST_CUPY} is needed")
    runtime = cupy.cuda.runtime
    found = [_identity(runtime.getDeviceProperties(i)) for i in range(runtime.getDeviceCount())]
    aware = "mpi4py.MPI" in sys.modules and _aware(sys.modules["mpi4py.MPI"])
    return GpusSeen(tuple(found), _nccl_version(), aware, process=os.getpid())


def _identity(properties: Any) -> str:
    """Its uuid, and its place on the bus: cupy may cut the uuid off at a zero byte."""
    return f"{bytes(properties['uuid']).hex()}@{properties['pciDomainID']}:{properties['pciBusID']}"


def _nccl_version() -> int:
    from cupy.cuda import nccl

    return int(nccl.get_version()) if nccl.available else 0


def _aware(mpi: Any) -> bool:
    """Does MPI say that it takes the memory of GPUs? Open MPI and MPICH answer by a function of this name."""
    query = getattr(ctypes.CDLL(mpi.__file__), "MPIX_Query_cuda_support", None)
    return query is not None and bool(query())


def choose(seen: Sequence[GpusSeen], nodes: Sequence[str], wanted: str = "auto") -> Operations:
    """What all ranks do. A pure function of what each one says, so all choose alike.

    Args:
        seen: by rank.
        nodes: by rank, the name of its machine.
        wanted: rank 0's WORKBENCH_GPU_OPERATIONS.

    Raises:
        LaunchError: what was insisted on cannot be had.

    Example:
        >>> choose([GpusSeen(("a", "b"), nccl=22809)] * 2, ["node"] * 2)
        Operations(name='nccl', devices=(0, 1), why='', shared=False)
        >>> choose([GpusSeen(("a",), nccl=22809)] * 2, ["node"] * 2).why
        'ranks 0, 1 share a GPU, which NCCL 2.28.9 cannot: version 2.30.3 can'
    """
    missing = [rank for rank, each in enumerate(seen) if not each.gpus]
    if missing or wanted == "off":
        problem = next((seen[rank].problem for rank in missing if seen[rank].problem), "")
        problem = problem or (f"rank {missing[0]} sees no GPU" if 0 < len(missing) < len(seen) else "")
        if wanted not in ("auto", "off"):
            raise LaunchError(f"WORKBENCH_GPU_OPERATIONS={wanted}, but {problem or 'no rank sees a GPU'}.")
        return Operations("off", why=problem and f"{problem}; tensors on GPUs are copied to the host and back")
    locals_ = [list(nodes[:rank]).count(node) for rank, node in enumerate(nodes)]
    devices = tuple(local % len(each.gpus) for local, each in zip(locals_, seen, strict=True))
    users: dict[tuple[str, str], list[int]] = {}
    for rank, (node, each) in enumerate(zip(nodes, seen, strict=True)):
        users.setdefault((node, each.gpus[devices[rank]]), []).append(rank)
    together = next((ranks for ranks in users.values() if len(ranks) > 1), [])
    why = _not_nccl([each.nccl for each in seen], together) or _threads([seen[rank].process for rank in together])
    if wanted == "nccl" and why:
        raise LaunchError(f"WORKBENCH_GPU_OPERATIONS=nccl, but {why}.")
    if wanted in ("auto", "nccl") and not why:
        return Operations("nccl", devices, _shared(together), bool(together))
    aware = all(each.aware for each in seen)
    if wanted == "mpi" and not aware:
        raise LaunchError("WORKBENCH_GPU_OPERATIONS=mpi, but this MPI does not say that it accepts GPU memory.")
    name = "mpi" if aware and wanted in ("auto", "mpi") else "staged"
    return Operations(name, devices, why, bool(together))


def _not_nccl(versions: Sequence[int], together: Sequence[int]) -> str:
    """Why NCCL cannot do it, or ""."""
    if 0 in versions:
        return f"rank {versions.index(0)} has no NCCL that cupy can use: pip install nvidia-nccl-cu13, or -cu12"
    if len({version // 100 for version in versions}) > 1:
        said = ", ".join(f"{dotted(version)} on rank {rank}" for rank, version in enumerate(versions))
        return f"the ranks have different versions of NCCL: {said}"
    if together and min(versions) < SHARING:
        who, has = ", ".join(map(str, together)), dotted(min(versions))
        return f"ranks {who} share a GPU, which NCCL {has} cannot: version {dotted(SHARING)} can"
    return ""


def _threads(processes: Sequence[int]) -> str:
    """Why ranks that share a GPU cannot do it if they are threads, or ""."""
    if max(processes, default=0) and len(set(processes)) < len(processes):
        return "threads of one process share a GPU, and its default stream, where one would wait for another"
    return ""


def _shared(together: Sequence[int]) -> str:
    if not together:
        return ""
    return f"ranks {', '.join(map(str, together))} share a GPU: right, but slower than one rank on it"


def dotted(version: int) -> str:
    """22809 → 2.28.9."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def join(operations: Operations, nodes: Sequence[str], host: Backend, settings: Settings) -> Backend | None:
    """The backend of arrays on GPUs, or None. All ranks call it, in ``init()``.

    Args:
        operations: of all.
        nodes: by rank, the name of its machine.
        host: connects all ranks for arrays on the host.
        settings: rank 0's.
    """
    if operations.why and host.rank == 0:
        logging.getLogger("workbench").warning("GPUs: %s%s.", _MESSAGES.get(operations.name, ""), operations.why)
    if operations.name == "off":
        return None
    from workbench.transport.gpu.device import Gpu

    gpu = Gpu(operations.devices[host.rank], settings.data_timeout_s)
    if operations.name == "nccl":
        if operations.shared:
            config.let_ranks_share_a_gpu()
        return _nccl(gpu, nodes, host, settings)
    if operations.name == "mpi":
        if host.link is not None and host.link.name == "MPI":
            from workbench.transport.gpu.aware_mpi import aware_backend

            return aware_backend(host.link, host.ranks, gpu)
        if settings.gpu_operations == "mpi":
            raise LaunchError(
                f"WORKBENCH_GPU_OPERATIONS=mpi, but {host.name} moves the bytes of these ranks, and no MPI."
            )
    from workbench.transport.gpu.staged import staged_backend

    return staged_backend(host, gpu)


def _nccl(gpu: Gpu, nodes: Sequence[str], host: Backend, settings: Settings) -> Backend:
    from workbench.transport.gpu.nccl import Nccl, nccl_backend

    nccl = Nccl(gpu, settings.data_timeout_s, settings.init_timeout_s)
    try:
        return _levels(nccl_backend(nccl, host), nodes, settings)
    except BaseException:
        nccl.close(clean=False)
        raise


def _levels(flat: Backend, nodes: Sequence[str], settings: Settings) -> Backend:
    """The same, or in two levels where it is asked for, or tuned, and the machines have equally many ranks."""
    from workbench.transport.gpu.hierarchical import GpuHierarchicalCollectives

    here = [rank for rank, node in enumerate(nodes) if node == nodes[flat.rank]]
    machines = [nodes.count(node) for node in dict.fromkeys(nodes)]
    on, tuned = bool(settings.hierarchical_allreduce), settings.tunes("hierarchical_allreduce")
    if not (on or tuned) or len(machines) < 2 or len(set(machines)) > 1 or machines[0] < 2:
        return flat
    local = here.index(flat.rank)
    columns = [[r for r, each in enumerate(nodes) if each == node][local] for node in dict.fromkeys(nodes)]
    inside, across = flat.life.subset(here), flat.life.subset(columns)
    two_levels = GpuHierarchicalCollectives(flat.collectives, inside, across, on)
    return replace(flat, name=f"{flat.name}×2", collectives=two_levels, levels=two_levels)
