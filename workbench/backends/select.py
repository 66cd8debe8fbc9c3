"""How the ranks meet, and who moves the bytes: mpiexec's MPI, torchrun's or Slurm's environment, or nobody.

A *meeting* is what ``init()`` needs from a launcher: who am I, who else is there, a way to exchange a few
small objects before the control plane stands, and a Backend.
"""

from __future__ import annotations

import pickle
import socket
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from workbench.backends.base import Backend
from workbench.backends.hierarchical import HierarchicalBackend
from workbench.backends.links import LinkBackend
from workbench.backends.mpi_process import forget_names, mpi_process, vendor
from workbench.backends.node import join_memory
from workbench.backends.shm import ShmBackend, reserved_bytes
from workbench.backends.single import SingleLink
from workbench.config import Launch, Settings
from workbench.errors import DeadlineError, LaunchError

if TYPE_CHECKING:
    from mpi4py import MPI

_MPI_LAUNCHERS = {"mpich": "MPICH", "openmpi": "Open MPI", "pmix": "PMIx"}


class Meeting(Protocol):
    """What a launcher provides to ``init()``."""

    rank: int
    size: int
    node: str
    """Equal for ranks that share a machine's memory."""

    def exchange(self, value: Any) -> list[Any]:
        """Every rank's value, by rank. All ranks call it."""

    def backend(self) -> Backend:
        """The data plane between all ranks."""

    def broken(self) -> None:
        """A rank was lost, or the data plane broke: not all ranks will ever be at one point again."""


def meet(launch: Launch, settings: Settings, comm: MPI.Intracomm | None = None) -> Meeting:
    """Meet the other ranks in the way that the launcher calls for.

    Args:
        launch: how this process was started, see :func:`workbench.config.launch`.
        settings: ``backend`` may insist on ``shm``, ``mpi`` or ``gloo``; deadlines.
        comm: a communicator to use instead of the world's.

    Raises:
        LaunchError: MPI's mpiexec and library do not match, or the meeting point cannot be reached.
    """
    if settings.backend not in ("auto", "shm", "mpi", "gloo"):
        raise LaunchError(f"WORKBENCH_BACKEND={settings.backend!r}: choose auto, shm, mpi or gloo.")
    if comm is not None or (launch.launcher in _MPI_LAUNCHERS and settings.backend != "gloo"):
        return MpiMeeting(launch, settings, comm)
    if launch.launcher in ("torchrun", "slurm"):
        return GlooMeeting(launch, settings)
    if launch.launcher in _MPI_LAUNCHERS and launch.size > 1:
        raise LaunchError(
            "WORKBENCH_BACKEND=gloo, but mpiexec started these ranks: unset it, or start them with torchrun."
        )
    if settings.backend == "mpi":
        return MpiMeeting(launch, settings, None)
    return SingleMeeting()


class SingleMeeting:
    """One process alone: a world of one."""

    def __init__(self) -> None:
        self.rank, self.size, self.node = 0, 1, machine()

    def exchange(self, value: Any) -> list[Any]:
        """One's own value."""
        return [value]

    def backend(self) -> Backend:
        """A backend that moves nothing."""
        return LinkBackend(SingleLink(), "SINGLE")

    def broken(self) -> None:
        """Nobody waits for anybody."""


class MpiMeeting:
    """The ranks of an MPI communicator, over a duplicate of it, so that nobody's messages mix with ours."""

    def __init__(self, launch: Launch, settings: Settings, comm: MPI.Intracomm | None) -> None:
        self._process = mpi_process()
        mpi = self._process.begin(launch, settings.init_timeout_s)
        from workbench.backends.mpi import wait

        self._settings = settings
        self._wait: Callable[[MPI.Request], None] = lambda request: wait(
            [request], lambda: None, settings.init_timeout_s
        )
        everybody: MPI.Intracomm = comm or mpi.COMM_WORLD
        self._comm, duplicated = everybody.Idup()
        try:
            self._wait(duplicated)
        except DeadlineError:
            raise DeadlineError(
                f"init(): not all {everybody.Get_size()} ranks came within {settings.init_timeout_s:g} s. "
                "Call init() on every rank."
            ) from None
        self.rank, self.size = self._comm.Get_rank(), self._comm.Get_size()
        if self.size == mpi.COMM_WORLD.Get_size():
            self._process.broken = False  # all have met again, so all will come to the end, too
        if comm is None and launch.size not in (1, self.size):
            raise LaunchError(
                f"The launcher started {launch.size} ranks, but MPI ({vendor(mpi)}) sees {self.size}: each process "
                f"would train alone. Start with the mpiexec (or srun --mpi=...) that belongs to {vendor(mpi)}."
            )
        shared = self._comm.Split_type(mpi.COMM_TYPE_SHARED)
        self.node = f"{socket.gethostname()}/{shared.allreduce(self.rank, mpi.MIN)}"
        shared.Free()
        forget_names()

    def exchange(self, value: Any) -> list[Any]:
        """An allgather of pickled objects, without a blocking call; they come from the job's own ranks."""
        mine = np.frombuffer(pickle.dumps(value), np.uint8)
        lengths = np.empty(self.size, np.int64)
        self._wait(self._comm.Iallgather(np.array([len(mine)]), lengths))
        everything = np.empty(int(lengths.sum()), np.uint8)
        self._wait(self._comm.Iallgatherv(mine, [everything, lengths]))
        return [pickle.loads(piece.tobytes()) for piece in np.split(everything, np.cumsum(lengths)[:-1])]

    def backend(self) -> Backend:
        """MPI, with the ring for large arrays; shared memory inside a machine."""
        from workbench.backends.mpi import MpiBackend, MpiLink

        return _over_memory(MpiBackend(MpiLink(self._comm, self._settings.data_timeout_s)), self, self._settings)

    def broken(self) -> None:
        """This rank will not wait for the others in MPI_Finalize, which could last for ever."""
        self._process.broken = True


