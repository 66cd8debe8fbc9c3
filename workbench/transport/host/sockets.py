"""TCP: the data plane between hosts for ranks that no MPI started. A stream leads from each sender to each receiver.

Each rank listens at one address, its host's on the network that the launcher has chosen, and nowhere else. Whoever
connects must prove that it knows the job's secret before a byte of it is taken for data, and so must who is connected
to; both by a keyed hash of a number that the other one has just drawn. From then on the stream's bytes are neither
signed nor encrypted.
"""

from __future__ import annotations

import contextlib
import ipaddress
import secrets
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from workbench import config
from workbench.common.ports import family_of, listen
from workbench.common.secret.handshake import HANDSHAKE_S, exactly
from workbench.common.secret.listener import MOST, Listener
from workbench.common.secret.seal import derived
from workbench.config import Settings
from workbench.core.backend.base import Array, Backend
from workbench.errors import DeadlineError, LaunchError, PeerLostError
from workbench.transport.bootstrap.base import Bootstrap
from workbench.transport.bootstrap.peers import namespace
from workbench.transport.links import link_backend
from workbench.transport.polling import offer_core

_NUMBER, _PROOF = 16, 32  # bytes
_TICK_S = 0.05
_LOOKS = 10  # before the first sleep, with the core offered to others in between


def connect(bootstrap: Bootstrap, settings: Settings) -> Backend:
    """Our algorithms over TCP."""
    link = SocketLink(bootstrap.rank, bootstrap.size, bootstrap.secret, settings.data_timeout_s)
    try:
        link.addresses = [tuple(address) for address in bootstrap.exchange(link.listen(own_address(bootstrap)))]
    except BaseException:
        link.close(clean=False)
        raise
    return link_backend(link)


def own_address(bootstrap: Bootstrap) -> str:
    """The address where the other ranks reach this one.

    1. What the launcher says of this host.
    2. Loopback, where all ranks share a machine and its network.
    3. That of the interface by which this host reaches rank 0's; on rank 0's host, what another host has reached.

    Raises:
        LaunchError: there are several machines, and none of this is known.
    """
    said = bootstrap.exchange((bootstrap.node, namespace("net"), config.host_address()))
    machines, mine = [tuple(each[:2]) for each in said], str(said[bootstrap.rank][2])
    if len(set(machines)) == 1 or all(address for *_, address in said):
        return mine or "127.0.0.1"
    ways = bootstrap.exchange(_ends_of_the_way(config.launch().address))  # only now: to look up a name takes time
    here = mine or str(ways[bootstrap.rank][0])
    if not mine and machines[bootstrap.rank] == machines[0]:
        here = next((there for at, (_, there) in zip(machines, ways, strict=True) if at != machines[0] and there), "")
    if not here:
        raise LaunchError(
            f"init(): rank {bootstrap.rank} does not know by which address other machines reach its own. Set "
            "WORKBENCH_HOST_ADDRESS there, or start the ranks with `workbench run -H`, which sets it."
        )
    return here


def _ends_of_the_way(host: str) -> tuple[str, str]:
    """From here to a host: the addresses of both ends; nothing where there is no way, or it leads nowhere.

    Example:
        >>> _ends_of_the_way("localhost"), _ends_of_the_way("")
        (('', ''), ('', ''))
    """
    with contextlib.suppress(OSError):
        for family, kind, _, _, address in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM) if host else []:
            with socket.socket(family, kind) as sock:
                sock.connect(address)  # of UDP: nothing is sent
                here, there = sock.getsockname()[0], sock.getpeername()[0]
            if not ipaddress.ip_address(here.partition("%")[0]).is_loopback:
                return here, there
    return "", ""


@dataclass
class _Transfer:
    """What is still to be sent and received."""

    out: memoryview
    into: memoryview
    dest: int
    source: int


