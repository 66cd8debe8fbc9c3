"""The job: what ``init()`` set up in this process, or in this thread of a threads world.

State of a job lives on its :class:`Context`. What lives longer is listed in ``job/__init__.py``.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from workbench import config
from workbench.common.cell_numbers import CellNumbers, WaitNotice, idle
from workbench.config import Settings
from workbench.core.backend.process_sets import SetTable
from workbench.core.engine import Engine
from workbench.core.messages import Raised
from workbench.errors import NotInitializedError, PeerLostError
from workbench.job import report
from workbench.job.names import Names
from workbench.job.state import rank_state
from workbench.runtime.control.client import ControlClient
from workbench.runtime.control.server import ControlServer
from workbench.runtime.events import Began, Ended, Lost, Sent
from workbench.runtime.faults.blocked_threads import BlockedThreads
from workbench.runtime.steady.tuner import Tuner
from workbench.runtime.trace.timeline import Timeline
from workbench.transport.gpu import select as gpu_select
from workbench.transport.select import Bootstrap

P = TypeVar("P")

_SETTLE_S = 0.5  # for rank 0's answer; after that the next cell may begin all the same
_AFTER_ERROR_S = 3.0  # the others are told at once; those that compute for longer find out when they come


@dataclass(frozen=True)
class World:
    """Who I am among all ranks.

    Args:
        rank, size: among all ranks.
        local_rank, local_size: among the ranks of this node, in the order of their ranks.
        cross_rank, cross_size: this node among the nodes that have a rank with my local rank.
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int
    homogeneous: bool = True


def place(nodes: list[str], rank: int) -> World:
    """Derive all six numbers from the name of every rank's node.

    Example:
        >>> place(["a", "a", "b"], rank=2)
        World(rank=2, size=3, local_rank=0, local_size=1, cross_rank=1, cross_size=2, homogeneous=False)
    """
    locals_ = [nodes[:r].count(node) for r, node in enumerate(nodes)]
    across = [r for r in range(len(nodes)) if locals_[r] == locals_[rank]]
    sizes = Counter(nodes)
    return World(
        rank=rank,
        size=len(nodes),
        local_rank=locals_[rank],
        local_size=sizes[nodes[rank]],
        cross_rank=across.index(rank),
        cross_size=len(across),
        homogeneous=len(set(sizes.values())) == 1,
    )


class Passing:
    """A part of the job: is told of states that the engine does not see (``runtime/faults/chaos``)."""

    def __init__(self) -> None:
        self.passes: Callable[[str], None] = lambda state: None


