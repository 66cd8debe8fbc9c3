"""The membership of an elastic job whose workers are engines: held by a thread of the notebook's kernel."""

from __future__ import annotations

import contextlib
import math
import os
import selectors
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from signal import SIGKILL

from workbench.common.messages import Message
from workbench.launch.elastic.membership import Membership, Out
from workbench.launch.elastic.workers import Silence
from workbench.launch.forks.find import behind
from workbench.launch.ranks.ending import how_it_ended
from workbench.launch.ranks.process_tree import ProcessTree
from workbench.launch.ranks.worker_registry import CUT, WorkerRegistry

_LOOK_S = 0.05  # between two looks at the engines' processes
_DYING_S = 0.002  # the same, after an engine's connection was cut
_REASON_S = 5.0  # between two looks at why nothing goes on
_HAND_OVER_S = 20.0  # for an engine that leaves to write what it has to


@dataclass(frozen=True)
class MembershipChange:
    """An epoch has begun, or an engine is gone.

    Args:
        when_ns: since 1970.
        text: what has happened, for people.
        engine: which is gone; -1 where an epoch begins.
    """

    when_ns: int
    text: str
    engine: int = -1


class MembershipThread(threading.Thread):
    """See the module.

    Args:
        job: the engines' processes, each under the name :func:`name_of`.
        path: of the socket at which they tell of themselves.
        least: no epoch begins with fewer ranks.
        peer_timeout_s: an engine for which the others wait, and that says nothing for so long, is killed.

    Attributes:
        log: prints a line; called on this thread.
        on_due: called on this thread when the running epoch's ranks have to begin the next one.
        on_hub_gone: called on this thread when the controller has ended.
        changes: what has happened to the job.
        joined: the first epoch of each engine that belonged to any.
    """

    def __init__(self, job: ProcessTree, path: str, least: int, peer_timeout_s: float) -> None:
        super().__init__(name="workbench-elastic", daemon=True)
        self._job, self._registry = job, WorkerRegistry(path)
        self._members = Membership(least, anew=True)
        self.path, self.changes, self.joined = self._registry.path, list[MembershipChange](), dict[int, int]()
        self.log: Callable[[str], None] = lambda line: None
        self.on_due: Callable[[], None] = lambda: None
        self.on_hub_gone: Callable[[], None] = lambda: None
        self._living, self._dismissed = set[int](), dict[int, float]()
        self._lock, self._end = threading.RLock(), threading.Event()
        self._silence = Silence(self._registry, peer_timeout_s, self.kill)
        self._leaving = set[int]()  # at their next commit
        self._changed = False  # who lives, or who wants to join
        self._hub_gone, self._trouble = False, ""
        self._cut_at, self._reason_at = -1.0, time.monotonic() + _REASON_S

    # --- called by the notebook -----------------------------------------------------------------------

    def add(self, worker: int) -> None:
        """An engine is about to be started."""
        with self._lock:
            self._living.add(worker)
            self._members.started(worker, "localhost")

    def forget(self, worker: int) -> None:
        """It could not be started."""
        with self._lock:
            self._living.discard(worker)
            self._send(self._members.gone(worker, "it could not be started"))

    def leave(self, workers: Iterable[int]) -> None:
        """These are to end: where they train, at their next commit; else at once."""
        with self._lock:
            workers = list(workers)
            members = [each for each in workers if self._members.rank_of(each) >= 0]
            self.end(set(workers) - set(members))
            self._leaving.update(members)
            self._send(self._members.leave(members))

    def staying(self) -> list[int]:
        """Those that live and are not to leave."""
        with self._lock:
            return [each for each in self.living() if each not in self._leaving]

    def end(self, workers: Iterable[int]) -> None:
        """End these now, if they live."""
        with self._lock:
            self._dismissed |= dict.fromkeys(self._living.intersection(workers), -math.inf)

    def living(self) -> list[int]:
        """The engines whose process runs, without those that have been sent away."""
        with self._lock:
            return sorted(self._living - set(self._dismissed))

    def ranks(self) -> list[int]:
        """The engines of the running epoch, by rank."""
        with self._lock:
            return [each for each in self._members.ranks if self._members.rank_of(each) >= 0]

    def due(self) -> int:
        """The running epoch, if its ranks have to begin the next one; else 0."""
        with self._lock:
            self._look_for_dead()  # who has died before this call is not waited for
            return self._members.epoch if self._members.due() else 0

    @property
    def epoch(self) -> int:
        """The last one that has begun."""
        return self._members.epoch

    def why_waiting(self) -> str:
        """Why the next epoch has not begun, though engines wait for it."""
        with self._lock:
            return self._members.why_waiting()

    def pid(self, worker: int) -> int:
        return behind(self._job.pid(name_of(worker)))

    def kill(self, worker: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid(worker), SIGKILL)

    def close(self) -> None:
        self._end.set()
        if self.is_alive():
            self.join(5.0)

    # --- this thread ----------------------------------------------------------------------------------

    def run(self) -> None:
        with selectors.DefaultSelector() as waiting:
            waiting.register(self._registry, selectors.EVENT_READ)
            while not self._end.is_set():
                dying = time.monotonic() < self._cut_at + 1.0
                waiting.select(_DYING_S if dying else _LOOK_S)
                try:
                    self._turn()
                except Exception as error:  # noqa: BLE001 - without this thread nobody would hear of a death
                    self._have_trouble(error)
        self._registry.close()

    def _turn(self) -> None:
        with self._lock:
            for worker, message in self._registry.receive():
                with contextlib.suppress(KeyError, TypeError):  # it makes no sense
                    self._receive(worker, message)
            self._look(time.monotonic())
            due, self._changed = self._changed and self._members.due(), False
            hub_gone = not self._hub_gone and "controller" in self._job.codes()
            self._hub_gone |= hub_gone
        if hub_gone and not self._job.stopped():
            self.on_hub_gone()
        if due:
            self.on_due()

    def _have_trouble(self, error: Exception) -> None:
        text = f"workbench: watching the engines failed: {error!r}"
        if text != self._trouble:
            self._trouble = text
            self._notify_people(text)

    def _receive(self, worker: int, message: Message) -> None:
        if message.kind == CUT:  # its process is about to end
            self._cut_at = time.monotonic()
            return
        self._changed |= message.kind in ("come", "withdrawn", "out")
        self._send(self._members.receive(worker, message))

    def _look(self, now: float) -> None:
        """At the processes, and now and then at why ranks wait."""
        if self._job.stopped():
            return
        for worker, since in self._dismissed.items():
            if now > since + _HAND_OVER_S:
                self.kill(worker)
        self._look_for_dead()
        self._silence.look(self._members.awaited(), now)
        if now > self._reason_at:
            self._reason_at = now + _REASON_S
            if self._members.is_blocked() and (why := self._members.why_waiting()):
                for worker in self._living:
                    self._registry.send(worker, Message("waiting", {"why": why}))

    def _look_for_dead(self) -> None:
        if self._end.is_set() or self._job.stopped():
            return
        for name, code in self._job.codes().items():
            kind, _, number = name.partition(" ")
            if kind == "engine" and number:
                self._lose(int(number), code)

    def _lose(self, worker: int, code: int) -> None:
        self._changed = True
        self._job.end(name_of(worker))
        self._living.discard(worker)
        if self._dismissed.pop(worker, None) is not None:
            how, text = "has left", f"engine {worker} has left"
        else:
            how = how_it_ended(code)
            n = len(self.living())
            text = f"engine {worker} is gone: it {how}; {n} {'is' if n == 1 else 'are'} left"
        self._leaving.discard(worker)
        self.changes.append(MembershipChange(time.time_ns(), text, worker))
        self._send(self._members.gone(worker, f"its engine {how}"))
        self._notify_people(text)

    def _notify_people(self, text: str) -> None:
        with contextlib.suppress(Exception):  # such as a closed stdout, which must not end this thread
            self.log(text)

    def _send(self, out: Out) -> None:
        begun = ""
        for worker, message in out:
            self._registry.send(worker, message)
            if message.kind == "epoch":
                self.joined.setdefault(worker, message.fields["epoch"])
                begun = f"epoch {message.fields['epoch']} begins with {message.fields['size']}"
            elif message.kind == "dismissed":
                self._dismissed[worker] = time.monotonic()
        if begun:
            self.changes.append(MembershipChange(time.time_ns(), begun))
        if begun and self._members.lost_all_state:
            self._notify_people("all engines with trained state are lost; the others begin with their own state")


def name_of(worker: int) -> str:
    """The name of an engine's process.

    Example:
        >>> name_of(3)
        'engine 3'
    """
    return f"engine {worker}"
