"""TensorFlow's dispatcher and worker servers, kept on this machine.

They listen on every interface and ask nobody who they are, and no option of TensorFlow changes it. What can be done is
done: where all takes place on one machine, their sockets are bound to the loopback device as soon as they listen, if
the system allows it. Other users of this machine still reach them; so :data:`WARNING` is said aloud.
"""

from __future__ import annotations

import functools
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

WARNING = (
    "workbench: TensorFlow's data service has no password: {who} can run TensorFlow operations as you, which read and "
    "write files, as long as it runs."
)
_LISTENS = "0A"  # in /proc/net/tcp


def dispatcher(host: str) -> tuple[Any, str]:
    """A running dispatcher, and its address.

    Args:
        host: as others reach this machine; "localhost" if there are no others.
    """
    server = tf.data.experimental.service.DispatchServer()
    return server, f"grpc://{host}:{_port(server, host)}"


def worker(host: str, address: str, timeout_s: float | None) -> Any:
    """A running worker of the dispatcher at this address."""
    config = tf.data.experimental.service.WorkerConfig(
        dispatcher_address=address.partition("://")[2],
        worker_address=f"{host}:%port%",
        heartbeat_interval_ms=1000,
        dispatcher_timeout_ms=int(timeout_s * 1000) if timeout_s else None,
    )
    server = tf.data.experimental.service.WorkerServer(config)
    _port(server, host)
    return server


def stop(server: Any) -> None:
    """There is no public way."""
    server._server.stop()


def who_reaches(host: str) -> str:
    """Whom the warning is about."""
    return "every user of this machine" if host == "localhost" and _can_bind() else "everyone who reaches its ports"


def _port(server: Any, host: str) -> int:
    port = int(server._server.bound_port())
    if host == "localhost" and _can_bind():
        for number in _listening(port):
            with socket.socket(fileno=os.dup(number)) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
    return port


@functools.cache
def _can_bind() -> bool:
    """Does this system let this user bind a socket to a device? Linux before 5.7 lets root alone."""
    if not hasattr(socket, "SO_BINDTODEVICE") or not Path("/proc/self/net/tcp").exists():
        return False
    with socket.socket() as sock:
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"lo")
        except OSError:
            return False
    return True


def _listening(port: int) -> Iterator[int]:
    """This process's descriptors that listen there; Python does not know them, for TensorFlow has made them."""
    inodes = set()
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for number in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{number}") in inodes:
                yield int(number)
        except FileNotFoundError:  # the one that listdir had
            continue