@dataclass
class Context:
    """A running job, seen from one rank.

    Args:
        world: who I am among all ranks.
        engine: runs the collectives, on a thread of its own.
        control: this rank's end of the control plane.
        sets: the backend of each process set.
        waits: which threads wait for what.
        bootstrap: how the ranks have found each other.
        settings: rank 0's.
        server: the control plane's other end, on rank 0.
        timeline: what happened to each tensor.
        gpu_operations: how tensors on GPUs are reduced.
        tuner: rank 0's, if the job is tuned.
        engines: a notebook's, which are the ranks; see :class:`workbench.common.cell_numbers.CellNumbers`.

    Attributes:
        pid: the process that is the rank; one that was forked from it is none.
        began: when, in seconds since 1970.
        names: the names that ranks give by counting.
        unfinished: functions that end what a framework has begun, or wait for it, before the job is left.
    """

    world: World
    engine: Engine
    control: ControlClient
    sets: SetTable
    waits: BlockedThreads
    bootstrap: Bootstrap
    settings: Settings
    server: ControlServer | None
    timeline: Timeline
    gpu_operations: gpu_select.Operations = field(default_factory=lambda: gpu_select.Operations("off"))
    tuner: Tuner | None = None
    engines: frozenset[int] = frozenset()
    pid: int = field(default_factory=os.getpid)
    names: Names = field(default_factory=Names)
    unfinished: set[Callable[[], Any]] = field(default_factory=set)
    began: float = field(default_factory=time.time)
    _parts: dict[type, Any] = field(default_factory=dict)
    _raised: bool = False
    _failed_here: int = 0  # of the engine's, when numbering began
    _cell_raised: bool = False  # since numbering began
    _counted: int = 0  # failures that the notebook had counted when it sent this cell
    _cells: tuple[int, int] = (0, 0)  # what rank 0 knows of this rank's cells: number and version

    @property
    def rank(self) -> int:
        return self.world.rank

    @property
    def failures(self) -> int:
        """How often something had failed before this cell: it differs from the last cell's if something has since."""
        return self.names.failures

    def part(self, kind: type[P]) -> P:
        """What an upper part of the package keeps of this job: one object of each kind, made at its first use.

        Example:
            >>> from workbench.job.joining import run_threads
            >>> run_threads(1, lambda: HOLDER.get().part(list) is HOLDER.get().part(list))
            [True]
        """
        found = self._parts.get(kind)
        if found is None:
            found = self._parts.setdefault(kind, kind())
        return found  # type: ignore[no-any-return]

    def script_raised(self, traceback: str) -> None:
        """The script ends with an exception that nobody caught; the job ends with it."""
        self._raised = True
        self.engine.report(Raised(self.rank, traceback, final=True))

    def lost(self, rank: int, why: str) -> None:
        """The launcher of an elastic job says that a rank was lost. From any thread; rank 0 tells the others."""
        if self.server is not None:
            self.server.receive(Lost(rank, why))
        elif rank == 0:
            self.control.give_up(why)

    # --- a notebook's cells ---------------------------------------------------------------------------

    def cell_begins(self, numbers: CellNumbers | None = None) -> None:
        """A cell begins. After a failed cell the ranks' name counters may differ, so all are reset to 0.

        The notebook has counted the failures, for all ranks. Without a notebook each counts what it knows of: one
        that begins before it has heard of the last failure numbers tensors apart from the rest.
        """
        numbered = numbers is not None and numbers.numbered
        counted = numbers.failures if numbers is not None else None
        self.engine.report(Began(self.rank, numbered, counted or 0))
        if numbers is not None and numbered:
            self.cells_sent(numbers)  # not before: until now it is late
        self._counted = counted or 0
        failures = self.engine.failures if counted is None else counted
        if self.failures != failures:
            self.names.restart(failures)
            self._failed_here, self._cell_raised = self.engine.failed_here, False
        elif counted is not None:
            self.names.refused = self.engine.failed_here != self._failed_here

    def drifted(self) -> bool:
        """May this rank have numbered other tensors than the rest, since numbering began?"""
        return (
            self._cell_raised
            or self.engine.failed_here != self._failed_here
            or any(Names.counted(name) for name in self.engine.names())
        )

    def cells_sent(self, numbers: CellNumbers) -> None:
        """Tell rank 0 how far this rank has come, and what the notebook has sent. From any thread."""
        if (news := (numbers.number, numbers.version)) != self._cells:
            self._cells = news
            sent, idle = tuple(numbers.sent.items()), tuple(numbers.idle)
            self.engine.report(Sent(self.rank, numbers.engine, *news, sent, idle))

    def cell_ends(self) -> None:
        """A cell has ended: nothing comes from this rank, unless a thread that the cell began goes on."""
        if not self.waits.others():
            self.engine.report(Ended(self.rank))

    def cell_raised(self, traceback: str) -> None:
        """A cell raised; what it has left in flight ends now, so the next cell finds every name free."""
        self._cell_raised, before, until = True, self.engine.given_up, time.monotonic() + _SETTLE_S
        self.engine.report(Raised(self.rank, traceback, final=False, failures=self._counted))
        while (self.engine.given_up == before or not self.engine.settled()) and time.monotonic() < until:
            time.sleep(0.002)  # until rank 0 has said that it knows of this one: another rank's failure may come first

    def state(self) -> dict[str, Any]:
        """What this rank is at, for the notebook; on another thread, while a cell runs. See :func:`rank_state`."""
        moving = rank_state(self.engine, self.waits, self.sets, self.timeline.recorder)
        return {"rank": self.rank, "size": self.world.size, **moving}

    def finish_all(self) -> None:
        """Let the frameworks come to the end of what they run by themselves, before the job is left."""
        for end in tuple(self.unfinished):
            try:
                end()
            except Exception:  # noqa: BLE001 - whoever began it has been told, or is told by the framework
                continue

    def leave(self, timeout_s: float) -> bool:
        """Leave the job; True if all ranks left together."""
        begun, timeout_s = time.monotonic(), min(timeout_s, _AFTER_ERROR_S) if self._raised else timeout_s
        try:
            together = self.engine.leave(timeout_s, partial(self._leaves_alone, WaitNotice("shutdown()")))
        except BaseException:  # Ctrl-C: go without the others, or the job would go on in threads that nobody knows of
            self.engine.leave(0.0)
            self.bootstrap.broken()
            self._close(together=False)
            raise
        # The engine has not waited: it had ended by itself.
        ended_before = time.monotonic() < begun + timeout_s and not self._leaves_alone()
        if not together and (ended_before or self._raised):
            self.bootstrap.broken()  # nobody waits at the end of the process for ranks that may never come
        self._close(together)
        return together

    def _leaves_alone(self, notice: WaitNotice | None = None) -> bool:
        """Is a rank idle, so that it does not leave, too? Called amid a wait, it gives notice of who runs what."""
        if notice is not None:
            notice.look(self.engines)
        return not self.engines.isdisjoint(idle())

    def _close(self, together: bool) -> None:
        if self.settings.report and os.getpid() == self.pid:
            report.write(self, together, self.settings.report)
        self.timeline.close()
        if self.server is not None:
            self.server.release(together)


