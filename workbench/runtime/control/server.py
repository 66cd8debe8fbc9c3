"""Rank 0's end of the control plane: events come in, the coordinator decides, the same bytes go to all ranks.

Event-driven: the thread sleeps until a message comes or something is due. Messages are sealed with the job's secret;
between processes of one user on one machine only the first one is (``channel.py``). Other peers are cut off. On rank 0
this thread and the engine's both ask the coordinator, one at a time, under a lock.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from workbench import config
from workbench.common.ports import listen, peer
from workbench.common.secret.seal import Seal
from workbench.core.messages import Announce, Decision, Event, Kind, Left, Response
from workbench.machine import make_room, ran_out
from workbench.runtime.control.codec import decode_event, encode_decision
from workbench.runtime.control.connection import Connection
from workbench.runtime.control.liveness import RankLiveness
from workbench.runtime.events import Beat, Stack
from workbench.runtime.faults.stall import Inquiry
from workbench.runtime.faults.supervision import SupervisingCoordinator
from workbench.runtime.trace.timeline import Timeline

log = logging.getLogger("workbench")

LARGEST = 4 << 20
"""Bytes of a message from a rank to rank 0; the limit for a peer that has not shown the secret is lower."""
MOST_UNREAD = 256 << 20
"""Bytes that are kept for a rank that reads nothing."""
_LARGEST_OF_STRANGERS = 64 << 10
_MOST_STRANGERS = 256  # at a time, besides one per rank
_PATIENCE_S = 10.0  # with strangers that say nothing
_LOOK_EVERY_S = 0.05  # whether a rank that is missed can still come
_ANSWER_S = 1.0  # for a rank to say where it stands


class ControlServer(threading.Thread):
    """Rank 0's thread: receives events, asks the coordinator, tells everybody.

    Args:
        coordinator: the state machine; touched under a lock, for rank 0's engine calls it itself.
        secret: the job's secret.
        interface: address to listen on; empty if all ranks share a host, and Linux: then over its own sockets, which
            no network reaches.
        heartbeat_s, peer_timeout_s: see :class:`workbench.config.Settings`.
        timeline: is told who announces what, and when all have.

    Attributes:
        address: for the other ranks: (host, port), or the name of a socket of this machine.
        own: rank 0's own receiver; called with every decision, on the thread that caused it.
    """

    def __init__(
        self,
        coordinator: SupervisingCoordinator,
        secret: bytes,
        interface: str = "127.0.0.1",
        heartbeat_s: float = 1.0,
        peer_timeout_s: float = 30.0,
        timeline: Timeline | None = None,
    ) -> None:
        super().__init__(name="workbench-coordinator", daemon=True)
        make_room(coordinator.size + 16, f"Rank 0 of {coordinator.size} ranks needs")
        self._coordinator, self._heartbeat_s = coordinator, heartbeat_s
        self._watch = RankLiveness(peer_timeout_s)
        self._timeline = timeline or Timeline()
        self._up, self._down = Seal(secret, b"up"), Seal(secret, b"down")
        self._ranks: dict[int, Connection] = {}
        self._strangers: dict[Connection, float] = {}  # have not shown the secret yet, since when
        self._believed: dict[Connection, int] = {}  # private ones that have shown it → rank
        self._last: dict[int, int] = {}  # rank → number of its last sealed message
        self._introduced: set[int] = set()  # ranks that wait for the others at the end of init(), or are beyond it
        self._ended = False
        # For all of this state: rank 0's engine, and whoever reports a lost rank, change it on threads of their own.
        self._lock = threading.RLock()
        self.own: Callable[[Decision], None] = lambda decision: None
        self._inquiry: Inquiry | None = None
        self._polls = False  # looks often, for something is undecided
        self._ran_out = False  # of open files, and has said so
        self.stop = threading.Event()
        self._beat_at = self._look_at = 0.0
        self._here_at = time.monotonic()
        self._listening = _listen(interface)
        name = self._listening.getsockname()
        self.address: tuple[str, int] | str = name.decode() if isinstance(name, bytes) else name
        if isinstance(name, tuple):
            self.address = name[:2]  # IPv6 has two numbers more
        self._selector: Any = selectors.DefaultSelector()  # epoll or kqueue, which are files as well
        self._selector.register(self._listening, selectors.EVENT_READ)
        self._nudge_read, self._nudge_write = socket.socketpair()
        for end in (self._listening, self._nudge_read, self._nudge_write):
            end.setblocking(False)
        self._selector.register(self._nudge_read, selectors.EVENT_READ)

    @property
    def port(self) -> int:
        """The port that it listens on; 0 if none."""
        return 0 if isinstance(self.address, str) else self.address[1]

    def run(self) -> None:
        """Until all ranks have left: wait for events, take all that are there, answer once."""
        np.seterr(over="ignore", invalid="ignore")  # of this thread, which reduces eager values: an inf is a result
        try:
            while self._goes_on():
                self._step()
        finally:
            with self._lock:
                self._ended = True
            self._close()

    def _goes_on(self) -> bool:
        return not (self.stop.is_set() or self._coordinator.over)

    def _step(self) -> None:
        # Without the lock, or rank 0's own events would wait for those of others. So what was decided before this wait
        # may be out of date after it; receive() ends the wait where that matters.
        now = time.monotonic()
        with self._lock:
            self._polls = self._inquiry is not None or self._urgent(now)
        ready = self._selector.select(_LOOK_EVERY_S if self._polls else max(0.0, self._beat_at - now))
        with self._lock:
            now = time.monotonic()
            self._watch.slept(now - self._here_at - self._heartbeat_s, now)
            self._here_at = now
            out = self._take_all(ready, now)
            try:
                out += self._look(now)
            except Exception as error:  # as in _obey()
                log.exception("Rank 0 failed while it looked for what is late.")
                out += self._coordinator.broke(f"{error!r} while it looked for what is late.")
            if self._inquiry is not None and self._inquiry.due(now):
                log.warning("%s", self._inquiry.text(self._watch.stopped()))
                self._inquiry = None
            self._broadcast(out)

    def _look(self, now: float) -> Decision:
        """What is to be done at its time."""
        out = Decision()
        if now >= self._look_at:
            self._look_at = now + _LOOK_EVERY_S
            if self._urgent(now):  # who seems idle may be dead
                out += self._lose(now)
            out += self._coordinator.expire(now)
        if now >= self._beat_at:
            self._beat_at = now + self._heartbeat_s
            out += self._beat(now)
        return out

    def sockets(self) -> list[socket.socket]:
        return [connection.socket for connection in list(self._ranks.values())]

    def receive(self, event: Event) -> None:
        """Rank 0's own events; from its engine's thread."""
        with self._lock:
            if self._ended:
                return
            now = time.monotonic()
            self._broadcast(self._obey(event, now))
            if self._coordinator.over or self._urgent(now) > self._polls:
                self._polls = True
                self._nudge()

    def _nudge(self) -> None:
        with contextlib.suppress(OSError):  # it has ended
            self._nudge_write.send(b"!")

    def _urgent(self, now: float) -> bool:
        return self._watch.has_suspects or self._coordinator.undecided(now)

    def _beat(self, now: float) -> Decision:
        """What is due from time to time."""
        for connection in list(self._ranks.values()):
            self._send(connection, b"")  # a sign of life
        for stranger in [one for one, since in self._strangers.items() if now - since > _PATIENCE_S]:
            self._drop(stranger, now)
        out = self._lose(now)
        report, failed = self._coordinator.stalled(now)
        if report and self._inquiry is None:  # else the ranks still answer an earlier one
            self._inquiry = Inquiry(report, now + _ANSWER_S, self._coordinator.size)
            failed += self._coordinator.decide([Response("", Kind.STACKS)])
            if log.isEnabledFor(logging.DEBUG):
                for name in self._coordinator.waiting():
                    log.debug("%s", self._coordinator.story(name))
        return out + failed

    def release(self, together: bool) -> None:
        """Rank 0 has left the job, and its own end is closed.

        If not all ranks left ``together``, the thread goes on serving the others until the last has left.
        """
        if together:
            self.stop.set()
            self._nudge()
        self.join(5.0 if together else 0.1)

    def _lose(self, now: float) -> Decision:
        return sum((self._coordinator.take(lost, now) for lost in self._watch.lost(now)), Decision())

    def name_hosts(self, names: Sequence[str]) -> None:
        """By rank: what a rank's host is called where one is lost."""
        self._watch.hosts = names

    def missing(self) -> list[int]:
        """Ranks that have not shown up yet."""
        return [rank for rank in range(self._coordinator.size) if rank not in self._introduced]

    def _take_all(self, ready: list[tuple[selectors.SelectorKey, int]], now: float) -> Decision:
        """Handle the input that is there. Each connection is read once, so no peer can keep the ranks waiting."""
        out = Decision()
        for key, _ in ready:
            if key.fileobj is self._listening:
                self._accept(now)
                continue
            if key.fileobj is self._nudge_read:
                with contextlib.suppress(OSError):
                    self._nudge_read.recv(4096)
                continue
            connection: Connection = key.data
            if connection.fileno() < 0:
                continue  # dropped a moment ago
            for message in connection.receive():
                event = self._open(connection, message)
                if event is not None:
                    out += self._obey(event, now)
            if connection.fileno() < 0:
                continue  # dropped by now, for it does not read
            if connection.backlog:
                connection.flush()
                self._await_room(connection)
            if connection.closed:
                self._drop(connection, now)
        return out

    def _obey(self, event: Event, now: float) -> Decision:
        if isinstance(event, Beat) and event.pid:
            self._introduced.add(event.rank)
            self._watch.register(event, now)
            if not self.missing():
                self._send_all(self._coordinator.decide([]))  # an empty one: all are here, init() may return
        self._watch.sign_of_life(event.rank, now)
        if isinstance(event, Stack):
            if self._inquiry is not None:
                self._inquiry.answer(event.rank, event.text)
            return Decision()
        if isinstance(event, Left) and not event.clean:  # else its engine works for the others still
            self._watch.forget(event.rank)
        try:
            if isinstance(event, Announce) and self._timeline.on:
                self._timeline.announced(event.rank, self._coordinator.requests(event))
            out = self._coordinator.take(event, now)
            if out:
                self._timeline.completed(event.rank, out)
            return out
        except Exception as error:  # it must not end the thread that all ranks depend on, and nobody may wait in vain
            log.exception("Rank 0 failed at what rank %d sent: %.200r", event.rank, event)
            return self._coordinator.broke(f"{error!r} at what rank {event.rank} sent.")

    def _open(self, connection: Connection, message: bytes) -> Event | None:
        """The event in a message, or None if it is none of this job."""
        if connection in self._believed:
            rank, body = self._believed[connection], message
        else:
            opened = self._up.open(message)
            if opened is None:
                log.debug("dropped a message that is not signed with the job's secret")
                connection.closed |= connection in self._strangers
                return None
            rank, number, body = opened
            if rank >= self._coordinator.size or number <= self._last.get(rank, 0):
                return None
        try:
            event = decode_event(body)
        except ValueError:
            log.warning("dropped a message of rank %d: %r", rank, body[:80])
            return None
        if event.rank != rank:
            return None
        if connection not in self._believed:
            self._last[rank] = number
            self._recognize(connection, rank)
        return event

    def _recognize(self, connection: Connection, rank: int) -> None:
        before = self._ranks.get(rank)
        self._strangers.pop(connection, None)
        connection.largest = LARGEST
        self._ranks[rank] = connection
        if connection.private:
            self._believed[connection] = rank
        if before not in (None, connection):
            self._drop(before, 0.0)

    def _broadcast(self, decision: Decision) -> None:
        """The same to every rank, if there is something to do."""
        if decision:
            if self._timeline.on:
                self._timeline.responded(decision)
            self._send_all(decision)

    def _send_all(self, decision: Decision) -> None:
        if self._ranks:
            body = encode_decision(decision)
            sealed = b""
            for connection in list(self._ranks.values()):
                if not connection.private:
                    sealed = sealed or self._down.close(0, decision.number, body)
                self._send(connection, body if connection.private else sealed)
        self.own(decision)

    # --- connections --------------------------------------------------------------------------------

    def _accept(self, now: float) -> None:
        try:
            visitor, _ = self._listening.accept()
        except OSError as error:  # gone again, or no file descriptors left: then strangers' must be given back first
            if not self._ran_out and (why := ran_out(error)):
                self._ran_out = True
                log.warning("Rank 0 cannot accept connections of ranks: %s", why)
            time.sleep(0.001)
            return
        if peer(visitor)[1] not in (-1, os.getuid()):  # another user of this machine can be none of this job's ranks
            visitor.close()
            return
        if len(self._strangers) >= _MOST_STRANGERS + self._coordinator.size:
            self._drop(next(iter(self._strangers)), now)  # the oldest; a rank shows the secret at once
        connection = Connection(visitor, _LARGEST_OF_STRANGERS)
        self._strangers[connection] = now
        self._selector.register(connection, selectors.EVENT_READ, connection)

    def _drop(self, connection: Connection, now: float) -> None:
        """Close a connection. If a rank used it and has not left the job, the rank may be dead: it is checked."""
        self._strangers.pop(connection, None)
        self._believed.pop(connection, None)
        for rank in [rank for rank, one in self._ranks.items() if one is connection]:
            del self._ranks[rank]
            self._watch.cut_off(rank, now)
        self._selector.unregister(connection)
        connection.closed = True
        connection.socket.close()

    def _send(self, connection: Connection, message: bytes) -> None:
        if connection.backlog > MOST_UNREAD:
            why = f"it does not read: {connection.backlog >> 20} MiB of rank 0's messages wait for it"
            for rank in [rank for rank, one in self._ranks.items() if one is connection]:
                self._watch.give_up(rank, why)
            return self._drop(connection, time.monotonic())
        connection.send(message)
        if connection.backlog:
            self._await_room(connection)

    def _await_room(self, connection: Connection) -> None:
        writes = selectors.EVENT_WRITE if connection.backlog else 0
        self._selector.modify(connection, selectors.EVENT_READ | writes, connection)

    def _close(self) -> None:
        """Wait, a second at most, until the ranks close: closing with unread input may lose our last message."""
        self._selector.unregister(self._listening)
        self._selector.unregister(self._nudge_read)
        for end in (self._listening, self._nudge_read, self._nudge_write):
            end.close()
        for stranger in list(self._strangers):
            self._drop(stranger, 0.0)
        for connection in self._ranks.values():
            connection.finish()
        until = time.monotonic() + 1.0
        while self._ranks and (left := until - time.monotonic()) > 0:
            for key, _ in self._selector.select(left):
                key.data.receive()
                if key.data.closed:
                    self._drop(key.data, 0.0)
        for connection in list(self._ranks.values()):
            self._drop(connection, 0.0)
        self._selector.close()


def _listen(interface: str) -> socket.socket:
    if interface:
        return listen(interface, config.ports())
    listening = socket.socket(socket.AF_UNIX)
    with contextlib.ExitStack() as undo:
        undo.callback(listening.close)
        listening.bind(f"\0workbench-{secrets.token_hex(8)}")  # a name of Linux's own: there is no file
        listening.listen(1024)
        undo.pop_all()
    return listening
