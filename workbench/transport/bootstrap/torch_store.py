"""torch's key-value stores, where processes that no MPI started find each other."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError
from datetime import timedelta
from typing import Any, TypeVar

import torch.distributed

from workbench.errors import LaunchError
from workbench.transport.background import CallThread, background, patient
from workbench.transport.bootstrap.meeting_point import listen

T = TypeVar("T")
dist: Any = torch.distributed  # its stores and process groups are not typed
_AGAIN_S = 0.05  # between two attempts to reach the store
_GONE_S = 0.5  # a value that was there a moment ago, and does not come within so long, has been taken away


def open_store(
    address: str,
    port: int,
    rank: int,
    size: int,
    timeout_s: float,
    agent: bool = False,
    local: bool = False,
    tick: Callable[[], None] = lambda: None,
) -> Any:
    """The store of all ranks. Rank 0 holds it and listens on ``address`` alone, or torchrun's agent does.

    Args:
        address, port: where.
        rank, size: who this is among how many.
        timeout_s: deadline.
        agent: torchrun's agent holds it.
        local: all ranks are on this machine.
        tick: called amid the wait; it may raise to end it.

    Raises:
        LaunchError: it cannot be reached, or rank 0's port is taken.
    """
    common: dict[str, Any] = {"timeout": timedelta(seconds=timeout_s), "wait_for_workers": False, "multi_tenant": True}
    host = "127.0.0.1" if address == "localhost" else address  # not ::1, where somebody else may listen

    def connect(**serve: Any) -> Any:
        store = background(lambda: dist.TCPStore(host, port, size, **serve, **common))
        try:
            # An error comes late: torch looks up the names of all C++ frames for it, which takes a second or two.
            return patient(store, tick, timeout_s + 5.0)
        except TimeoutError:  # the constructor's own deadline does not end its wait for an answer
            raise RuntimeError("the program that listens there does not answer") from None

    try:
        if rank or agent:
            _await_listener(host, port, timeout_s, tick)
            return connect()
        try:
            listening = listen(host, port, local)
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return connect(is_master=True)  # this process holds it already, for torch's own groups; else it fails
        return connect(is_master=True, master_listen_fd=listening.detach())
    except (OSError, RuntimeError, dist.DistError) as error:
        hint = "Does another program use the port? Choose another MASTER_PORT." if rank == 0 else _REACH
        raise LaunchError(
            f"Rank {rank} cannot connect to the others at {address}:{port} ({str(error).splitlines()[0]}). {hint}"
        ) from None


_REACH = "Check MASTER_ADDR and MASTER_PORT, and that rank 0 has started."


def _await_listener(address: str, port: int, timeout_s: float, tick: Callable[[], None]) -> None:
    """Wait until somebody listens there. TCPStore would wait as well, but say only seconds later that nobody came.

    Raises:
        OSError: no connection within ``timeout_s``, and why.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            left_s = max(0.1, deadline - time.monotonic())
            return socket.create_connection((address, port), timeout=left_s).close()
        except OSError as error:
            if time.monotonic() + _AGAIN_S > deadline:
                raise OSError(f"no connection within {timeout_s:g} s: {error.strerror or error}") from None
        tick()
        time.sleep(_AGAIN_S)


class StoreBoard:
    """One of torch's stores, as a :class:`workbench.transport.bootstrap.rendezvous.Board`.

    A call to a store cannot be interrupted, and one that somebody else holds may never answer. So all are made on a
    thread of their own.

    Args:
        store: what is behind it.
        where: for error texts.
        timeout_s: deadline of one call.
    """

    def __init__(self, store: Any, where: str, timeout_s: float) -> None:
        self._store, self.where, self._timeout_s = store, where, timeout_s
        self._worker = CallThread("workbench-store")
        store.set_timeout(timedelta(seconds=_GONE_S))

    def read(self, name: str) -> bytes | None:
        return self._call(lambda: self._get(name) if self._store.check([name]) else None)

    def write(self, name: str, value: bytes) -> None:
        self._call(lambda: self._store.set(name, value))

    def _get(self, name: str) -> bytes | None:
        try:
            return bytes(self._store.get(name))
        except dist.DistStoreError:  # a stranger has removed it since it was seen
            return None

    def _call(self, function: Callable[[], T]) -> T:
        try:
            return self._worker.call(function, lambda: None, self._timeout_s)
        except (RuntimeError, dist.DistError) as error:  # DeadlineError as well
            raise LaunchError(f"init(): {self.where} does not answer any more: {str(error).splitlines()[0]}") from None
