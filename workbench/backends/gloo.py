"""Gloo, as torch.distributed ships it: the data plane for processes that no MPI started.

A process group of our own, made directly and not registered, so a script's own
``torch.distributed.init_process_group`` is not disturbed.
"""

from __future__ import annotations

import functools
import socket
import time
from collections.abc import Callable
from concurrent.futures import TimeoutError
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from workbench.backends.background import Worker, background
from workbench.backends.base import Array
from workbench.errors import LaunchError, PeerLostError

dist: Any = torch.distributed  # its stores and process groups are not typed
_AGAIN_S = 0.05  # between two attempts to reach the store


@functools.cache  # one per process: rank 0's must outlive every job of this process, for the next init()
def open_store(address: str, port: int, rank: int, size: int, timeout_s: float) -> Any:
    """The meeting place of all ranks: torchrun's own agent holds it, or else rank 0 does.

    Raises:
        LaunchError: it cannot be reached, or its port is taken.
    """
    common: dict[str, Any] = {"timeout": timedelta(seconds=timeout_s), "wait_for_workers": False, "multi_tenant": True}

    def connect(serve: bool) -> Any:
        store = background(lambda: dist.TCPStore(address, port, size, serve, **common))
        try:
            # An error comes late: torch looks up the names of all C++ frames for it, which takes a second or two.
            return store.result(timeout_s + 5.0)
        except TimeoutError:  # the constructor's own deadline does not end its wait for an answer
            raise RuntimeError("what listens there does not answer") from None

    try:
        if rank:
            _await_listener(address, port, timeout_s)
        return connect(serve=rank == 0)
    except (OSError, RuntimeError, dist.DistError) as error:
        if rank == 0:
            try:  # somebody holds the port already: torchrun's agent, which is a store as well
                return connect(serve=False)
            except (RuntimeError, dist.DistError):
                pass
        raise LaunchError(
            f"Rank {rank} cannot meet the others at {address}:{port} ({str(error).splitlines()[0]}). "
            "Check MASTER_ADDR and MASTER_PORT, and that rank 0 has started."
        ) from None


def _await_listener(address: str, port: int, timeout_s: float) -> None:
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
        time.sleep(_AGAIN_S)


def prefixed(store: Any, prefix: str) -> Any:
    """The same store with ``prefix`` before every key."""
    return dist.PrefixStore(prefix, store)


class GlooLink:
    """A Link over a Gloo process group.

    Args:
        store: where the ranks meet; the prefix must be new for every group.
        rank, size: this rank and the number of ranks.
        timeout_s: deadline of one message.
    """

    def __init__(self, store: Any, rank: int, size: int, timeout_s: float = 300.0) -> None:
        self.rank, self.size = rank, size
        self.tick: Callable[[], None] = lambda: None
        self._timeout_s, self._worker = timeout_s, Worker("workbench-gloo")
        self._group: Any = dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=timeout_s))

    def sendrecv(self, send: Array | None, dest: int, recv: Array | None, source: int) -> None:
        """Send and receive at the same time.

        Raises:
            PeerLostError: the connection broke, or nothing came within the deadline.
        """
        works = []
        try:
            if recv is not None and recv.size:
                works.append(self._group.recv([_bytes(recv)], source, 0))
            if send is not None and send.size:
                works.append(self._group.send([_bytes(send)], dest, 0))
            # A wait of Gloo's can neither be interrupted nor asked how far it is; it ends at its own deadline.
            self._worker.call(lambda: [work.wait() for work in works], self.tick, self._timeout_s + 10.0)
        except RuntimeError as error:
            what = str(error).splitlines()[0]
            raise PeerLostError(f"Rank {self.rank} lost rank {source} or {dest} in the data plane: {what}") from None

    def close(self, clean: bool = True) -> None:
        """Drop the connections."""
        self._worker.end()
        self._group = None


def _bytes(array: Array) -> torch.Tensor:
    return torch.from_numpy((array if array.flags.writeable else array.copy()).view("uint8"))
