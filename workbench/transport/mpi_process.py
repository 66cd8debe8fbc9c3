"""MPI in this process: begun within a deadline, and ended unless that would last for ever.

MPI_Init and MPI_Finalize return when every rank has called them, and until then mpi4py's versions hold the GIL.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import os
import sys
from collections.abc import Callable
from concurrent.futures import Future, TimeoutError
from pathlib import Path
from typing import Any

from workbench.config import Launch
from workbench.errors import DeadlineError, LaunchError
from workbench.transport.background import background, patient

_MPICH = " /dev/shm/mpich_shm_"


@functools.cache  # one per process, as MPI is
def mpi_process() -> MpiProcess:
    """MPI in this process, imported but not initialised."""
    return MpiProcess()


class MpiProcess:
    """Initialises MPI, unless the script has done so by importing it, and finalises what it has initialised.

    Attributes:
        mpi: the module ``mpi4py.MPI``.
        broken: a rank was lost, or the data plane broke: not all will come to MPI_Finalize, so none may wait there.
        duplicates: of communicators, begun by an ``init()`` that did not come to its end.
    """

    def __init__(self) -> None:
        import mpi4py

        # Without effect where the script has imported MPI before.
        mpi4py.rc.initialize = False
        mpi4py.rc.finalize = False
        from mpi4py import MPI

        self.mpi: Any = MPI
        self.broken = False
        self.duplicates: dict[Any, tuple[Any, Any]] = {}
        self._begun: Future[None] | None = None

    def begin(self, launch: Launch, timeout_s: float, tick: Callable[[], None] = lambda: None) -> Any:
        """Initialise MPI, after a look at whether its library fits the launcher, and return ``mpi4py.MPI``.

        MPI_Init under another vendor's mpiexec aborts the process, or makes each rank a world of its own; so
        the library is asked for its name before MPI_Init.

        Args:
            launch: how this process was started.
            timeout_s: deadline.
            tick: called amid the wait; it may raise to end it.

        Raises:
            LaunchError: the vendors do not match, or MPI does not allow calls from the engine's thread.
            DeadlineError: not all ranks called it within ``timeout_s``.
        """
        if self._begun is None and not self.mpi.Is_initialized():
            _check_vendor(self.mpi, launch)
            self._begun = background(self._initialise)
        try:
            if self._begun is not None:
                patient(self._begun, tick, timeout_s)
        except TimeoutError:
            raise DeadlineError(
                f"init(): not all {launch.size} ranks came to MPI_Init within {timeout_s:g} s. "
                "Call init() on every rank."
            ) from None
        if self.mpi.Query_thread() < self.mpi.THREAD_SERIALIZED:
            raise LaunchError(
                "MPI was initialised without support for calls from a second thread. Call workbench's init() before "
                "anything else initialises MPI, or set mpi4py.rc.thread_level = 'multiple'."
            )
        return self.mpi

    def _initialise(self) -> None:
        try:
            init_thread = ctypes.CDLL(self.mpi.__file__).MPI_Init_thread  # releases the GIL
        except (OSError, AttributeError):  # not to be found in mpi4py's module: then without a deadline
            self.mpi.Init_thread(self.mpi.THREAD_MULTIPLE)
        else:
            init_thread(None, None, self.mpi.THREAD_MULTIPLE, ctypes.byref(ctypes.c_int()))
            for comm in (self.mpi.COMM_WORLD, self.mpi.COMM_SELF):
                comm.Set_errhandler(self.mpi.ERRORS_RETURN)  # as mpi4py does: it makes exceptions of errors
        atexit.register(self._end, os.getpid())

    def _end(self, pid: int) -> None:
        """Finalise, but not in a forked child, as mpi4py would: that disturbs the parent."""
        failed = getattr(sys.modules.get("sitecustomize"), "failed", bool)  # under workbench run: did the script raise?
        if os.getpid() == pid and not (self.broken or self.mpi.Is_finalized() or failed()):
            self.mpi.Finalize()


def _check_vendor(mpi: Any, launch: Launch) -> None:
    started_by = {"openmpi": "Open MPI", "mpich": "MPICH"}.get(launch.launcher, vendor(mpi))
    if vendor(mpi) != started_by and launch.size > 1:
        raise LaunchError(
            f"This process was started by {started_by}'s mpiexec, but mpi4py uses {vendor(mpi)}: start it with "
            f"the mpiexec of {vendor(mpi)}, or install an mpi4py that uses {started_by}."
        )


def forget_names() -> None:
    """Unlink MPICH's shared memory, which else stays in /dev/shm for ever where ranks are killed.

    It keeps its name until MPI_Finalize, though nobody opens it after MPI_Init; all ranks of the machine must have come
    through that.
    """
    with contextlib.suppress(OSError):
        paths = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if _MPICH in line}
        for path in paths:
            Path(path).unlink(missing_ok=True)


def vendor(mpi: Any) -> str:
    """The name of the MPI library: Open MPI, or MPICH for the family that starts with MPICH's mpiexec."""
    return "Open MPI" if "Open MPI" in mpi.Get_library_version() else "MPICH"