class _Current(threading.local):
    """A thread's own context (a rank of a threads world)."""

    context: Context | None = None


class Holder:
    """Where the current context is kept: the thread's own if it has one, else the process's."""

    def __init__(self) -> None:
        self._process: Context | None = None
        self._thread = _Current()
        self._forked = False
        os.register_at_fork(after_in_child=self._note_fork)

    def set(self, context: Context | None, thread_only: bool = False) -> None:
        if thread_only:
            self._thread.context = context
        else:
            self._process = context

    def own(self) -> Context | None:
        """The context that is this thread's alone, in a threads world; else None."""
        return self._thread.context

    @contextlib.contextmanager
    def as_rank(self, context: Context | None) -> Iterator[None]:
        """Within the block this thread acts for the rank of this context, of :meth:`own`; None changes nothing."""
        if context is None:
            yield
            return
        before, self._thread.context = self._thread.context, context
        try:
            yield
        finally:
            self._thread.context = before

    def find(self) -> Context | None:
        """The current context, or None."""
        return self._thread.context or self._process

    def get(self) -> Context:
        """The current context.

        Raises:
            NotInitializedError: ``init()`` was not called, or ``shutdown()`` was.
            PeerLostError: this process was forked from a rank; it is not one itself.
        """
        context = self.find()
        if context is not None and (not self._forked or context.pid == os.getpid()):
            return context
        if above := self.above():
            raise (NotInitializedError if context is None else PeerLostError)(
                f"{above} Call collectives in the main process only."
            )
        raise NotInitializedError("The workbench has not been initialized; call init() first, on every rank.")

    def _note_fork(self) -> None:
        self._forked = True

    def above(self) -> str:
        """That a rank has started this process by fork or multiprocessing, as a sentence; "" if none has."""
        context, here = self.find(), config.rank_here()
        if context is not None and context.pid != os.getpid():
            how, rank = "forked from", context.world.rank
        elif context is None and here and _started_by(here[0]):
            how, rank = "started by", here[1]
        else:
            return ""
        return f"This process was {how} rank {rank} and is not a rank itself (a DataLoader worker?)."


def _started_by(pid: int) -> bool:
    """Has this process's multiprocessing started this one? A spawned process imports the script before it knows."""
    parent = multiprocessing.parent_process()
    return parent.pid == pid if parent else hasattr(multiprocessing.current_process(), "_inheriting")


HOLDER = Holder()
