"""The engine: one thread per rank, and the whole data flow on one screen.

::

    submit() ──► pending ──► announce ──► rank 0's coordinator
                                               │ responses, the same bytes on every rank
    handles ◄── execute ◄── plan (fusion) ◄── obey

Only this thread touches the backend after ``init()``. It sleeps until something is submitted or a response comes.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial

from workbench.backends.base import Backend
from workbench.config import Settings
from workbench.errors import CollectiveError, ShutDownError
from workbench.runtime.cache import RankCache
from workbench.runtime.control import ControlClient
from workbench.runtime.execute import execute
from workbench.runtime.fusion import Batch, plan
from workbench.runtime.messages import Event, Kind, Left, Message, Raised
from workbench.runtime.pending import Entry, PendingTable
from workbench.runtime.process_sets import SetTable
from workbench.runtime.riding import values_of
from workbench.runtime.timeline import Timeline
from workbench.runtime.waits import Waits
from workbench.runtime.window import Window


class Engine(threading.Thread):
    """The runtime of one rank.

    Args:
        control: this rank's end of the control plane.
        backend: moves the bytes between all ranks.
        settings: the same on every rank.
        timeline: is told what is executed.

    Attributes:
        left: set when the engine has ended, in whatever way.
        failures, waits: how many collectives have failed, the same on every rank; who waits on this one.
        begin: called first on the engine's thread, where callbacks run.
    """

    def __init__(
        self, control: ControlClient, backend: Backend, settings: Settings, timeline: Timeline | None = None
    ) -> None:
        super().__init__(name="workbench-engine", daemon=True)
        self._control, self._settings, self._timeline = control, settings, timeline or Timeline()
        self.sets = SetTable(control.rank, backend)
        self._pending, self._cache = PendingTable(), RankCache()
        self._window = Window(settings.fusion_window_s)  # drained, not announced yet
        self._outbox, self.failures = deque[Event](), 0
        self.waits = Waits(control.rank, self.report)
        self._running, self._clean = True, False
        self.left = threading.Event()
        self.begin: Callable[[], None] = lambda: None

    # --- any thread ---------------------------------------------------------------------------------

    def submit(self, entries: list[Entry], at_once: bool = False) -> None:
        """Hand tensors over; their handles finish later.

        Args:
            entries: all of them are taken, or none.
            at_once: nothing follows that they should travel together with.

        Raises:
            DuplicateNameError: a name is in flight already.
            CollectiveError: this rank's part in the job has ended.
        """
        self.waits.submits(self.ident)
        for entry in entries:
            entry.handle.owner = self.ident
            entry.handle.awaited = self._hurry_up
            entry.handle.blocked = partial(self.waits.blocked, entry.request.process_set, entry.request.name)
        self._pending.add(entries)
        if at_once:
            self._hurry_up()
        elif not self._window.open:
            self._control.wake()

    def _hurry_up(self) -> None:
        if self._window.held or self._pending.new():
            self._window.hurry = True
            self._control.wake()

    def report(self, event: Event) -> None:
        """Tell the coordinator something about this rank."""
        self._outbox.append(event)
        self._control.wake()

    def leave(self, timeout_s: float) -> bool:
        """Leave the job, with the others if they come within ``timeout_s``; True if they did."""
        self.report(Left(self._control.rank))
        together = self.left.wait(timeout_s)
        self._running = False
        self._control.wake()
        self.left.wait(5.0)
        return together and self._clean

    def settled(self) -> bool:
        """Is nothing in flight on this rank?"""
        return self._pending.idle()

    # --- this thread --------------------------------------------------------------------------------

    def run(self) -> None:
        """Announce what is new, do what the responses say, until the job ends."""
        self.begin()
        try:
            while self._running:
                for message in self._control.receive(self._announce()):
                    self._obey(message)
                self._check()
        except CollectiveError as error:
            self._end(error)
        except BaseException as error:  # noqa: BLE001 - it reaches every handle, here and on the other ranks
            # The ranks are no longer at the same place in the data plane: nothing after this can be right.
            self._outbox.append(Raised(self._control.rank, traceback.format_exc()))
            broke = CollectiveError(f"The data plane broke on rank {self._control.rank}: {error!r}.")
            self._end(self._control.verdict() or broke)
        finally:
            self._end(ShutDownError("This rank has left the job; call init() to begin a new one."))
            self._outbox.append(Left(self._control.rank, clean=self._clean))
            self._tell()
            self.sets.close(self._clean)
            self._control.close()
            self.left.set()

    def tick(self) -> None:
        """Called by a backend amid a long wait: stay alive for the others, and break off when the job has ended.

        Raises:
            CollectiveError: a rank was lost, or this one left, so what the backend waits for will not come.
        """
        if not (self._window.held or self._pending.new()):
            self._tell()
        self._control.pump()
        self._check()
        if not self._running:
            raise ShutDownError("This rank has left the job amid a collective.")

    def _check(self, error: CollectiveError | None = None) -> None:
        if error := error or (self._control.hopeless() if self._running else None) or self.sets.watch(self.report):
            raise error

    def _announce(self) -> float:
        """Send what is new, or hold it back a moment; return how long to sleep."""
        self._window.open = False  # before draining: who submits from here on wakes us
        events = len(self._outbox)  # before draining, too: what was submitted before an event is announced before it
        if self._window.add(self._pending.drain(), time.monotonic()) and not events:
            return self._window.window_s
        entries = self._window.take()
        if entries:
            self._timeline.announces(entries)
            values = values_of(entries, self._control.rank, self._settings.riding_bytes)
            self._control.announce([self._cache.shorten(entry.request) for entry in entries], values)
        self._tell(events)
        return self._settings.heartbeat_s

    def _obey(self, message: Message) -> None:
        """Do what one message from rank 0 says."""
        self._timeline.cycle()
        for batch in plan(self._cache.read(*message, self._pending.find), self._settings.fusion_threshold_bytes):
            self._execute(batch)

    def _execute(self, batch: Batch) -> None:
        first, error = batch[0], batch[0].exception()
        self.failures += error is not None
        if first.kind is Kind.SHUTDOWN:
            self._running, self._clean = False, error is None
            return self._check(error)
        if (backend := self.sets.backend(first.process_set, first.device)) is None:
            return  # of a process set without this rank
        entries = [self._pending.find(response.process_set, response.name) for response in batch]
        with self._timeline.batch(batch, entries):
            results = [None] * len(batch) if error else execute(batch, entries, backend, self._timeline)
        self.sets.apply(first)
        for entry, result in zip(entries, results, strict=True):
            if entry is not None:
                self._pending.remove(entry)  # before the handle is done: then the name is free again
                entry.deliver(result, error)

    def _end(self, error: CollectiveError) -> None:
        """Every handle in flight gets ``error``, and so does everything submitted from now on."""
        self.sets.give_up(error, self._clean)
        for entry in self._pending.close(error):
            entry.handle.finish(error=error)

    def _tell(self, most: int | None = None) -> None:
        for _ in range(len(self._outbox) if most is None else most):
            self._control.send(self._outbox.popleft())
