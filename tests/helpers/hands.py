"""For the tests of the control plane: a real server, real ranks, and ranks and strangers that are played by hand."""

from __future__ import annotations

import os
import select
import socket
import sys
import threading
import time
from dataclasses import dataclass, field

import pytest

from workbench.common.secret.seal import Seal
from workbench.core.messages import Announce, Decision, Event, Kind, Request, Response
from workbench.machine import host_id
from workbench.runtime.control.addresses import connect
from workbench.runtime.control.channel import LocalChannel, SocketChannel
from workbench.runtime.control.client import ControlClient
from workbench.runtime.control.codec import decode_decision, encode_event
from workbench.runtime.control.connection import Connection
from workbench.runtime.control.server import ControlServer
from workbench.runtime.events import Beat

SECRET = b"the secret of this very job ...."
HEARTBEAT_S = 0.05
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Linux's own sockets")


def ask(name: str) -> Request:
    """A request that needs nothing."""
    return Request(name, Kind.BARRIER)


def framed(message: bytes) -> bytes:
    """A message as it goes over a connection, made without the code that is tested."""
    return len(message).to_bytes(4, "big") + message


def cut_off(sock: socket.socket, timeout_s: float = 10.0) -> bool:
    """Does the other end close this connection in time?"""
    sock.settimeout(timeout_s)
    try:
        while sock.recv(1 << 16):
            pass
    except TimeoutError:
        return False
    except OSError:  # closed with something unread
        pass
    return True


class ByHand:
    """A rank without a ControlClient: says what it is told to, sealed or not.

    Args:
        job: whose server it talks to.
        rank: who it says it is.
        secret: the job's own, or another.
    """

    def __init__(self, job: Job, rank: int, secret: bytes = SECRET) -> None:
        self.rank, self.up, self.down, self.number = rank, Seal(secret, b"up"), Seal(secret, b"down"), 0
        self.connection = Connection(job.visit(), 1 << 30)
        self.greeted = False
        self.inbox: list[Decision] = []

    def say(self, body: bytes) -> None:
        """Send a message, sealed where it has to be."""
        self.number += 1
        bare = self.greeted and self.connection.private
        self.greeted = True
        self.connection.send(body if bare else self.up.close(self.rank, self.number, body))
        poller = select.poll()
        poller.register(self.connection, select.POLLOUT)
        while self.connection.backlog:
            assert poller.poll(10_000), "the server does not read"
            self.connection.flush()

    def send(self, event: Event) -> None:
        """Send an event."""
        self.say(encode_event(event))

    def receive(self, timeout_s: float) -> list[Decision]:
        """What rank 0 says next, if it says something in time; its signs of life are nothing."""
        poller = select.poll()
        poller.register(self.connection, select.POLLIN)
        until = time.monotonic() + timeout_s
        messages: list[Decision] = []
        while not messages and poller.poll(max(0.0, until - time.monotonic()) * 1000) and not self.connection.closed:
            for data in filter(None, self.connection.receive()):
                body = data if self.connection.private else self.down.body(data)
                assert body
                messages.append(decode_decision(body))
        return messages


@dataclass
class Job:
    """A real server, and what was connected to it.

    Args:
        near: rank 0's own client calls the server; else it is connected to it, as the others are.
    """

    server: ControlServer
    near: bool = True
    ranks: list[ControlClient | ByHand] = field(default_factory=list)
    strangers: list[socket.socket] = field(default_factory=list)

    def visit(self) -> socket.socket:
        """A plain connection to the server."""
        plain = connect(self.server.address, 5.0)
        self.strangers.append(plain)
        return plain

    def client(self, rank: int) -> ControlClient:
        """A rank's own end."""
        if rank == 0 and self.near:
            return ControlClient(rank, LocalChannel(self.server), HEARTBEAT_S)
        channel = SocketChannel(rank, connect(self.server.address, 5.0), SECRET)
        return ControlClient(rank, channel, HEARTBEAT_S)

    def join(self, by_hand: int = 0) -> None:
        """All ranks introduce themselves; the last ``by_hand`` of them are made by hand."""
        n = len(self.server.missing())
        clients = [self.client(rank) for rank in range(n - by_hand)]
        hands = [ByHand(self, rank) for rank in range(n - by_hand, n)]
        threads = [threading.Thread(target=client.introduce, args=(20.0,)) for client in clients]
        for thread in threads:
            thread.start()
        for hand in hands:
            hand.send(Beat(hand.rank, host_id(), os.getpid()))
        for thread in threads:
            thread.join()
        self.ranks += [*clients, *hands]
        assert self.server.missing() == []

    def answered(self, rank: int, name: str, timeout_s: float = 10.0) -> bool:
        """Does an answer to ``name`` come to a rank?"""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline and self.server.is_alive():
            for decision in self.ranks[rank].receive(0.05):
                if any(isinstance(item, Response) and item.name == name for item in decision.items):
                    return True
        return False

    def works(self, name: str) -> bool:
        """Do all ranks get an answer to a name that all announce?"""
        for rank, client in enumerate(self.ranks):
            client.send(Announce(rank, (ask(name),)))
        return all(self.answered(rank, name) for rank in range(len(self.ranks)))

    def close(self) -> None:
        """End everything."""
        self.server.stop.set()
        for rank in self.ranks:
            if isinstance(rank, ControlClient):
                rank.close()
        for stranger in self.strangers:
            stranger.close()
        self.server.join(10)
        assert not self.server.is_alive()
