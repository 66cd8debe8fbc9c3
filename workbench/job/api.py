"""``init``, ``rank``, ``size`` …, and the verbs on numpy arrays, which are written in ``array_verbs.py``.

Framework modules stand on :func:`entry`, :func:`submit` and :func:`wait_for` (``entries.py``).

What all verbs share:

* ``name``: the same on every rank. Tensors may be submitted in any order if they are named. Unnamed ones get
  numbered names, so they must be submitted in the same order on every rank.
* ``process_set``: who takes part; all ranks by default. ``root_rank`` is a global rank nevertheless.
* the ``_async`` forms return a :class:`~workbench.core.handle.Handle`; :func:`synchronize` waits for it.
* errors: :class:`~workbench.errors.MismatchError` on every rank where the ranks disagree,
  :class:`~workbench.errors.RankFailedError` where one raised, ``PeerLostError``, ``ShutDownError``,
  :class:`~workbench.errors.DuplicateNameError` and :class:`~workbench.errors.UnsupportedTensorError` at once.

Source of names and semantics: Horovod 0.28 (``horovod/common``, ``horovod/torch/mpi_ops.py``).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from workbench import config
from workbench.common.alone import ALONE, needs_a_job, needs_the_others, no_collective
from workbench.core.messages import Kind, ReduceOp
from workbench.core.pending import Entry
from workbench.errors import LaunchError
from workbench.job import array_verbs
from workbench.job.array_calls import Array as Array
from workbench.job.array_verbs import *  # noqa: F403
from workbench.job.context import HOLDER, World
from workbench.job.entries import entry as entry
from workbench.job.entries import submit as submit
from workbench.job.entries import submit_when_free as submit_when_free
from workbench.job.entries import wait_for as wait_for
from workbench.job.joining import Meet, join_job, leave_job, run_threads
from workbench.job.process_sets import ProcessSet, add_process_set, global_process_set, register, remove_process_set
from workbench.job.requests import auto_name as auto_name
from workbench.runtime.faults.notebook_hooks import watch_cells, watch_exceptions

if TYPE_CHECKING:
    from mpi4py import MPI

    from workbench.job.context import Context

Average, Sum, Min, Max = ReduceOp.AVERAGE, ReduceOp.SUM, ReduceOp.MIN, ReduceOp.MAX
Product, Adasum = ReduceOp.PRODUCT, ReduceOp.ADASUM

_JOINING = threading.RLock()
# Whoever has it in the parent is not there in a forked child, and would never give it back.
os.register_at_fork(after_in_child=lambda: _JOINING._at_fork_reinit())  # type: ignore[attr-defined]

# --- the job ------------------------------------------------------------------------------------------


def init(comm: MPI.Intracomm | None = None, process_sets: Sequence[ProcessSet] | str | None = None) -> None:
    """Join the job that the launcher started; every rank calls it. A second call does nothing, on another thread, too.

    Under mpiexec the ranks connect over MPI; under torchrun, or srun without MPI, over TCP. A process without
    a launcher is rank 0 of 1.

    Args:
        comm: an mpi4py communicator to use instead of ``COMM_WORLD``; it is duplicated.
        process_sets: sets to register in this call. The ranks may give different sets, such as the communicator that
            ``Split`` returned on each; all of them are registered on all ranks. ``"dynamic"`` changes nothing here:
            sets can always be added later.

    Raises:
        LaunchError: the ranks could not connect, or a rank has started this process, as a DataLoader does its workers;
            the text says what to change. In a notebook also where a rank's cell
            has ended without a call of ``init()``.
        DeadlineError: not all ranks called ``init()`` within ``WORKBENCH_INIT_TIMEOUT_S``.
        ValueError: a rank gave a process set twice, or one of unknown ranks. No rank is initialized then.

    Example:
        >>> init()
        >>> rank(), size()
        (0, 1)
        >>> shutdown()
    """
    with _one_thread():
        if config.rank_here() and (above := HOLDER.above()):
            raise LaunchError(
                f"init(): {above} A worker that begins by spawn or forkserver imports the script: call init() below "
                '`if __name__ == "__main__":`, which it does not run.'
            )
        if not is_initialized():
            _join(comm, process_sets)
        elif comm is not None and (asked := getattr(comm, "Get_size", size)()) != size():
            sys.stderr.write(
                f"workbench: rank {rank()}: init() with a communicator of size {asked} changes nothing: this process "
                f"is already in a job of size {size()}. Call shutdown() before, or use a process set.\n"
            )


def init_by(meet: Meet) -> None:
    """As :func:`init`, with ranks that ``meet`` finds: a framework's own rendezvous."""
    with _one_thread():
        _join(None, None, meet)


