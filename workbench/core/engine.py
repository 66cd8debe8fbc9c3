"""The engine: one thread per rank, and the whole data flow on one screen.

::

    submit() ──► pending ──► announce ──► rank 0's coordinator
                                               │ decisions, the same bytes on every rank
    handles ◄── execute ◄── plan (fusion) ◄── read

The steps, and why they come in this order:

1. *Announce* what was submitted, and wait: a rank that enters the data plane alone would wait there.
2. *Receive* what rank 0 has decided. Only rank 0 decides the order, because ranks submit in different orders.
3. *Plan* what is sent in one buffer. The plan depends only on the decision, so it is the same on every rank.
4. *Execute* batch by batch, on one thread: two collectives at once could receive each other's messages.
5. *Free the name, then finish the handle*: the waiting thread may submit the same name immediately.
6. *Check* last whether the job has ended: everything that was decided before its end is then done.

One thread at a time does this work, and uses the backend after ``init()``. It is the engine's own thread, which sleeps
until a tensor is submitted or a decision comes; with ``runtime/steady/caller_runs.py`` a thread that waits for a result
may do it.
"""

from __future__ import annotations

import threading
import time
import traceback
from collections.abc import Callable
from functools import partial

from workbench.common.waiting import OwnThread, Waits
from workbench.config import Settings
from workbench.core.backend.memory import RESULTS
from workbench.core.backend.process_sets import SetTable
from workbench.core.execute import execute
from workbench.core.fusion import Batch, plan
from workbench.core.handle import Handle
from workbench.core.messages import Broke, Decision, Done, Event, Kind, Left
from workbench.core.pending import Entry, PendingTable
from workbench.core.protocols import Alone, Announcer, AtOnce, Batching, Control, Observer, PlainAnnouncer
from workbench.errors import CollectiveError, ShutDownError

_LOOK_S = 0.1
_MOST_PLANS = 256


def anybody(entries: list[Entry]) -> None:
    """Let every submission pass: the default of :attr:`Engine.gate`."""


def nobody(decision: int, sets: frozenset[int], submitted: int) -> None:
    """The default of :attr:`Engine.heard`."""


