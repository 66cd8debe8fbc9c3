"""The control plane: events to rank 0, responses back, signs of life. Event-driven; nobody polls on a fixed cycle.

Rank 0 runs a :class:`ControlServer` (a thread around the pure coordinator); every rank, rank 0 too, has a
:class:`ControlClient` in its engine. ZeroMQ carries the messages: ``inproc`` inside rank 0, TCP otherwise.

Every message is sealed with the job's secret (see ``seal.py``); what strangers send is dropped unread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

import zmq

from workbench.errors import CollectiveError, DeadlineError, PeerLostError
from workbench.runtime.agreement import rank_list
from workbench.runtime.coordinator import Coordinator
from workbench.runtime.liveness import LifeWatch, host_id
from workbench.runtime.messages import (
    Announce,
    Beat,
    Event,
    Kind,
    Left,
    Outgoing,
    Request,
    Response,
    Stack,
    Values,
    decode_event,
    decode_responses,
    encode_event,
    encode_responses,
)
from workbench.runtime.seal import Seal
from workbench.runtime.stall import Inquiry, main_stack
from workbench.runtime.timeline import Timeline

log = logging.getLogger("workbench")

Message = tuple[list[Outgoing], list[int], Values]
"""What one message of rank 0 says: what to do, in order, which cache ids are void, and results that came with it."""

_LOOK_EVERY_S = 0.05  # whether a rank that is missed can still come
# A lone tensor's answer comes within this time; to sleep and be woken would double it.
_SPIN_S = 0.0005
_give_way: Callable[[], None] = getattr(os, "sched_yield", lambda: time.sleep(0))
_ANSWER_S = 1.0  # for a rank to say where it stands
_MOST = 1000  # messages taken before the ranks get an answer
_LARGEST = 4 << 20  # bytes of a message to rank 0; a stranger cannot make us hold more


class ControlServer(threading.Thread):
    """Rank 0's thread: receives events, asks the coordinator, tells everybody.

    Args:
        coordinator: the state machine; only this thread touches it.
        secret: the job's secret.
        interface: address to listen on; empty if all ranks share a host, and Linux: then over its own sockets, which
            take half as long as TCP's.
        heartbeat_s, peer_timeout_s: see :class:`workbench.config.Settings`.
        timeline: is told who announces what, and when all have.

    Attributes:
        address: for the other ranks.
        port: the one that was found, if there is an interface.
        inproc: the address for rank 0 itself.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        secret: bytes,
        interface: str = "127.0.0.1",
        heartbeat_s: float = 1.0,
        peer_timeout_s: float = 30.0,
        timeline: Timeline | None = None,
    ) -> None:
        super().__init__(name="workbench-coordinator", daemon=True)
        self._coordinator, self._heartbeat_s = coordinator, heartbeat_s
        self._watch = LifeWatch(peer_timeout_s)
        self._timeline = timeline or Timeline()
        self._up, self._down = Seal(secret, b"up"), Seal(secret, b"down")
        self._peers: dict[int, bytes] = {}  # rank → ZeroMQ's name of its connection
        self._last: dict[int, int] = {}  # rank → number of its last message
        self._number = 0
        self._orphan = False
        self._inquiry: Inquiry | None = None
        self.stop = threading.Event()
        self.context = zmq.Context()
        self._socket = _quiet(self.context.socket(zmq.ROUTER))
        self._socket.setsockopt(zmq.MAXMSGSIZE, _LARGEST)
        self.inproc = f"inproc://workbench-{id(self)}"
        self._socket.bind(self.inproc)
        self.port = self._socket.bind_to_random_port(f"tcp://{interface}") if interface else 0
        self.address = f"tcp://{interface}:{self.port}" if interface else f"ipc://@workbench-{secrets.token_hex(8)}"
        if not interface:
            self._socket.bind(self.address)

    def run(self) -> None:
        """Until all ranks have left: wait for events, take all that are there, answer once."""
        beat_at, look_at = time.monotonic() + self._heartbeat_s, 0.0
        while not self.stop.is_set():
            now = time.monotonic()
            hurry = self._inquiry is not None or self._coordinator.undecided(now)
            pause = _LOOK_EVERY_S if hurry else max(0.0, beat_at - now)
            self._socket.poll(int(pause * 1000) + 1)
            now = time.monotonic()
            self._coordinator.number = self._number + 1
            out = self._take_all(now)
            if now >= look_at:
                look_at = now + _LOOK_EVERY_S
                if self._coordinator.undecided(now):  # who seems idle may be dead
                    out += self._lose(now)
                out += self._coordinator.expire(now)
            if now >= beat_at:
                beat_at = now + self._heartbeat_s
                out += self._lose(now)
                report, failed = self._coordinator.stalled(now)
                out += failed
                if report:
                    self._inquiry = Inquiry(report, now + _ANSWER_S, self._coordinator.size)
                    out.append((Response("", Kind.STACKS), -1))
            if self._inquiry is not None and self._inquiry.due(now):
                log.warning("%s", self._inquiry.text())
                self._inquiry = None
            if out:
                self._tell(out)
            if self._coordinator.over:
                break
        self._socket.close(linger=1000)
        if self._orphan:
            self.context.term()

    def release(self, together: bool) -> None:
        """Rank 0 has left, and its own end is closed. Where not all have, the others may still ask.

        Then the thread goes on by itself, until the last of them has left.
        """
        self._orphan = True
        if together:
            self.stop.set()
        self.join(5.0 if together else 0.1)
        if not self.is_alive():
            self.context.term()

    def _lose(self, now: float) -> list[Outgoing]:
        return [out for lost in self._watch.lost(now) for out in self._coordinator.take(lost, now)]

    def missing(self) -> list[int]:
        """Ranks that have not shown up yet."""
        return [rank for rank in range(self._coordinator.size) if rank not in self._peers]

    def _take_all(self, now: float) -> list[Outgoing]:
        out: list[Outgoing] = []
        for _ in range(_MOST):  # then answer: strangers that never stop must not keep the ranks waiting
            if not _readable(self._socket):
                break
            event = self._receive()
            if event is not None:
                out += self._obey(event, now)
        return out

    def _obey(self, event: Event, now: float) -> list[Outgoing]:
        if isinstance(event, Beat) and event.pid:
            self._watch.meet(event, now)
            if not self.missing():
                self._tell([])  # the empty message: all are here, init() may return
                self._coordinator.number = self._number + 1
        self._watch.heard(event.rank, now)
        if isinstance(event, Stack):
            if self._inquiry is not None:
                self._inquiry.answer(event.rank, event.text)
            return []
        if isinstance(event, Left):
            self._watch.forget(event.rank)
        try:
            if isinstance(event, Announce) and self._timeline.on:
                for kind, name in self._coordinator.named(event):
                    self._timeline.announced(event.rank, name, kind)
            out = self._coordinator.take(event, now)
            if out:
                self._timeline.completed(event.rank, self._coordinator.responses(out))
            return out
        except Exception:  # a wish that makes no sense must not end the thread that all ranks depend on
            log.exception("rank %d asked for something impossible: %.200r", event.rank, event)
            return []

    def _receive(self) -> Event | None:
        """The next event, or None if this was not a message of the job."""
        frames = self._socket.recv_multipart()
        opened = self._up.open(frames[1]) if len(frames) == 2 else None
        if opened is None:
            log.debug("dropped a message that does not carry the job's secret")
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
        self._last[rank] = number
        self._peers[rank] = frames[0]
        return event

    def _tell(self, items: list[Outgoing]) -> None:
        """The same bytes to every rank."""
        self._number += 1
        if self._timeline.on:
            for item in items:
                self._timeline.responded(self._coordinator.name_of(item))
        results = self._coordinator.take_results(items)
        body = encode_responses(self._number, items, self._coordinator.cache.take_evicted(self._number), results)
        message = self._down.close(0, self._number, body)
        for peer in self._peers.values():
            self._socket.send_multipart([peer, message], copy=False)


