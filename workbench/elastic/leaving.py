"""SIGTERM means: leave within a grace period. So say Slurm, Kubernetes, and machines that are lent for a while only.

In a function under ``elastic.run`` of an elastic job, a rank that gets it tells the launcher, and trains on. The
launcher tells all ranks; at the next commit they begin an epoch without it, and its process ends well. Where all ranks
get it, all leave at one commit. A second SIGTERM ends the process at once.

A child that the function forks, as a worker of a ``multiprocessing.Pool``, ends by SIGTERM as any other process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

from workbench import config
from workbench.common.notebook import running_kernel
from workbench.transport.elastic import registration


class _SigtermHandler:
    """What SIGTERM calls: it raises nothing, so a collective that it interrupts goes on."""

    raises_nothing = True

    def __init__(self, path: str, worker: int) -> None:
        self._path, self._worker, self._asked, self._pid = path, worker, False, os.getpid()

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self._asked or os.getpid() != self._pid:  # it may come to a child before _as_any_other is called there
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self._asked = True
        # On a thread of its own: the main thread may hold the lock of the connection right now.
        threading.Thread(target=self._notify, name="workbench-leaving", daemon=True).start()

    def _notify(self) -> None:
        with contextlib.suppress(OSError):
            registration(self._path, self._worker, os.getpid()).send("leaving")


def _hold() -> None:
    """Before a fork. Python drops in the child what has come to its handlers before: so SIGTERM waits until then."""
    if isinstance(signal.getsignal(signal.SIGTERM), _SigtermHandler):
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _release() -> None:
    if isinstance(signal.getsignal(signal.SIGTERM), _SigtermHandler):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _as_any_other() -> None:
    """In a forked child."""
    if isinstance(signal.getsignal(signal.SIGTERM), _SigtermHandler):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


os.register_at_fork(before=_hold, after_in_parent=_release, after_in_child=_as_any_other)


@contextlib.contextmanager
def leaving_on_sigterm() -> Iterator[None]:
    """Within the block SIGTERM asks for a clean end; nothing changes where the script handles it itself.

    Example:
        >>> with leaving_on_sigterm():
        ...     pass  # train
    """
    launch = config.launch()
    mine = launch.launcher == "elastic" and threading.current_thread() is threading.main_thread()
    if not mine or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return
    handler: Any = _SigtermHandler(launch.file, launch.rank)
    signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGTERM) is handler:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def end_engine() -> None:
    """The job goes on without this process: end a notebook's engine here, which would survive ``SystemExit``."""
    if running_kernel() is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
