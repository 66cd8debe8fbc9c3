"""Two jobs that measure in turns, from inside: each rank says where it is, and waits until its job may go on.

Horovod may live in an environment of its own, with another MPI. Its ranks are then other processes than ours, and the
same worker runs in both jobs, round by round: ours, theirs, ours, theirs. ``elsewhere.py`` says whose turn it is. Needs
the standard library and numpy only.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import pickle
import socket
import struct
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

TURNS, THEIRS = "--turns", "--theirs"
ARGUMENTS: Sequence[tuple[str, dict[str, Any]]] = (
    (TURNS, {"metavar": "FOLDER", "help": "measure in turns with another job, see elsewhere.py"}),
    (THEIRS, {"action": "store_true", "help": "… as Horovod's ranks"}),
)
OURS_SOCKET, THEIR_SOCKET, MEETING = "ours", "theirs", "meeting"
TURN = "The turn of: "
_CONNECT_S = 60.0


def last_turn(err: str) -> str | None:
    """Whose turn it was when the ranks ended, by what :func:`peers.now` wrote to standard error."""
    said = [line.partition(TURN)[2] for line in err.splitlines() if TURN in line]
    return said[-1] if said else None


def is_theirs() -> bool:
    """Is this a rank of Horovod's own environment?"""
    return THEIRS in sys.argv


def in_turns() -> bool:
    """Is there a second job?"""
    return TURNS in sys.argv


@functools.cache
def _driver() -> socket.socket | None:
    if not in_turns():
        return None
    return _connect(_folder() / (THEIR_SOCKET if is_theirs() else OURS_SOCKET))


def _folder() -> Path:
    return Path(sys.argv[sys.argv.index(TURNS) + 1])


def _connect(path: Path) -> socket.socket:
    until = time.monotonic() + _CONNECT_S
    while True:
        line = socket.socket(socket.AF_UNIX)
        try:
            line.connect(str(path))
        except OSError:  # whoever listens there is not so far yet
            line.close()
            if time.monotonic() > until:
                raise
            time.sleep(0.01)
        else:
            return line


def join(rank: int) -> None:
    """Tell the driver which process is this rank, and wait for the first turn."""
    if line := _driver():
        line.sendall(json.dumps({"rank": rank, "pid": os.getpid()}).encode() + b"\n")
    turn()


def turn() -> None:
    """Wait until it is this job's turn; nothing is measured meanwhile."""
    if line := _driver():
        line.sendall(b"ready\n")
        if not line.recv(1):
            raise ConnectionError("The benchmark's driver has ended.")


class Comm:
    """The calls of an MPI communicator that the workers use, over sockets of this machine.

    In Horovod's environment there may be no mpi4py, and a barrier of Horovod's would end where its cycle begins.
    """

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size, path = rank, size, _folder() / MEETING
        self._others: list[socket.socket] = []
        if rank:
            self._others = [_connect(path)]
            self._others[0].sendall(struct.pack("q", rank))
            return
        with contextlib.closing(socket.socket(socket.AF_UNIX)) as server:
            server.bind(str(path))
            server.listen(size)
            server.settimeout(_CONNECT_S)
            arrived = {}
            for _ in range(size - 1):
                line = server.accept()[0]
                line.settimeout(None)
                arrived[struct.unpack("q", _read(line, 8))[0]] = line
        self._others = [arrived[each] for each in range(1, size)]

    def allgather(self, mine: Any) -> list[Any]:
        """Everybody's object, by rank."""
        if self.rank:
            _send(self._others[0], mine)
            found: list[Any] = _receive(self._others[0])
            return found
        everyone = [mine, *(_receive(line) for line in self._others)]
        for line in self._others:
            _send(line, everyone)
        return everyone

    def Barrier(self) -> None:  # noqa: N802 - as mpi4py calls it
        """Nobody returns before all have called it."""
        self.allgather(None)

    def bcast(self, mine: Any = None) -> Any:
        """Rank 0's object."""
        return self.allgather(mine)[0]

    def Bcast(self, array: np.ndarray[Any, Any]) -> None:  # noqa: N802
        """Rank 0's numbers."""
        array[...] = self.bcast(array)

    def allreduce(self, mine: Any, op: Any) -> Any:
        """``op`` of everybody's."""
        return op(self.allgather(mine))

    def Allreduce(self, in_place: object, array: np.ndarray[Any, Any], op: Any) -> None:  # noqa: N802
        """``op`` of everybody's numbers, in place."""
        array[...] = op(np.stack(self.allgather(array)), axis=0)


class MPI:
    """The names of mpi4py's that go with :class:`Comm`."""

    IN_PLACE = None
    MAX = np.max


def _send(line: socket.socket, what: Any) -> None:
    data = pickle.dumps(what)
    line.sendall(struct.pack("q", len(data)) + data)


def _receive(line: socket.socket) -> Any:
    return pickle.loads(_read(line, struct.unpack("q", _read(line, 8))[0]))


def _read(line: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        part = line.recv(count - len(data))
        if not part:
            raise ConnectionError("Another rank has ended.")
        data += part
    return bytes(data)


__all__ = ["ARGUMENTS", "MPI", "Comm", "in_turns", "is_theirs", "join", "last_turn", "turn"]
