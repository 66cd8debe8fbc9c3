"""Gloo, as torch.distributed ships it: the data plane for processes that no MPI started.

A process group of our own, made directly and not registered, so a script's own
``torch.distributed.init_process_group`` is not disturbed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import TimeoutError
from datetime import timedelta
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

import torch

from workbench.common.secret.seal import derived
from workbench.config import Settings
from workbench.core.backend.base import Array, Backend
from workbench.errors import DeadlineError, LaunchError, PeerLostError
from workbench.transport.background import CallThread, background, patient
from workbench.transport.bootstrap.rendezvous import Session
from workbench.transport.bootstrap.torch_store import dist
from workbench.transport.host.hang_up import hang_up, stop_listening
from workbench.transport.links import link_backend, pieces

if TYPE_CHECKING:
    from workbench.transport.bootstrap.store import StoreBootstrap
    from workbench.transport.elastic import ElasticBootstrap


def connect(bootstrap: StoreBootstrap | ElasticBootstrap, settings: Settings) -> Backend:
    """Our algorithms over Gloo's messages."""
    session, limit_s = bootstrap.session, settings.data_timeout_s
    with bootstrap.telling_why():
        link = connected(session, bootstrap.rank, bootstrap.size, limit_s, bootstrap.look)
        link.verify(session.key, session.timeout_s, bootstrap.look)
    link.stop_listening()
    return link_backend(link)


class SealedStore(dist.Store):  # type: ignore[misc]  # Any
    """A store for a process group of torch's: whatever stands in it is sealed with a session's key.

    Args:
        session: of the ranks.
        name: before all names.
        tick: called amid long waits; it may raise to end them.

    Attributes:
        values: what stood in it, as far as this process saw it; ``own``: what this process wrote.
    """

    def __init__(self, session: Session, name: str, tick: Callable[[], None]) -> None:
        super().__init__()
        self._session, self._name, self._tick = session, name, tick
        self.values: list[bytes] = []
        self.own: list[bytes] = []

    def set(self, key: str, value: Any) -> None:
        self.values.append(bytes(value))
        self.own.append(bytes(value))
        self._session.write(f"{self._name}/{key}", bytes(value))

    def get(self, key: str) -> bytes:
        self.values += self._session.read([f"{self._name}/{key}"], self._tick)
        return self.values[-1]

    def wait(self, keys: list[str], timeout: timedelta | None = None) -> None:
        self._session.read([f"{self._name}/{key}" for key in keys], self._tick)