class GlooMeeting:
    """Processes that know of each other through environment variables only; they meet in a TCP store."""

    def __init__(self, launch: Launch, settings: Settings) -> None:
        try:
            from workbench.backends.gloo import open_store, prefixed
        except ImportError:
            raise LaunchError(
                f"{launch.size} ranks were started without MPI ({launch.launcher}); they can talk over Gloo, which "
                "comes with torch: pip install torch, or start them with mpiexec."
            ) from None
        self.rank, self.size, self._settings = launch.rank, launch.size, settings
        store = open_store(launch.address, launch.port, self.rank, self.size, settings.init_timeout_s)
        # Every init() of the same processes needs fresh keys; all ranks have counted as far as this one.
        self._epoch = store.add(f"workbench/init/{self.rank}", 1)
        self._store, self._exchanged = prefixed(store, f"workbench/{self._epoch}"), 0
        self.node = machine()

    def exchange(self, value: Any) -> list[Any]:
        """Through the store; the objects come from the job's own ranks."""
        self._exchanged += 1
        self._store.set(f"{self._exchanged}/{self.rank}", pickle.dumps(value))
        try:
            return [pickle.loads(self._store.get(f"{self._exchanged}/{rank}")) for rank in range(self.size)]
        except RuntimeError as error:
            raise LaunchError(f"init(): not all {self.size} ranks came: {str(error).splitlines()[0]}") from None

    def backend(self) -> Backend:
        """Gloo, with our algorithms over it; shared memory inside a machine."""
        from workbench.backends.gloo import GlooLink, prefixed

        link = GlooLink(prefixed(self._store, "gloo"), self.rank, self.size, self._settings.data_timeout_s)
        return _over_memory(LinkBackend(link, "GLOO"), self, self._settings)

    def broken(self) -> None:
        """Nothing waits for the others at the end."""


def _over_memory(beneath: Backend, meeting: Meeting, settings: Settings) -> Backend:
    """Shared memory inside a machine, ``beneath`` between machines, unless somebody insists on another way."""
    if meeting.size == 1:
        return beneath
    everybody = meeting.exchange((meeting.node, settings))
    settings = everybody[0][1]  # rank 0's, as everywhere: all must take the same way
    nodes = [node for node, _ in everybody]
    if settings.backend not in ("auto", "shm") or len(set(nodes)) == meeting.size:
        return beneath
    here = [rank for rank, node in enumerate(nodes) if node == meeting.node]
    node, problem = join_memory(
        lambda value: [each for rank, each in enumerate(meeting.exchange(value)) if rank in here],
        here.index(meeting.rank),
        reserved_bytes(settings.fusion_threshold_bytes),
        settings.data_timeout_s,
    )
    problems = list(filter(None, meeting.exchange(problem)))
    if problems and settings.backend == "shm":
        raise LaunchError(f"WORKBENCH_BACKEND=shm, but {problems[0]}. Unset it, or set it to mpi or gloo.")
    if problems or node is None:
        return beneath
    if len(set(nodes)) == 1:
        return ShmBackend(beneath, node, settings.fusion_threshold_bytes)
    return HierarchicalBackend(beneath, nodes, node, settings.fusion_threshold_bytes, settings.hierarchical_bytes)


def machine() -> str:
    """Equal for processes of one machine: its name, and what its kernel drew at its start.

    Containers of different machines may bear the same name.
    """
    boot = Path("/proc/sys/kernel/random/boot_id")
    return f"{socket.gethostname()}/{boot.read_text().strip() if boot.exists() else ''}"
