"""Which of this rank's threads wait, for what, and where: from that rank 0 sees that nobody can go on.

A rank is blocked when each of its threads that submit tensors waits for a tensor, or for a thread that does. That is
reported after :data:`workbench.core.handle.LONG_WAIT_S`, so a short wait costs no message.

A call from a framework's graph runs on a thread of its own, on which the user's code is not to be found:
:func:`called_at` says where the call was written. The thread that runs the graph is in the framework, and waits, too.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from workbench.common.user_line import place_of, stack_of
from workbench.common.waiting import Waits
from workbench.core.handle import LONG_WAIT_S
from workbench.core.messages import Request
from workbench.runtime.events import Blocked
from workbench.runtime.faults.sigint import INTERRUPTS
from workbench.runtime.faults.thread_stacks import held_up

log = logging.getLogger("workbench")


class _GraphCall(threading.local):
    """What this thread does for a graph, if it does."""

    line: str | None = None
    library = ""
    more: Callable[[], bool] = staticmethod(lambda: False)


_CALL = _GraphCall()


@contextmanager
def called_at(line: str, library: str = "", more: Callable[[], bool] = _GraphCall.more) -> Iterator[None]:
    """Within the block this thread acts for a graph of a framework.

    Args:
        line: where the user's code put the call into the graph, see :func:`users_line`.
        library: the framework's folder: a thread whose innermost Python frame is there runs a graph.
        more: may the graph submit other tensors, while this thread waits?
    """
    before = _CALL.line, _CALL.library, _CALL.more
    _CALL.line, _CALL.library, _CALL.more = line, library, more
    try:
        yield
    finally:
        _CALL.line, _CALL.library, _CALL.more = before


class BlockedThreads(Waits):
    """The threads of one rank that submit, and those of them that wait.

    Args:
        rank: this rank.
        report: tells rank 0.
    """

    def __init__(self, rank: int, report: Callable[[Blocked], None]) -> None:
        self._rank, self._report = rank, report
        self._lock = threading.Lock()
        self._submit: dict[int, threading.Thread] = {}
        self._waiting: dict[int, tuple[int, str, str]] = {}
        self._graphs: dict[int, tuple[str, Callable[[], bool]]] = {}  # of waiting threads: the library, more to come?
        self._reported: Blocked | None = None  # rank 0 takes this rank for blocked
        self._look_at = 0.0

    def submits(self, engine: int | None = None) -> None:
        """This thread submits tensors.

        The engine's does not count: its callbacks follow from what others submitted. Nor does a graph's, which ends
        with its call: another thread may have the same number soon.
        """
        thread = threading.current_thread()
        if thread.ident == engine or _CALL.line is not None:
            return
        self._submit[thread.ident or 0] = thread
        if self._waiting:  # another's, or its own: Ctrl-C may have hit it where it could not take its wait back
            with self._lock:
                self._end(thread.ident or 0)

    def others(self) -> bool:
        """Is there another living thread that submits and goes on, so that more may come from this rank?

        One does not go on that waits for a tensor, or for a thread (``thread_stacks.py``) or a graph that does.
        """
        # autograd's threads for a GPU are no Python threads; they submit only while a Python thread runs backward().
        submit = list(self._submit.values())
        alive = {t.ident for t in submit if t.is_alive() and not isinstance(t, threading._DummyThread)}
        resting = {*self._waiting, threading.get_ident()}
        if not alive - resting:
            return False
        if libraries := tuple(library for library, _ in self._graphs.values()):
            frames = sys._current_frames()
            resting |= {t for t, frame in frames.items() if frame.f_code.co_filename.startswith(libraries)}
        return bool(alive - held_up(resting))

    def look(self, now: float) -> None:
        """Is this rank blocked by now, and for good?

        A thread that went on may have ended since, or wait for one that waits; a graph may have come to its end.
        """
        if self._waiting and (self._reported is None or self._reported.more) and now >= self._look_at:
            self._look_at = now + LONG_WAIT_S
            try:
                with self._lock:
                    self._report_blocked()
            except Exception:
                log.exception("It is not known which threads of rank %d wait.", self._rank)

    def now(self) -> list[tuple[int, str, str]]:
        """What the threads of this rank wait for: process set, name, and the line of the user's code."""
        with self._lock:
            return list(self._waiting.values())

    def long_wait(self, request: Request, waiter: threading.Lock, timeout_s: float) -> bool:
        """See :class:`workbench.common.waiting.Waits`. Ctrl-C ends the wait on threads of a graph, too."""
        with self.blocked(request.process_set, request.name):
            return INTERRUPTS.acquire(waiter, timeout_s)

    @contextmanager
    def blocked(self, process_set: int, name: str) -> Iterator[None]:
        """Within the block this thread waits for a tensor."""
        me, wait = threading.get_ident(), (process_set, name, users_line())
        with self._lock:
            self._waiting[me] = wait
            if _CALL.library:
                self._graphs[me] = _CALL.library, _CALL.more
            self._report_blocked()
        try:
            yield
        finally:
            with self._lock:
                self._end(me)
                if _CALL.library:  # this thread has nothing more to do, and others may wait still
                    self._report_blocked()

    def _report_blocked(self) -> None:
        if self._waiting and not self.others():
            more = any(more() for _, more in self._graphs.values())
            event = Blocked(self._rank, tuple(self._waiting.values()), more)
            if event != self._reported:
                self._reported = event
                self._report(event)

    def _end(self, thread: int) -> None:
        self._graphs.pop(thread, None)
        if self._waiting.pop(thread, None) is not None or self._reported:
            self._reported = None
            self._report(Blocked(self._rank, ()))


def users_line() -> str:
    """Where the caller of this package stands: ``in train.py, line 12: hvd.allreduce(x)``."""
    return _CALL.line if _CALL.line is not None else place_of(stack_of(sys._getframe(1)))
