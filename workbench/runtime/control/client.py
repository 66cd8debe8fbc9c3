"""A rank's end of the control plane: events to rank 0, responses back, signs of life.

Rank 0 runs a :class:`~workbench.runtime.control.server.ControlServer`; every rank, rank 0 too, has a
:class:`ControlClient` in its engine, with a channel to it (``channel.py``). It is event-driven.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable

from workbench.common.text import rank_list
from workbench.core.messages import Decision, Event, Kind, Response
from workbench.errors import CollectiveError, DeadlineError, PeerLostError
from workbench.machine import host_id
from workbench.runtime.control.channel import Rank0Channel
from workbench.runtime.events import Beat, Stack
from workbench.runtime.faults.notebook_hooks import after_a_loss
from workbench.runtime.faults.stall import main_stack


class ControlClient:
    """A rank's end of the control plane, see :class:`workbench.core.protocols.Control`.

    Only the engine's thread uses it, except for :meth:`wake`.

    Args:
        rank: this rank.
        channel: to rank 0.
        heartbeat_s: see :class:`workbench.config.Settings`.

    Attributes:
        host: what rank 0's host is called, where this rank is on another; else empty.
    """

    def __init__(self, rank: int, channel: Rank0Channel, heartbeat_s: float) -> None:
        self.rank, self._channel, self._heartbeat_s = rank, channel, heartbeat_s
        self._newest, self.host, self._given_up = 0, "", ""
        self.seen = 0  # number of the last message that was handed out
        self._beat_at, self._here_at = 0.0, float("inf")
        self._inbox: list[Decision] = []
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        self._sent: list[int] = []  # the byte of a wake-up that is on its way already
        self._poller = select.poll()
        self._poller.register(self._wake_read, select.POLLIN)
        channel.open(self._poller, self.wake)

    def send(self, event: Event) -> None:
        self._channel.send(event)
        self._beat_at = time.monotonic() + self._heartbeat_s

    def wake(self) -> None:
        """End :meth:`receive` early; from any thread.

        Ctrl-C may interrupt it anywhere. So the byte is noted after it was sent. It may have been read by then, so each
        wait has a new list.
        """
        sent = self._sent
        if not sent:
            with contextlib.suppress(OSError):  # full of wake-ups already, or closed
                sent.append(self._wake_write.send(b"!"))

    def receive(self, timeout_s: float, spin_s: float | None = None) -> list[Decision]:
        if not self._inbox:
            self._wait(timeout_s, spin_s)
        decisions, self._inbox = self._inbox, []
        self.seen = self._newest
        return decisions

    def pump(self) -> None:
        """Take what is there without waiting, and show a sign of life if one is due. Also called amid a long wait."""
        self._wait(0.0)

    def fatal_error(self) -> CollectiveError | None:
        """The error that ended the job, by rank 0's word or its death: a reason to break off every wait."""
        for decision in self._inbox:
            for item in decision.items:
                if isinstance(item, Response) and item.kind is Kind.SHUTDOWN:
                    return item.exception()
        why = self._given_up or self._channel.lost()
        where = f", on host {self.host}" if self.host else ""
        return PeerLostError(f"Rank 0 was lost: {why}{where}. {after_a_loss()}") if why else None

    def give_up(self, why: str) -> None:
        """The launcher says that rank 0 was lost; from any thread."""
        self._given_up = why
        self.wake()

    def verdict(self) -> CollectiveError | None:
        """As :meth:`fatal_error`, where the data plane broke: a moment later rank 0 may know that another is dead."""
        deadline = time.monotonic() + 2 * self._heartbeat_s
        while (error := self.fatal_error()) is None and time.monotonic() < deadline:
            time.sleep(0.02)
            self.pump()
        return error

    def introduce(
        self, timeout_s: float, missing: Callable[[], list[int]] | None = None, look: Callable[[], None] = lambda: None
    ) -> None:
        """Say hello and wait until all ranks have. ``look`` is called meanwhile; it may raise to end the wait.

        Raises:
            DeadlineError: not all came in time; on rank 0 the text names them.
            PeerLostError: rank 0 has ended.
        """
        self.send(Beat(self.rank, host_id(), os.getpid()))
        deadline = time.monotonic() + timeout_s
        while not self._newest:
            self._wait(min(0.2, timeout_s))
            look()
            if not self._newest and (error := self.fatal_error()):
                raise error
            if not self._newest and time.monotonic() > deadline:
                who = f"{rank_list(missing())} did not come" if missing and missing() else "rank 0 did not answer"
                raise DeadlineError(
                    f"init(): {who} within {timeout_s:g} s. Is init() called on every rank, and is rank 0's port "
                    "reachable from all hosts?"
                )
        self.seen = self._newest
        self._inbox.clear()

    def sockets(self) -> list[socket.socket]:
        """Its connection to rank 0; on rank 0 those of all others."""
        return self._channel.sockets()

    def close(self) -> None:
        self._channel.close()
        self._wake_read.close()
        self._wake_write.close()

    def _wait(self, timeout_s: float, spin_s: float | None = None) -> None:
        """Wait for anything, and take it."""
        now = time.monotonic()
        due = now >= self._beat_at
        if due:
            self.send(Beat(self.rank, seen=self.seen))
        limit_s = max(0.0, min(timeout_s, self._beat_at - now))
        for decision in self._spin(now + min(spin_s or 0.0, limit_s)):
            self._got(decision)
        if not self._inbox or self._sent:
            for end, _ in self._channel.wait(0.0 if self._inbox else limit_s):
                if end == self._wake_read.fileno():
                    self._wake_read.recv(4096)
                    self._sent = []  # before the caller looks what there is to do
            for decision in self._channel.take():
                self._got(decision)
        now = time.monotonic()
        slept_s, self._here_at = now - self._here_at - self._heartbeat_s, now  # that nobody came by here for
        if due or slept_s > self._heartbeat_s:
            self._channel.look(now, slept_s)

    def _spin(self, until: float) -> list[Decision]:
        """Ask what has come; again and again, until a moment or until there is something to tell."""
        channel = self._channel
        while not (decisions := channel.take(channel.spins)) and channel.spins and not self._sent:
            if time.monotonic() >= until:
                break
        return decisions

    def _got(self, decision: Decision) -> None:
        self._newest = decision.number
        if any(map(_asks, decision.items)):  # answered here, so also amid a long wait, where it is wanted most
            self.send(Stack(self.rank, main_stack()))
        self._inbox.append(decision)


def _asks(item: Response | int) -> bool:
    return isinstance(item, Response) and item.kind is Kind.STACKS
