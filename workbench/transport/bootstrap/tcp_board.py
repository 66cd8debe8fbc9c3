"""A board on rank 0's host, for ranks that ``workbench run`` has started on several hosts, or srun: over TCP.

See :class:`workbench.transport.bootstrap.rendezvous.Board`. Only who proves to know the job's secret may read and
write; where no launcher has given the ranks one, anybody may. No name is looked up but rank 0's. It ends with rank 0's
process, so a job that ends can be followed by another one of the same processes.

A rank sends ``read`` or ``write`` with a name; the answer is ``value``, or ``nothing`` where none stands there.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
import time
from collections.abc import Callable

from workbench.common.messages import Message
from workbench.common.ports import family_of
from workbench.common.secret.channel import SealedChannel
from workbench.common.secret.handshake import HANDSHAKE_S, connect, greet
from workbench.common.secret.listener import MOST, Listener
from workbench.common.secret.seal import derived
from workbench.errors import LaunchError
from workbench.transport.bootstrap.meeting_point import listen
from workbench.transport.bootstrap.rendezvous import looks


class TcpBoard:
    """One rank's connection to the board; rank 0 holds it, too.

    Args:
        address, port: where rank 0 listens; a host's name may stand for several addresses.
        secret: the job's; empty if the ranks have none yet.
        rank, size: who this is among how many.
        timeout_s: deadline until rank 0 is there, and of each call.

    Raises:
        LaunchError: it is not there in time, or does not know the secret.
    """

    def __init__(self, address: str, port: int, secret: bytes, rank: int, size: int, timeout_s: float) -> None:
        self.where, self._timeout_s = f"{address} port {port}", timeout_s
        self._lock, key = threading.Lock(), derived(secret, "board")
        self._server = _serve(address, port, key, size) if rank == 0 else None
        why, until = "", time.monotonic() + timeout_s
        for _ in looks(timeout_s):
            try:
                met = connect(address, port, key, min(until, time.monotonic() + HANDSHAKE_S))
                self._channel = SealedChannel(*met, listened=False)
                return
            except OSError as error:
                if not (why and isinstance(error, TimeoutError)):  # the last attempt has little time
                    why = str(error.strerror or error).lower()
        raise LaunchError(
            f"init(): rank {rank} does not reach rank 0 at {self.where} within {timeout_s:g} s: {why}. Does a firewall "
            "block it? WORKBENCH_PORTS chooses the ports."
        )

    def read(self, name: str) -> bytes | None:
        answer = self._call("read", name)
        return answer.data if answer.kind == "value" else None

    def write(self, name: str, value: bytes) -> None:
        self._call("write", name, value)

    def _call(self, what: str, name: str, value: bytes = b"") -> Message:
        with self._lock:
            self._channel.send(what, value, name=name)
            answer = self._channel.receive(time.monotonic() + self._timeout_s)
        if answer is None:
            raise LaunchError(f"init(): {self.where} does not answer any more: has rank 0's process ended?")
        return answer


def _listening(address: str, port: int, backlog: int) -> socket.socket:
    try:
        ipaddress.ip_address(address)
    except ValueError:  # a name, which on its own host may mean loopback
        return listen(address, port, local=False)
    return socket.create_server((address, port), family=family_of(address), backlog=backlog)


def _serve(address: str, port: int, key: bytes, size: int) -> Listener:
    values = dict[str, bytes]()

    def meet(sock: socket.socket, known: Callable[[], None]) -> bool:
        """Until this rank is gone, or does not speak like one."""
        if not (session := greet(sock, key, known)):
            return False
        channel = SealedChannel(sock, session, listened=True)
        while question := channel.receive():
            name = str(question.fields.get("name"))
            if question.kind == "write":
                values[name] = question.data
            there = values.get(name) if question.kind == "read" else None
            channel.send("nothing" if there is None else "value", there or b"")
        return False

    try:
        return Listener(_listening(address, port, size + MOST), meet, size + MOST, "workbench-board")
    except OSError as error:
        raise LaunchError(
            f"init(): rank 0 cannot listen at {address} port {port}: {error.strerror}. Start the job, or its step in "
            "Slurm, again: it gets another port."
        ) from None
