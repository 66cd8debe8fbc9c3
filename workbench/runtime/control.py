"""A rank's end of the control plane: events to rank 0, responses back, signs of life.

Rank 0 runs a :class:`~workbench.runtime.server.ControlServer`; every rank, rank 0 too, has a :class:`ControlClient`
in its engine, with a line to it (``lines.py``). Event-driven; nobody polls on a fixed cycle.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Sequence

from workbench.errors import CollectiveError, DeadlineError, PeerLostError
from workbench.runtime.agreement import rank_list
from workbench.runtime.lines import Line
from workbench.runtime.liveness import host_id
from workbench.runtime.messages import Announce, Beat, Event, Kind, Message, Outgoing, Request, Stack, Values
from workbench.runtime.stall import main_stack


class ControlClient:
    """A rank's end of the control plane. Only the engine's thread uses it, except for :meth:`wake`.

    Args:
        rank: this rank.
        line: to rank 0.
        heartbeat_s: see :class:`workbench.config.Settings`.
    """

    def __init__(self, rank: int, line: Line, heartbeat_s: float) -> None:
        self.rank, self._line, self._heartbeat_s = rank, line, heartbeat_s
        self._newest = 0
        self.seen = 0  # number of the last message that was handed out
        self._beat_at = 0.0
        self._inbox: list[Message] = []
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._woken = False  # there is a byte on its way already
        self._poller = select.poll()
        self._poller.register(self._wake_read, select.POLLIN)
        line.open(self._poller, self.wake)

    def send(self, event: Event) -> None:
        """Send one event to rank 0; never blocks."""
        self._line.say(event)
        self._beat_at = time.monotonic() + self._heartbeat_s

    def announce(self, items: Sequence[Request | int], values: Values | None = None) -> None:
        """Announce tensors.

        Args:
            items: requests, or the cache ids of requests.
            values: of small ones, by index.
        """
        self.send(Announce(self.rank, tuple(items), self.seen, values or {}))

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
        messages, self._inbox = self._inbox, []
        self.seen = self._newest
        return messages

    def pump(self) -> None:
        """Take what is there without waiting, and show a sign of life if one is due. Also called amid a long wait."""
        self._wait(0.0)

    def hopeless(self) -> CollectiveError | None:
        """The error that ended the job, by rank 0's word or its death: a reason to break off every wait."""
        for items, *_ in self._inbox:
            for item in items:
                if not isinstance(item, int) and item[0].kind is Kind.SHUTDOWN:
                    return item[0].exception()
        why = self._line.lost()
        return PeerLostError(f"Rank 0 was lost: {why}. Start the job again.") if why else None

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
            PeerLostError: rank 0 has ended.
        """
        self.send(Beat(self.rank, host_id(), os.getpid()))
        deadline = time.monotonic() + timeout_s
        while not self._newest:
            self._wait(min(0.2, timeout_s))
            if not self._newest and (error := self.hopeless()):
                raise error
            if not self._newest and time.monotonic() > deadline:
                who = f"{rank_list(missing())} did not come" if missing and missing() else "rank 0 did not answer"
                raise DeadlineError(
                    f"init(): {who} within {timeout_s:g} s. Is init() called on every rank, and is rank 0's port "
                    "reachable from all hosts?"
                )
        self.seen = self._newest
        self._inbox.clear()

    def close(self) -> None:
        """Give sockets back; what was sent still arrives."""
        self._line.close()
        self._wake_read.close()
        self._wake_write.close()

    def _wait(self, timeout_s: float) -> None:
        """Wait for anything, and take it."""
        now = time.monotonic()
        due = now >= self._beat_at
        if due:
            self.send(Beat(self.rank, seen=self.seen))
        for end, _ in self._poller.poll(max(0.0, min(timeout_s, self._beat_at - now)) * 1000):
            if end == self._wake_read.fileno():
                self._wake_read.recv(4096)
                self._woken = False  # before the caller looks what there is to do
        for number, message in self._line.take():
            self._newest = number
            if any(map(_asks, message[0])):  # answered here, so also amid a long wait, where it is wanted most
                self.send(Stack(self.rank, main_stack()))
            self._inbox.append(message)
        if due:
            self._line.look(time.monotonic())


def _asks(item: Outgoing) -> bool:
    return not isinstance(item, int) and item[0].kind is Kind.STACKS