def connected(session: Session, rank: int, size: int, timeout_s: float, tick: Callable[[], None]) -> GlooLink:
    """A process group of all ranks, as a Link. On one machine it uses the loopback interface alone.

    Args:
        session: of the ranks.
        rank, size: who this is among how many.
        timeout_s: deadline of one message later on.
        tick: called amid the wait; it may raise to end it.
    """
    limit = timedelta(seconds=timeout_s)
    store = SealedStore(session, "gloo", lambda: None)
    rest: Any = limit  # on the interface that GLOO_SOCKET_IFNAME names, or that of the host's name
    if len({(hello["node"], hello["net"]) for hello in session.hellos}) == 1:
        rest = dist.ProcessGroupGloo._Options()
        rest._timeout, rest._devices = limit, [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    try:
        group = patient(
            background(lambda: dist.ProcessGroupGloo(store, rank, size, rest)), tick, session.timeout_s + 10.0
        )
    except TimeoutError:
        raise LaunchError(
            f"init(): Gloo did not connect the ranks within {session.timeout_s:g} s (WORKBENCH_INIT_TIMEOUT_S). "
            "Call init() on every rank."
        ) from None
    except (LaunchError, PeerLostError):  # the tick's
        raise
    except RuntimeError as error:
        raise LaunchError(f"init(): Gloo could not connect the ranks: {str(error).splitlines()[0]}") from None
    return GlooLink(group, rank, size, timeout_s, store.values, store.own)


class GlooLink:
    """A Link over a Gloo process group.

    Args:
        group: the ranks'.
        rank, size: this rank and the number of ranks.
        timeout_s: deadline of one message.
        notes: in which the ranks have told each other where they listen. Gloo offers no way to end what waits for a
            message, for its group's ``abort`` does nothing, nor to close its listener.
        own: those of them that are this rank's.
    """

    name = "GLOO"
    piece_bytes = 256 << 20  # of one message; on all ranks

    def __init__(
        self,
        group: Any,
        rank: int,
        size: int,
        timeout_s: float = 300.0,
        notes: Sequence[bytes] = (),
        own: Sequence[bytes] = (),
    ) -> None:
        self.rank, self.size = rank, size
        self.tick: Callable[[], None] = lambda: None
        self._timeout_s, self._worker = timeout_s, CallThread("workbench-gloo")
        self._group, self._notes, self._own = group, notes, own
        self._landing = torch.empty(0, dtype=torch.uint8)

    def verify(self, key: bytes, timeout_s: float, tick: Callable[[], None]) -> None:
        """Is each other rank at the end of its connection? Gloo itself takes whoever connects first.

        Two messages of 32 bytes with each of them. From then on the connection is theirs: its bytes are neither signed
        nor encrypted.

        Args:
            key: that only the ranks know.
            timeout_s: deadline of one answer.
            tick: called amid the wait; it may raise to end it.

        Raises:
            LaunchError: somebody else is.
        """
        limit = timedelta(seconds=timeout_s)
        for step in range(1, self.size):
            dest, source = (self.rank + step) % self.size, (self.rank - step) % self.size
            mine, theirs = (_proof(key, *pair) for pair in ((self.rank, dest), (source, self.rank)))
            found = torch.zeros(len(theirs), dtype=torch.uint8)
            try:
                works = [self._group.recv([found], source, 0), self._group.send([mine], dest, 0)]
                self._worker.call(functools.partial(_wait_for, works, limit), tick, timeout_s + 5.0)
                right = torch.equal(found, theirs)
            except (LaunchError, PeerLostError):  # the tick's
                raise
            except (RuntimeError, DeadlineError):
                right = False
            if not right:
                who = f"rank {source}" if source == dest else f"rank {source} or rank {dest}"
                raise LaunchError(
                    f"init(): {who} is not at the other end of its connection to rank {self.rank}: it has ended, it "
                    f"did not answer within {timeout_s:g} s (WORKBENCH_INIT_TIMEOUT_S), or somebody else has connected "
                    "instead. Start the job again."
                )

    def stop_listening(self) -> None:
        """All have connected: Gloo would keep the connections of strangers, and a process may have so many files."""
        stop_listening(self._own)

    def sendrecv(self, send: Array | None, dest: int, recv: Array | None, source: int) -> None:
        """Send and receive at the same time, in pieces: what lands is copied, and needs no more memory than a piece.

        Raises:
            PeerLostError: the connection broke, or nothing came within the deadline.
        """
        for out, into in zip_longest(*(pieces(each, self.piece_bytes) for each in (send, recv))):
            self._piece(out, dest, into, source)

    def _piece(self, send: Array | None, dest: int, recv: Array | None, source: int) -> None:
        works, landing = [], self._land(recv)
        try:
            if landing is not None:
                works.append(self._group.recv([landing], source, 0))
            if send is not None and send.size:
                works.append(self._group.send([_bytes(send)], dest, 0))
            # A wait of Gloo's can neither be interrupted nor asked how far it is; it ends at its own deadline.
            self._worker.call(lambda: [work.wait() for work in works], self.tick, self._timeout_s + 10.0)
            if landing is not None and recv is not None:
                _bytes(recv).copy_(landing)
        except RuntimeError as error:
            what = str(error).splitlines()[0]
            raise PeerLostError(f"Rank {self.rank} lost rank {source} or {dest} in the data plane: {what}") from None

    def _land(self, recv: Array | None) -> torch.Tensor | None:
        """Memory of our own for what comes: Gloo writes there even after its caller was told of a failure."""
        if recv is None or not recv.size:
            return None
        if len(self._landing) < recv.nbytes:
            self._landing = torch.empty(recv.nbytes, dtype=torch.uint8)
        return self._landing[: recv.nbytes]

    def close(self, clean: bool = True) -> None:
        """Drop the connections; if not all ranks do, also end the wait that the worker's thread may be in."""
        self._worker.end((lambda: hang_up(self._notes)) if not clean else lambda: None)
        self._group = None


def _wait_for(works: list[Any], limit: timedelta) -> None:
    for work in works:
        work.wait(limit)


def _proof(key: bytes, source: int, dest: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(derived(key, f"gloo from {source} to {dest}")), dtype=torch.uint8)


def _bytes(array: Array) -> torch.Tensor:
    return torch.from_numpy((array if array.flags.writeable else array.copy()).view("uint8"))