class Engine(threading.Thread):
    """The runtime of one rank.

    Args:
        control: this rank's end of the control plane.
        sets: the backend of each process set.
        settings: the same on every rank.
        announcer: makes announcements of entries, and responses of decisions; an acceleration (``runtime/steady/``).
        batching: decides what is announced together; an acceleration, too.
        observer: gets notice of what happens (``runtime/trace/``).
        runner: which thread does the engine's work, and how it is woken.

    Attributes:
        gate: called by each thread that submits, before anything is accepted; it may raise.
        heard: called by each thread to which an error of a collective is raised, before that: with the number of the
            decision that has ended it, the process sets in which that decision ends something with an error, which both
            are the same on every rank, and when the collective was submitted.
        observer: may be replaced by one that also notifies the old one.
        failures: how many collectives and cells have failed, the same on every rank.
        failed_here: how many of this rank's own tensors have ended with an error.
        given_up: how many of this rank's notebook cells have raised, as far as rank 0 has told all ranks.
        waits: the threads that wait.
        settled: is nothing in flight?
        names: of what is in flight.
        alone: shortens the way of a lone tensor; an acceleration. None: it goes the way of all.
        begin: called first on the engine's thread, where callbacks run.
        left: set when the engine has ended, for any reason.
        tuned: number and ``bucket_bytes`` of autotune's latest choice. Each handle gets it when it is finished: at the
            same place in the order of all collectives on every rank, wherever the ranks' own threads are by then.
    """

    def __init__(
        self,
        control: Control,
        sets: SetTable,
        settings: Settings,
        announcer: Announcer | None = None,
        batching: Batching | None = None,
        observer: Observer | None = None,
        runner: OwnThread | None = None,
    ) -> None:
        super().__init__(name="workbench-engine", daemon=True)
        self.sets = sets
        self.settings = settings
        self.gate: Callable[[list[Entry]], None] = anybody
        self.heard: Callable[[int, frozenset[int], int], None] = nobody
        self.observer = observer or Observer()
        self.failures = 0
        self.failed_here = 0
        self.given_up = 0
        self.waits = Waits()
        self.alone: Alone | None = None
        self.begin: Callable[[], None] = lambda: None
        self.left = threading.Event()
        self.tuned: tuple[int, int] | None = None
        self._control = control
        self._announcer = announcer or PlainAnnouncer(control.rank)
        self._batching = batching or AtOnce()
        self._pending = PendingTable()
        self.settled = self._pending.idle
        self.names = self._pending.names
        self.submitted = self._pending.submitted
        self._running = True
        self._clean = False  # has the job ended well?
        self._plans: dict[tuple[object, ...], list[Batch]] = {}
        self._runner = runner or OwnThread(control.wake)
        self._runner.engine = self

    # --- any thread ---------------------------------------------------------------------------------

    def submit(self, entries: list[Entry], at_once: bool = False) -> None:
        """Submit tensors, all or none; their handles finish later.

        Args:
            entries: see :meth:`PendingTable.add`.
            at_once: announce them now, and not together with the next tensors.
        """
        self.gate(entries)
        self.waits.submits(self.ident)
        for entry in entries:  # before the table has them: from then on the engine's thread may finish the handles
            entry.handle.owner, entry.handle.request = self._runner, entry.request
        self._pending.add(entries)
        if at_once:
            self._batching.flush_now = True
            self._runner.will_wait()
        elif not self._batching.open:
            self._runner.wake()

    def in_flight(self, entries: list[Entry]) -> list[Handle]:
        """The handles of what has been submitted under the names of these, and is not done."""
        return self._pending.handles(entries)

    def flush(self) -> bool:
        """Announce without delay what has not been announced; False if there is nothing."""
        self._batching.flush_now |= bool(self._batching.held or self._pending.new)
        return self._batching.flush_now

    def report(self, event: Event) -> None:
        self._pending.report(event)
        self._runner.wake()

    def leave(self, timeout_s: float, in_vain: Callable[[], bool] = lambda: False) -> bool:
        """Leave the job, with the others if they come within ``timeout_s``; True if they did.

        Args:
            timeout_s: how long to wait for the others.
            in_vain: is there a rank that cannot come, so waiting is useless? Called during the wait.
        """
        self.report(Left(self._control.rank))
        until = time.monotonic() + timeout_s
        while not (together := self.left.wait(max(0.0, min(_LOOK_S, until - time.monotonic())))):
            if time.monotonic() >= until or in_vain():
                break
        self._running = False
        self._runner.wake()
        return self.left.wait(5.0) and together and self._clean

    # --- this thread --------------------------------------------------------------------------------

    def run(self) -> None:
        """Announce new tensors and execute decisions, until the job ends."""
        self.begin()
        try:
            while self._running:
                self._runner.go_on()
        except BaseException as error:  # noqa: BLE001 - it reaches every handle, here and on the other ranks
            self._end(self._reason(error))
        finally:
            # Handles first: whoever waits on this rank learns why. Then what the other ranks wait for. The planes last.
            self._end(ShutDownError("This rank has left the job; call init() to begin a new one."))
            self._send_events()
            self._control.send(Left(self._control.rank, clean=self._clean))
            self.sets.close(self._clean)
            self._control.close()
            RESULTS.release()
            self.left.set()

    def _reason(self, error: BaseException) -> CollectiveError:
        """Why the job ends: the ranks are not at the same place in the data plane any more, so nothing can be right.

        1. A rank whose stream has ended may have left because of a third one. Rank 0 knows who is dead, a moment later,
           and until then this rank closes nothing: the others would take it for the lost one.
        2. If nobody is dead, all others are told what happened here.
        """
        if self._running and (verdict := self._control.verdict()):
            return verdict
        if not isinstance(error, CollectiveError):
            trace = "".join(traceback.format_exception(error)).rstrip()
            error = CollectiveError(
                f"The data plane broke on rank {self._control.rank}: {error!r}. The traceback:\n{trace}"
            )
        if self._running:
            self._control.send(Broke(self._control.rank, str(error)))
        return error

    def one_round(self, longest_s: float, spin_s: float | None) -> None:
        """Announce new tensors, wait for messages for at most ``longest_s``, execute the decisions."""
        if spin_s and self.alone and self._one_alone(self.alone, spin_s):
            return
        for decision in self._control.receive(min(self._announce(), longest_s), spin_s):
            self._obey(decision)
        self.waits.look(time.monotonic())
        self._check()

    def _one_alone(self, alone: Alone, spin_s: float) -> bool:
        """The same for a lone tensor: is it done?"""
        entry = self._pending.alone()
        if entry is None or self._batching.held or not (known := alone.announce(entry, self._control.seen)):
            return False
        new = self._pending.drain()
        self.observer.announces([entry])
        self._batching.flush_now = False
        if new[1:]:  # has come meanwhile
            self._batching.add(new[1:], time.monotonic())
        agreed, results = alone.result(known, entry, spin_s)
        if agreed:
            backend = self.sets.backend(0, "cpu")
            assert backend  # of all ranks
            with self.observer.batch([known.response], [entry]):
                results = results or execute([known.response], [entry], backend, self.observer)  # if it is large
                self._pending.remove([entry])
            entry.deliver(results[0])
        return agreed

    def tick(self) -> None:
        """Called by a backend during a long wait: send heartbeats, and stop the wait when the job has ended.

        Raises:
            CollectiveError: a rank was lost, or this one left, so the message that the backend waits for will not come.
        """
        if not self._batching.held:
            self._send_events()
        self._control.pump()
        self._check()
        if not self._running:
            raise ShutDownError("This rank has left the job during a collective.")

    def _check(self, error: CollectiveError | None = None) -> None:
        error = error or (self._control.fatal_error() if self._running else None)
        if error := error or self.sets.watch(self._tell):
            raise error

    def _tell(self, why: str) -> None:
        """A GPU has broken here: the others hear of it."""
        self._running = False
        self.report(Broke(self._control.rank, f"The data plane broke on rank {self._control.rank}: {why}"))

    def _announce(self) -> float:
        """Send new announcements, or hold them back a moment; return how long to sleep."""
        self._batching.open = False  # before draining: who submits from here on wakes us
        if self._batching.add(self._pending.drain(), time.monotonic()):
            return self._batching.window_s
        for item in self._batching.take():
            if isinstance(item, list):
                self.observer.announces(item)
                self._control.send(self._announcer.announce(item, self._control.seen))
                self.observer.sent()
            else:
                self._control.send(item)
        return self.settings.heartbeat_s

    def _obey(self, decision: Decision) -> None:
        self.observer.cycle()
        failed, batches = self._plan(decision)
        for batch in batches:
            self._execute(batch, decision.number, failed)
            if batch[0].priority and self._control.rank == 0:
                self._control.send(Done(0))  # the next of those that may be overtaken may begin

    def _plan(self, decision: Decision) -> tuple[frozenset[int], list[Batch]]:
        """The process sets in which something fails, and the batches: of a step that came before, those of then."""
        ids, threshold_bytes = tuple(decision.items), self.settings.fusion_threshold_bytes
        again = not (decision.results or decision.evicted) and all(type(each) is int for each in ids)
        if again and (known := self._plans.get((threshold_bytes, ids))):
            return frozenset(), known
        responses = self._announcer.read(decision)
        batches = plan(responses, threshold_bytes)
        if again and len(responses) == len(ids):  # an id means the same thing for ever
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            self._plans[threshold_bytes, ids] = batches
        return frozenset(one.process_set for one in responses if one.error), batches

    def _execute(self, batch: Batch, decision: int, failed: frozenset[int]) -> None:
        first, error = batch[0], batch[0].exception()
        self.failures += error is not None or first.kind is Kind.RENUMBER
        self.given_up += first.kind is Kind.RENUMBER and first.root == self._control.rank
        if first.kind is Kind.SHUTDOWN:
            self._running, self._clean = False, error is None
            return self._check(error)
        backend = self.sets.backend(first.process_set, first.device)
        if first.kind is Kind.RENUMBER or not (backend or error):
            return  # about names alone; or of a process set without this rank
        entries = self._pending.parts(self._control.rank, batch)
        with self.observer.batch(batch, entries):
            results = execute(batch, entries, backend, self.observer) if backend and not error else [None] * len(batch)
        if first.kind is Kind.ADD_SET and not error:
            self.sets.add(first.root, first.rows)
        elif first.kind is Kind.REMOVE_SET and not error:
            self.sets.remove(first.root)
        own = [(entry, result) for entry, result in zip(entries, results, strict=True) if entry is not None]
        self._pending.remove([entry for entry, _ in own])
        self.failed_here += len(own) if error is not None else 0  # before whoever waits learns of it
        if self.tuned:  # who has joined would not hear of it
            for response, entry in zip(batch, entries, strict=True):
                if entry is not None and not response.joined:
                    entry.handle.tuned = self.tuned
        for entry, result in own:
            if error is not None:
                entry.handle.raises = partial(self.heard, decision, failed, entry.submitted)
            entry.deliver(result, error)

    def _end(self, error: CollectiveError) -> None:
        """Every handle in flight gets ``error``, and so does everything submitted from now on."""
        self.sets.give_up(error, self._clean)
        for entry in self._pending.close(error):
            entry.handle.finish(error=error)

    def _send_events(self) -> None:
        for event in self._pending.drain_events():
            self._control.send(event)
