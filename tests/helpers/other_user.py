"""A process of another user of this machine, for tests of what such a one can read."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest
import zmq

NOBODY = 65534
SECRET = "the exam password is 4711"
LISTENS_S = 4.0
as_nobody = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="only root may start a process of another user"
)

# Becomes another user once Python has what it needs, which may lie where only we can read.
BECOMES_NOBODY = f"""
import os, pathlib, sys, time, zmq
context = zmq.Context()
os.setgroups([]), os.setgid({NOBODY}), os.setuid({NOBODY})
"""
# Subscribes at each port given, says so, and after some seconds at which of them it has read anything.
LISTENS = f"""
poller, ports, heard = zmq.Poller(), {{}}, set()
for port in sys.argv[1:]:
    socket = context.socket(zmq.SUB)
    socket.subscribe(b"")
    socket.connect(f"tcp://127.0.0.1:{{port}}")
    poller.register(socket, zmq.POLLIN)
    ports[socket] = port
print("listens", flush=True)
until = time.monotonic() + {LISTENS_S}
while time.monotonic() < until:
    for socket, _ in poller.poll(100):
        socket.recv_multipart()
        heard.add(ports[socket])
print(*heard)
context.destroy(linger=0)
"""
# Says which of the files given it could read.
READS = """
for each in sys.argv[1:]:
    try:
        pathlib.Path(each).read_bytes()
    except PermissionError:
        continue
    print(each)
"""


@contextlib.contextmanager
def nobody(text: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A process of another user's that does this."""
    command = [sys.executable, "-c", BECOMES_NOBODY + text, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def listening(processes: list[psutil.Process]) -> dict[tuple[str, int], str]:
    """The addresses at which they wait for TCP connections or packets, and a process of each."""
    found = {}
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            for each in process.net_connections(kind="inet"):
                if each.status in (psutil.CONN_LISTEN, psutil.CONN_NONE):
                    found[each.laddr.ip, each.laddr.port] = " ".join(process.cmdline())[:80]
    return found


def heard(ports: set[int], say: Callable[[], None]) -> set[int]:
    """At which of these ports another user reads anything, while ``say()`` is called again and again."""
    with zmq.Context() as context, context.socket(zmq.PUB) as publisher:
        public = publisher.bind_to_random_port("tcp://127.0.0.1")
        with nobody(LISTENS, *map(str, {*ports, public})) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "listens\n"
            until = time.monotonic() + LISTENS_S
            while time.monotonic() < until:
                publisher.send(SECRET.encode())
                say()
                time.sleep(0.1)
            found = set(map(int, process.stdout.read().split()))
    assert public in found, "who can read nothing at all is no eavesdropper"
    return found - {public}
