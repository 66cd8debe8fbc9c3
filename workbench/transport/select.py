"""How the ranks find each other, and what connects them: MPI, or what torchrun, Slurm or the user has said."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

from workbench.config import BACKENDS, Launch, Settings
from workbench.core.backend.base import SLOT_BYTES, Backend
from workbench.errors import LaunchError
from workbench.transport.bootstrap.base import Bootstrap as Bootstrap
from workbench.transport.bootstrap.base import SingleBootstrap
from workbench.transport.bootstrap.launcher_around import sign_of_others
from workbench.transport.bootstrap.mpi import MpiBootstrap
from workbench.transport.bootstrap.store import StoreBootstrap
from workbench.transport.elastic import ElasticBootstrap
from workbench.transport.hierarchical import hierarchical_backend
from workbench.transport.mpi_process import mpi_process
from workbench.transport.shm.backend import reserved_bytes, shm_backend
from workbench.transport.shm.node import join_memory

if TYPE_CHECKING:
    from mpi4py import MPI

_MPI_LAUNCHERS = {"mpich": "MPICH", "openmpi": "Open MPI", "pmix": "PMIx"}
_CHOICES = ("auto", "shm", *BACKENDS)
# With these the launcher decides: MPI connects whom mpiexec started, TCP the others.
_LAUNCHER_DECIDES = ("auto", "shm", "mpi", "gloo")


def find_ranks(launch: Launch, settings: Settings, comm: MPI.Intracomm | None = None) -> Bootstrap:
    """Find the other ranks in the way that the launcher calls for.

    Args:
        launch: how this process was started, see :func:`workbench.config.launch`.
        settings: ``backend`` may insist on one; deadlines.
        comm: a communicator to use instead of the world's.

    Raises:
        LaunchError: MPI's mpiexec and library do not match, the store cannot be reached, torch is missed, or this
            process would be alone though a launcher has started it among others.
    """
    found = _find_ranks(launch, settings, comm)
    if found.size == 1 and launch.launcher == "none" and comm is None and (sign := sign_of_others()):
        if "mpi4py.MPI" in sys.modules:
            mpi_process().broken = True  # its end waits for nobody: the others may wait for it, in init()
        raise LaunchError(
            f"init(): this process would train alone, but {sign}. Its environment has lost the launcher's variables: "
            "by os.environ.clear(), env -i, sudo, or a script that passes only few variables? Pass the whole "
            "environment (sudo -E). If it shall be alone, start it with workbench run -np 1."
        )
    return found


def _find_ranks(launch: Launch, settings: Settings, comm: MPI.Intracomm | None) -> Bootstrap:
    if settings.backend not in (*_CHOICES, "gloo"):
        names = f"{', '.join(_CHOICES[:-1])} or {_CHOICES[-1]}"
        raise LaunchError(f"WORKBENCH_BACKEND={settings.backend!r}: choose {names}.")
    if comm is not None or (launch.launcher in _MPI_LAUNCHERS and settings.backend != "gloo"):
        return MpiBootstrap(launch, settings, comm)
    if launch.launcher == "elastic":
        return ElasticBootstrap(launch, settings)
    if launch.launcher in ("torchrun", "slurm"):
        return StoreBootstrap(launch, settings)
    if launch.launcher in _MPI_LAUNCHERS and launch.size > 1:
        raise LaunchError(
            "WORKBENCH_BACKEND=gloo means without MPI, but mpiexec started these ranks: unset it, or start them with "
            "torchrun or workbench run --gloo."
        )
    if settings.backend == "mpi":
        return MpiBootstrap(launch, settings, None)
    return SingleBootstrap()


def connect(bootstrap: Bootstrap, settings: Settings) -> Backend:
    """The data plane between all ranks, which all of them call: one backend, with shared memory inside a machine.

    Raises:
        LaunchError: the ranks cannot be connected as the settings insist.
    """
    if bootstrap.size == 1 or bootstrap.backend not in BACKENDS:  # alone, or threads of one process
        flat = _flat(bootstrap.backend, bootstrap, settings)
        return replace(flat, slots=[memoryview(bytearray(SLOT_BYTES))]) if bootstrap.size == 1 else flat
    everybody = bootstrap.exchange((bootstrap.node, settings))
    settings, nodes = everybody[0][1], [node for node, _ in everybody]  # rank 0's settings: all must do the same
    flat = _flat(bootstrap.backend if settings.backend in _LAUNCHER_DECIDES else settings.backend, bootstrap, settings)
    if settings.backend in BACKENDS or len(set(nodes)) == bootstrap.size:
        return flat
    return with_shared_memory(flat, bootstrap, nodes, settings)


def _flat(name: str, bootstrap: Bootstrap, settings: Settings) -> Backend:
    found: Backend = import_module(f"workbench.transport.host.{name}").connect(bootstrap, settings)
    return found


def with_shared_memory(flat: Backend, bootstrap: Bootstrap, nodes: list[str], settings: Settings) -> Backend:
    """Shared memory inside each machine, and ``flat`` between machines; ``flat`` alone where there is none.

    Args:
        flat: connects all ranks.
        bootstrap: exchanges what they need for it.
        nodes: by rank, the name of its machine.
        settings: rank 0's.

    Raises:
        LaunchError: the settings insist on shared memory.
    """
    here = [rank for rank, node in enumerate(nodes) if node == bootstrap.node]
    node, problem = join_memory(
        lambda value: [each for rank, each in enumerate(bootstrap.exchange(value)) if rank in here],
        here.index(bootstrap.rank),
        reserved_bytes(settings.fusion_threshold_bytes),
        settings.data_timeout_s,
    )
    problems = list(filter(None, bootstrap.exchange(problem)))
    if problems and settings.backend == "shm":
        raise LaunchError(f"WORKBENCH_BACKEND=shm, but {problems[0]}. Unset it, or set it to {' or '.join(BACKENDS)}.")
    if problems or node is None:
        return flat
    if len(set(nodes)) == 1:
        return shm_backend(flat, node, settings.fusion_threshold_bytes)
    return hierarchical_backend(flat, nodes, node, settings)