def _join(
    comm: MPI.Intracomm | None, process_sets: Sequence[ProcessSet] | str | None, meet: Meet | None = None
) -> None:
    needs_a_job()
    given = () if process_sets is None or isinstance(process_sets, str) else process_sets
    context, sets = join_job(comm, given, meet)
    HOLDER.set(context)
    alone = context.world.size == 1 and config.launch().launcher == "none"  # what it starts may be ranks of another job
    config.set_rank_here(None if alone else context.world.rank)
    watch_exceptions(_running)
    watch_cells(_running)
    atexit.unregister(_at_exit)
    atexit.register(_at_exit)  # registered after MPI's own, so it runs before it
    register(sets)
    if ALONE.get():  # a collective in the same statement must not meet those of the others
        context.engine.gate = no_collective


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """One thread of this process at a time joins the job or leaves it. A thread that is a rank is not concerned."""
    if HOLDER.own() is not None:
        yield
        return
    with _JOINING:
        yield


def shutdown() -> None:
    """Leave the job. Waits for the other ranks, at most WORKBENCH_SHUTDOWN_TIMEOUT_S (10 s). May be called twice.

    In a notebook it does not wait for a rank whose cell has ended.

    ``init()`` can then begin a new job. Unfinished collectives that need this rank fail with ShutDownError.
    """
    needs_the_others("shutdown()")
    rank = HOLDER.get().world.rank if is_initialized() else -1
    if not leave(for_good=True):
        sys.stderr.write(f"workbench: rank {rank} left the job, but not all ranks did.\n")


def leave(for_good: bool = False) -> bool:
    """As :func:`shutdown`, without a word; False if not all ranks left together.

    Args:
        for_good: no next epoch of an elastic job follows.
    """
    if HOLDER.find() is None:
        return True
    with _one_thread():
        context = HOLDER.find()
        if context is None:
            return True
        mine = context.pid == os.getpid()
        if mine:
            context.finish_all()
            config.set_rank_here(None)
        HOLDER.set(None)
        return not mine or leave_job(context, for_good)


def is_initialized() -> bool:
    """True between ``init()`` and ``shutdown()``."""
    context = HOLDER.find()
    return context is not None and context.pid == os.getpid()


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """From now on record what happens to each tensor, as a Chrome trace; rank 0 writes the file.

    Args:
        file_path: a new file on rank 0's machine.
        mark_cycles: mark each message of responses.

    Raises:
        NotInitializedError: before ``init()``.
        OSError: the file cannot be written.
    """
    context = HOLDER.get()
    if context.world.rank == 0:
        context.timeline.open(file_path, mark_cycles)


def stop_timeline() -> None:
    """End the recording; the file is complete then. Nothing if none was started."""
    HOLDER.get().timeline.close()


def world() -> World:
    """All six numbers at once."""
    return HOLDER.get().world


def rank() -> int:
    """This process's number among all, 0 … size() - 1."""
    return world().rank


def size() -> int:
    """How many ranks there are."""
    return world().size


def local_rank() -> int:
    """This rank's number on its node: the GPU to use."""
    return world().local_rank


def local_size() -> int:
    """How many ranks share this node."""
    return world().local_size


def cross_rank() -> int:
    """This node's number among the nodes that have a rank with my local rank."""
    return world().cross_rank


def cross_size() -> int:
    """How many nodes have a rank with my local rank."""
    return world().cross_size


def is_homogeneous() -> bool:
    """True when all nodes have the same number of ranks."""
    return world().homogeneous


# --- verbs without an array ---------------------------------------------------------------------------


def barrier(process_set: ProcessSet = global_process_set) -> None:
    """Return when all ranks have called it. No array is sent: the negotiation itself is the barrier."""
    _wait(entry(Kind.BARRIER, None, None, process_set=process_set))


def join(device: int = -1) -> int:
    """Say that this rank has no more data, and wait until all ranks have said so.

    Meanwhile the others' allreduces (Average and Sum) go on; this rank contributes zeros, and an average still
    divides by the number of all ranks. Unnamed tensors are numbered anew afterwards.

    Args:
        device: ignored; accepted for Horovod compatibility.

    Returns:
        The last rank to join, the same on every rank.

    Example:
        >>> run_threads(2, join) in ([0, 0], [1, 1])
        True
    """
    last = int(_wait(entry(Kind.JOIN, None, "join")))
    HOLDER.get().names.restart()
    return last


def _wait(one: Entry) -> Any:
    return submit([one], at_once=True)[0].wait()


def _running() -> Context | None:
    context = HOLDER.find()
    return context if context is not None and context.pid == os.getpid() else None


def _at_exit() -> None:
    shutdown()


# The public names. Framework modules take further ones from here: those imported `as` themselves, and world().
__all__ = [
    "Adasum",
    "Average",
    "Max",
    "Min",
    "ProcessSet",
    "Product",
    "ReduceOp",
    "Sum",
    "add_process_set",
    "barrier",
    "cross_rank",
    "cross_size",
    "global_process_set",
    "init",
    "is_homogeneous",
    "is_initialized",
    "join",
    "local_rank",
    "local_size",
    "rank",
    "remove_process_set",
    "run_threads",
    "shutdown",
    "size",
    "start_timeline",
    "stop_timeline",
]
__all__ += array_verbs.__all__