class SocketLink:
    """A Link over TCP.

    Args:
        rank, size: this rank and the number of ranks.
        secret: the job's.
        timeout_s: deadline without a byte.

    Attributes:
        addresses: by rank the address and port where it listens.
        tick: called some twenty times a second amid a wait; it may raise to end it.
    """

    name = "TCP"

    def __init__(self, rank: int, size: int, secret: bytes, timeout_s: float = 300.0) -> None:
        self.rank, self.size, self._secret, self._timeout_s = rank, size, secret, timeout_s
        self.tick: Callable[[], None] = lambda: None
        self.addresses: list[tuple[str, int]] = []
        self._sending: dict[int, deque[_Transfer]] = {}
        self._receiving: dict[int, deque[_Transfer]] = {}
        self._broken = ""
        self._out: dict[int, socket.socket] = {}
        self._in: dict[int, socket.socket] = {}
        self._came = threading.Condition()
        self._closed = False
        self._listener: Listener | None = None

    def listen(self, address: str) -> tuple[str, int]:
        """Begin to listen at an address; returns it and the port.

        Raises:
            LaunchError: no port is free there.
        """
        try:
            port = listen(address, config.ports(), self.size + MOST)
        except OSError as error:
            raise LaunchError(f"init(): rank {self.rank}: {error}") from None
        self._listener = Listener(port, self._meet, self.size + MOST, "workbench-tcp")
        return address, port.getsockname()[1]

    def sendrecv(self, send: Array | None, dest: int, recv: Array | None, source: int) -> None:
        """Send and receive at the same time.

        Raises:
            PeerLostError: a stream ended, or nothing moved within the deadline.
        """
        self.start(send, dest, recv, source)()

    def start(self, send: Array | None, dest: int, recv: Array | None, source: int) -> Callable[[], None]:
        """Begin both, and let the system do what it can meanwhile; the result waits for the end.

        Raises:
            PeerLostError: see :meth:`sendrecv`.
        """
        if self._broken:
            raise PeerLostError(self._broken)
        transfer = _Transfer(_bytes(send), _bytes(recv), dest, source)
        try:
            if transfer.out:
                self._to(dest)
                self._sending.setdefault(dest, deque()).append(transfer)
                self._send(dest)
            if transfer.into:
                self._from(source)
                self._receiving.setdefault(source, deque()).append(transfer)
        except BaseException as error:
            self._break(error)
            raise
        return lambda: self._finish(transfer)

    def _finish(self, transfer: _Transfer) -> None:
        quiet_since = ticked = time.monotonic()
        try:
            while transfer.out or transfer.into:
                if self._move():
                    quiet_since = time.monotonic()
                    if quiet_since - ticked > _TICK_S:
                        self.tick()
                        ticked = quiet_since
                else:
                    self._look(quiet_since, transfer.source if transfer.into else transfer.dest)
        except BaseException as error:
            self._break(error)
            raise

    def _move(self) -> int:
        """Move what can be, after a wait of a moment if nothing can at once; returns how many bytes."""
        for _ in range(_LOOKS):
            if moved := self._move_at_once():
                return moved
            offer_core()
        with selectors.DefaultSelector() as waiting:
            for dest in _wanted(self._sending):
                waiting.register(self._out[dest], selectors.EVENT_WRITE)
            for source in _wanted(self._receiving):
                waiting.register(self._in[source], selectors.EVENT_READ)
            waiting.select(_TICK_S)
        return self._move_at_once()

    def _move_at_once(self) -> int:
        sent = sum(self._send(dest) for dest in _wanted(self._sending))
        return sent + sum(self._receive(source) for source in _wanted(self._receiving))

    def _break(self, error: BaseException) -> None:
        """Amid a message a stream is of no more use, and what still comes must not be written to callers' arrays."""
        self._broken = f"Rank {self.rank} has closed the data plane: {str(error) or type(error).__name__}"
        self._sending.clear()
        self._receiving.clear()

    def close(self, clean: bool = True) -> None:
        """Close all streams, and listen no more."""
        with self._came:
            self._closed = True
        if self._listener is not None:
            self._listener.close()
        for sock in (*self._out.values(), *self._in.values()):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)  # wakes up the thread that waits there
            sock.close()

    # --- streams --------------------------------------------------------------------------------------

    def _send(self, dest: int) -> int:
        moved, transfers = 0, self._sending[dest]
        try:
            while transfers:
                count = self._out[dest].send(transfers[0].out)
                transfers[0].out = transfers[0].out[count:]
                moved += count
                if transfers[0].out:
                    break
                transfers.popleft()
        except BlockingIOError:
            pass
        except OSError as error:
            raise self._lost(dest, error.strerror or str(error)) from None
        return moved

    def _receive(self, source: int) -> int:
        transfers = self._receiving[source]
        try:
            count = self._in[source].recv_into(transfers[0].into)
        except BlockingIOError:
            return 0
        except OSError as error:
            raise self._lost(source, error.strerror or str(error)) from None
        if not count:
            raise self._lost(source, "it has closed the stream")
        transfers[0].into = transfers[0].into[count:]
        if not transfers[0].into:
            transfers.popleft()
        return count

    def _look(self, quiet_since: float, other: int) -> None:
        self.tick()
        if time.monotonic() - quiet_since > self._timeout_s:
            raise DeadlineError(
                f"TCP: rank {self.rank} has waited for rank {other}{self._at(other)} for {self._timeout_s:g} s "
                "(WORKBENCH_DATA_TIMEOUT_S)."
            )

    def _lost(self, other: int, why: str) -> PeerLostError:
        return PeerLostError(f"Rank {self.rank} lost rank {other}{self._at(other)} in the data plane: {why.lower()}")

    def _at(self, other: int) -> str:
        """Words for where another rank is."""
        return f" at {self.addresses[other][0]}" if other < len(self.addresses) else ""

    def _to(self, dest: int) -> None:
        """See to it that there is a stream to this rank."""
        if dest in self._out:
            return
        address, port = self.addresses[dest]
        sock = socket.socket(family_of(address))
        try:
            until = time.monotonic() + HANDSHAKE_S
            sock.settimeout(HANDSHAKE_S)
            sock.connect((address, port))
            mine, theirs = secrets.token_bytes(_NUMBER), exactly(sock, _NUMBER, until)
            sock.sendall(self.rank.to_bytes(4, "big") + mine + self._proof(self.rank, dest, theirs))
            try:
                answer = exactly(sock, _PROOF, until)
            except ConnectionError:
                raise OSError("who listens there does not believe this rank: is it another job's?") from None
            if not secrets.compare_digest(answer, self._proof(dest, self.rank, mine)):
                raise OSError("who listens there does not know the job's secret")
        except OSError as error:
            sock.close()
            raise self._lost(dest, f"no stream to port {port}: {error.strerror or error}") from None
        self._out[dest] = _ready(sock)

    def _from(self, source: int) -> None:
        """See to it that there is a stream from this rank."""
        since = time.monotonic()
        with self._came:
            while source not in self._in:
                self._came.wait(_TICK_S)
                self._look(since, source)

    def _meet(self, guest: socket.socket, known: Callable[[], None]) -> bool:
        until = time.monotonic() + HANDSHAKE_S
        mine = secrets.token_bytes(_NUMBER)
        guest.settimeout(HANDSHAKE_S)
        guest.sendall(mine)
        hello = exactly(guest, 4 + _NUMBER + _PROOF, until)
        source, theirs, proof = int.from_bytes(hello[:4], "big"), hello[4 : 4 + _NUMBER], hello[4 + _NUMBER :]
        if not secrets.compare_digest(proof, self._proof(source, self.rank, mine)):
            return False
        known()  # before it hears so: from then on it must not be cut off
        with self._came:
            if self._closed or source in self._in:  # it comes too late
                return False
            guest.sendall(self._proof(self.rank, source, theirs))
            self._in[source] = _ready(guest)
            self._came.notify_all()
        return True

    def _proof(self, source: int, dest: int, number: bytes) -> bytes:
        return derived(self._secret, f"TCP from {source} to {dest}", number)


def _wanted(transfers: dict[int, deque[_Transfer]]) -> list[int]:
    """The ranks with which something is to be transferred."""
    return [rank for rank, waiting in transfers.items() if waiting]


def _ready(sock: socket.socket) -> socket.socket:
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setblocking(False)
    return sock


def _bytes(array: Array | None) -> memoryview:
    return memoryview(b"" if array is None else array.reshape(-1).view("uint8").data)