class ControlClient:
    """A rank's end of the control plane. Only the engine's thread uses it, except for :meth:`wake`."""

    def __init__(
        self,
        rank: int,
        address: str,
        secret: bytes,
        heartbeat_s: float,
        context: zmq.Context[zmq.Socket[bytes]],
        peer_timeout_s: float = 30.0,
    ) -> None:
        self.rank, self._heartbeat_s = rank, heartbeat_s
        self._up, self._down = Seal(secret, b"up"), Seal(secret, b"down")
        self._number = self._newest = 0
        self.seen = 0  # number of the last message that was handed out
        self._spin_until = 0.0
        self._beat_at = 0.0
        self._inbox: deque[tuple[int, Message]] = deque()
        self._socket = _quiet(context.socket(zmq.DEALER))
        # Rank 0 does not come back; but without any reconnection ZeroMQ would drop its last words as well.
        self._socket.setsockopt(zmq.RECONNECT_IVL, 5000)
        self._socket.setsockopt(zmq.HEARTBEAT_IVL, int(heartbeat_s * 1000))
        self._socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, int(peer_timeout_s * 1000))
        # ZeroMQ tells when the connection to rank 0 ends: by its death at once, by its silence after the timeout.
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._socket.connect(address)
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._woken = False  # there is a byte on its way already
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._poller.register(self._wake_read.fileno(), zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)

    def send(self, event: Event) -> None:
        """Queue one event for rank 0; never blocks."""
        self._send(encode_event(event))

    def _send(self, body: bytes) -> None:
        self._number += 1
        # Without a peer, as when rank 0's thread has ended, send() would block: then there is nobody to tell.
        with contextlib.suppress(zmq.Again):
            self._socket.send(self._up.close(self.rank, self._number, body), zmq.NOBLOCK)
        self._beat_at = time.monotonic() + self._heartbeat_s

    def announce(self, items: Sequence[Request | int], values: Values | None = None, urgent: bool = False) -> None:
        """Announce tensors, in as many messages as rank 0's limit on their size asks for.

        Args:
            values: of small ones, by index.
            urgent: somebody waits for the answer, so look out for it for a moment instead of sleeping.
        """
        self._spin_until = time.monotonic() + _SPIN_S if urgent else 0.0
        body = encode_event(Announce(self.rank, tuple(items), self.seen, values or {}))
        if len(body) > _LARGEST // 2 and len(items) > 1:
            self.announce(items[: len(items) // 2])  # without values, all of them take the long way
            self.announce(items[len(items) // 2 :])
        else:
            self._send(body)

    def wake(self) -> None:
        """End :meth:`receive` early; from any thread."""
        if self._woken:
            return
        self._woken = True
        with contextlib.suppress(OSError):  # full of wake-ups already, or closed
            self._wake_write.send(b"!")

    def receive(self, timeout_s: float) -> list[Message]:
        """Wait for responses, a wake-up or ``timeout_s``; return the messages that came, in order."""
        if not self._inbox:
            self._wait(timeout_s)
        self.pump()
        messages = [message for _, message in self._inbox]
        self.seen = self._inbox[-1][0] if self._inbox else self.seen
        self._inbox.clear()
        return messages

    def pump(self) -> None:
        """Take what is there without waiting, and show a sign of life if one is due. Also called amid a long wait."""
        while _readable(self._socket):
            opened = self._down.open(self._socket.recv())
            if opened is not None and opened[1] > self._newest:
                self._newest, items, evicted, results = decode_responses(opened[2])
                if any(map(_asks, items)):  # answered here, so also amid a long wait, where it is wanted most
                    self.send(Stack(self.rank, main_stack()))
                self._inbox.append((self._newest, (items, evicted, results)))
        if time.monotonic() >= self._beat_at:
            self.send(Beat(self.rank))

    def hopeless(self) -> CollectiveError | None:
        """The error that ended the job, by rank 0's word or its death: a reason to break off every wait."""
        gone = _readable(self._monitor)
        if gone:
            self.pump()  # its last words may lie in the socket
        for _, (items, *_) in self._inbox:
            for item in items:
                if not isinstance(item, int) and item[0].kind is Kind.SHUTDOWN:
                    return item[0].exception()
        if gone:
            return PeerLostError("Rank 0 was lost: its connection ended without a word. Start the job again.")
        return None

    def verdict(self) -> CollectiveError | None:
        """As :meth:`hopeless`, where the data plane broke: a moment later rank 0 may know that another rank is dead."""
        deadline = time.monotonic() + 2 * self._heartbeat_s
        while (error := self.hopeless()) is None and time.monotonic() < deadline:
            time.sleep(0.02)
            self.pump()
        return error

    def introduce(self, timeout_s: float, missing: Callable[[], list[int]] | None = None) -> None:
        """Say hello and wait until all ranks have.

        Raises:
            DeadlineError: not all came in time; on rank 0 the text names them.
        """
        self.send(Beat(self.rank, host_id(), os.getpid()))
        deadline = time.monotonic() + timeout_s
        while not self._newest:
            self._wait(min(0.2, timeout_s))
            self.pump()
            if not self._newest and time.monotonic() > deadline:
                who = f"{rank_list(missing())} did not come" if missing and missing() else "rank 0 did not answer"
                raise DeadlineError(
                    f"init(): {who} within {timeout_s:g} s. Is init() called on every rank, and is rank 0's port "
                    "reachable from all hosts?"
                )
        self.seen = self._newest
        self._inbox.clear()

    def close(self) -> None:
        """Give sockets and pipe back."""
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=1000)
        self._wake_read.close()
        self._wake_write.close()

    def _wait(self, timeout_s: float) -> None:
        while timeout_s > 0 and time.monotonic() < self._spin_until and not self._woken:
            if _readable(self._socket):
                self._spin_until = 0.0
                return
            _give_way()
        timeout_s = min(timeout_s, max(0.0, self._beat_at - time.monotonic()))
        ready = self._poller.poll(int(timeout_s * 1000) + (timeout_s > 0))
        if any(end == self._wake_read.fileno() for end, _ in ready):
            self._wake_read.recv(4096)
            self._woken = False  # before the caller looks what there is to do


def _asks(item: Outgoing) -> bool:
    return not isinstance(item, int) and item[0].kind is Kind.STACKS


def _readable(sock: zmq.Socket[bytes]) -> bool:
    """As ``sock.poll(0)``, in a third of the time."""
    return bool(int(sock.get(zmq.EVENTS)) & zmq.POLLIN)


def _quiet(sock: zmq.Socket[bytes]) -> zmq.Socket[bytes]:
    """No message is dropped for want of room on the way out, none keeps the process alive."""
    sock.setsockopt(zmq.SNDHWM, 0)
    sock.setsockopt(zmq.LINGER, 0)
    return sock
