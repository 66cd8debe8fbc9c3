"""The one piece of module state: what ``init()`` set up in this process, or in this thread of a threads world."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from workbench.common.cell_numbers import CellNumbers, Notice, idle
from workbench.config import Settings
from workbench.core.backend.process_sets import SetTable
from workbench.core.engine import Engine
from workbench.core.messages import Raised
from workbench.errors import NotInitializedError, PeerLostError
from workbench.runtime.control.client import ControlClient
from workbench.runtime.control.server import ControlServer
from workbench.runtime.events import Began, Ended, Lost, Sent
from workbench.runtime.faults.blocked_threads import BlockedThreads
from workbench.runtime.steady.tuner import Tuner
from workbench.runtime.trace.timeline import Timeline
from workbench.transport.gpu import select as gpu_select
from workbench.transport.select import Bootstrap

T = TypeVar("T")

_SETTLE_S = 0.3
_MOST_REQUESTS = 10_000
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


@dataclass
class Context:
    """A running job, seen from one rank."""

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
    pid: int = field(default_factory=os.getpid)
    tuner: Tuner | None = None  # rank 0's
    requests: dict[Any, Any] = field(default_factory=dict)  # made before, by what they were made of
    waiters: set[int] = field(default_factory=set)  # threads that will wait at once for what they submit
    unfinished: set[Callable[[], Any]] = field(default_factory=set)  # wait for what a framework has only begun
    passes: Callable[[str], None] = lambda state: None  # is told that the rank passes a state, see faults/chaos
    absent_sets: list[Any] = field(default_factory=list)  # process sets for which this epoch has not the ranks
    engines: frozenset[int] = frozenset()  # a notebook's, which are the ranks; see CellNumbers
    _numbers: Counter[tuple[str, int]] = field(default_factory=Counter)
    came: dict[tuple[str, int], dict[tuple[int, ...], tuple[int, int]]] = field(
        default_factory=dict
    )  # see requests.OrderOfUse
    divided: int = 0  # the number of the model that was last divided among ranks, see torch/sharded/consistency.py
    broadcasts: int = 0  # of parameters, which are equal on all ranks after it; see training/step_count.py
    _raised: bool = False
    _cells: tuple[int, int] = (0, 0)  # what rank 0 knows: number and version, see CellNumbers
    failures: int = 0  # how many collectives and cells had failed when this cell began; the numbers began at 0 then

    @property
    def rank(self) -> int:
        """This rank."""
        return self.world.rank

    def remember(self, known: Any, request: Any) -> None:
        """Have a request, or those of a group, at hand for the next step; steps are alike."""
        if len(self.requests) >= _MOST_REQUESTS:
            self.requests.clear()
        self.requests[known] = request

    def auto_name(self, kind: str, process_set: int = 0) -> str:
        """A name for a tensor that the caller did not name; the same on every rank if all submit in one order."""
        since = f"{self.failures}." if self.failures else ""
        self._numbers[kind, process_set] += 1
        return f"{kind}.noname.{since}{self._numbers[kind, process_set] - 1}"

    def give_back_name(self, kind: str, process_set: int = 0) -> None:
        """The last automatic name was not used, for the call was refused; the other ranks have not used it either."""
        self._numbers[kind, process_set] -= 1

    def restart_names(self) -> None:
        """Number unnamed tensors, and objects in use, from 0 again; all ranks do it at the same point."""
        self._numbers.clear()
        self.came = {}

    def script_raised(self, traceback: str) -> None:
        """The script ends with an exception that nobody caught; the job ends with it."""
        self._raised = True
        self.engine.report(Raised(self.rank, traceback, final=True))

    def lost(self, rank: int, why: str) -> None:
        """The launcher of an elastic job says that a rank was lost. From any thread; rank 0 tells the others."""
        if self.server is not None:
            self.server.hear(Lost(rank, why))
        elif rank == 0:
            self.control.give_up(why)

    # --- a notebook's cells ---------------------------------------------------------------------------

    def cell_begins(self, numbers: CellNumbers | None = None) -> None:
        """A cell begins. After a failed cell the ranks' name counters may differ, so all are reset to 0."""
        numbered = numbers is not None and numbers.numbered
        self.engine.report(Began(self.rank, numbered))
        if numbers is not None and numbered:
            self.cells_sent(numbers)  # not before: until now it is late
        if self.failures != self.engine.failures:
            self.failures = self.engine.failures
            self.restart_names()

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
        before, until = self.engine.failures, time.monotonic() + _SETTLE_S
        self.engine.report(Raised(self.rank, traceback, final=False))
        while (self.engine.failures == before or not self.engine.settled()) and time.monotonic() < until:
            time.sleep(0.002)  # until rank 0 has said that it knows, or the next cell would begin with old numbers

    def finish_all(self) -> None:
        """Let the frameworks come to the end of what they run by themselves, before the job is left."""
        for wait in self.unfinished:
            try:
                wait()
            except Exception:  # noqa: BLE001 - whoever began it has been told, or is told by the framework
                continue

    def leave(self, timeout_s: float) -> bool:
        """Leave the job; True if all ranks left together."""
        begun, timeout_s = time.monotonic(), min(timeout_s, _AFTER_ERROR_S) if self._raised else timeout_s
        try:
            together = self.engine.leave(timeout_s, partial(self._leaves_alone, Notice("shutdown()")))
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

    def _leaves_alone(self, notice: Notice | None = None) -> bool:
        """Is a rank idle, so that it does not leave, too? Called amid a wait, it gives notice of who runs what."""
        if notice is not None:
            notice.look(self.engines)
        return not self.engines.isdisjoint(idle())

    def _close(self, together: bool) -> None:
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

    def set(self, context: Context | None, thread_only: bool = False) -> None:
        """Make ``context`` the current one."""
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
        if context is None:
            raise NotInitializedError("The workbench has not been initialized; call init() first, on every rank.")
        if context.pid != os.getpid():
            raise PeerLostError(
                f"This process was forked from rank {context.world.rank} and is not a rank itself (a DataLoader "
                "worker?). Call collectives in the main process only."
            )
        return context


HOLDER = Holder()


__all__ = ["HOLDER", "Context", "World", "place"]
