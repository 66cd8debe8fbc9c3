"""The ranks of an MPI communicator find each other. Each wait here has a deadline, and Ctrl-C ends it."""

from __future__ import annotations

import os
import secrets
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from workbench.common.cell_numbers import WaitNotice, elsewhere, idle
from workbench.config import Launch, Settings
from workbench.errors import DeadlineError, LaunchError
from workbench.machine import allow_many_files, machine
from workbench.transport.background import background, patient
from workbench.transport.bootstrap.base import look_for_idle
from workbench.transport.bootstrap.peers import Peers, namespace
from workbench.transport.mpi_process import forget_names, mpi_process, vendor

if TYPE_CHECKING:
    from mpi4py import MPI


class MpiBootstrap:
    """The ranks of an MPI communicator, over a duplicate of it, so that nobody's messages mix with ours."""

    backend = "mpi"

    def __init__(self, launch: Launch, settings: Settings, comm: MPI.Intracomm | None) -> None:
        self._process, self._settings = mpi_process(), settings
        self._peers, self._notice = Peers(launch), WaitNotice("init()")
        mpi = self._process.begin(launch, settings.init_timeout_s, self._look_for)
        everybody: MPI.Intracomm = comm or mpi.COMM_WORLD
        if comm is None and launch.size not in (1, everybody.Get_size()):
            raise LaunchError(
                f"The launcher started {launch.size} ranks, but MPI ({vendor(mpi)}) sees {everybody.Get_size()}: each "
                f"process would train alone. Start with the mpiexec (or srun --mpi=...) that belongs to {vendor(mpi)}."
            )
        self.comm = self._duplicate(everybody)
        self.rank, self.size = self.comm.Get_rank(), self.comm.Get_size()
        if self.size == mpi.COMM_WORLD.Get_size():
            self._process.broken = False  # all have met again, so all will come to the end, too
        from workbench.transport.bootstrap.mpi_messages import Messages

        self._messages = Messages(self.comm, self._peers.look)
        self.secret = self._introduce()
        self.node = self._place(mpi)
        forget_names()

    def exchange(self, value: Any) -> list[Any]:
        """By way of rank 0."""
        return self._messages.exchange(value, self._settings.init_timeout_s)

    def give_up(self, problem: str) -> None:
        """In a message of its own, which the others find amid whatever they wait for."""
        with suppress(Exception):  # what has failed here is raised, and not what fails in addition
            self._messages.give_up(problem)

    def look(self) -> None:
        """At the processes of this machine, and at whether a rank has given up."""
        self._messages.look()

    def broken(self) -> None:
        """This rank will not wait for the others in MPI_Finalize, which could last for ever."""
        self._process.broken = True

    def _look_for(self, everybody: MPI.Intracomm | None = None) -> None:
        """As long as not all have come: at the processes of this machine, and at whether a rank never comes."""
        self._peers.look()
        ranks = None
        if everybody is not None and (idle() or elsewhere()):
            ours, world = everybody.Get_group(), self._process.mpi.COMM_WORLD.Get_group()
            ranks = ours.Translate_ranks(list(range(ours.Get_size())), world)
        look_for_idle(ranks)
        self._notice.look(ranks)

    def _duplicate(self, everybody: MPI.Intracomm) -> MPI.Intracomm:
        """A communicator of our own. Where an ``init()`` broke off amid it, the next one goes on with the same."""
        from workbench.transport.mpi_waiting import wait

        begun = self._process.duplicates
        key = everybody.handle if hasattr(everybody, "handle") else id(everybody)
        duplicate, request = begun.pop(key, None) or everybody.Idup()
        begun[key] = duplicate, request
        try:
            wait([request], lambda: self._look_for(everybody), self._settings.init_timeout_s)
        except DeadlineError:
            raise DeadlineError(
                f"init(): not all {everybody.Get_size()} ranks came within {self._settings.init_timeout_s:g} s. "
                "Call init() on every rank; on a rank that is still in a job it does nothing: call shutdown() there "
                "first."
            ) from None
        del begun[key]
        return duplicate

    def _introduce(self) -> bytes:
        """Tell the others who this is. Returns rank 0's secret, which travels over the launcher's own channel."""
        secret = secrets.token_bytes(32) if self.rank == 0 else b""
        hellos = self.exchange((machine(), namespace("pid"), os.getpid(), secret))
        self._peers.know(self.rank, [each[:3] for each in hellos])
        if len({each[0] for each in hellos}) > 1:  # MPI goes on listening, and may keep whoever connects
            allow_many_files()
        return bytes(hellos[0][-1])

    def _place(self, mpi: Any) -> str:
        """The name of the ranks with which MPI shares memory. It blocks in MPI, so it has a thread of its own."""
        comm = self.comm
        # Two threads may be in MPI at a time only where it was initialised so.
        look = self.look if mpi.Query_thread() == mpi.THREAD_MULTIPLE else self._peers.look

        def split() -> int:
            shared = comm.Split_type(mpi.COMM_TYPE_SHARED)
            group, everybody = shared.Get_group(), comm.Get_group()
            first = min(group.Translate_ranks(list(range(shared.Get_size())), everybody))
            shared.Free()
            return int(first)

        try:
            return f"{socket.gethostname()}/{patient(background(split), look, self._settings.init_timeout_s)}"
        except TimeoutError:
            raise DeadlineError(f"init(): MPI_Comm_split_type took over {self._settings.init_timeout_s:g} s.") from None
