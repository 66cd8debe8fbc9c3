"""In a rank's process: an engine that hands every collective to the judge, where the ranks of a world meet.

Above it is the whole of ``workbench.torch``, as it is: optimizers, buckets, broadcasts of a state. Below it there is
neither network nor memory that two ranks reach, so what one rank knows of another it knows by a collective.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from workbench import config
from workbench.common.waiting import Owner, Waits
from workbench.core.backend.process_sets import SetTable
from workbench.core.handle import Handle
from workbench.core.messages import Event
from workbench.core.pending import Entry
from workbench.course.grading.apart.lanes import named
from workbench.course.grading.apart.values import Values, receive, send
from workbench.job.context import Context, World
from workbench.runtime.trace.timeline import Timeline
from workbench.transport.host.single import connect

_FIELDS = ("name", "dtype", "root", "prescale", "postscale", "splits", "group", "group_size", "absent", "shape", "user")


class JudgeConnection:
    """A rank's connection to the judge: messages of data, from any thread.

    Args:
        sock: the connection.
        values: how values travel.
    """

    def __init__(self, sock: socket.socket, values: Values) -> None:
        self._sock, self._values, self._sending = sock, values, threading.Lock()

    def send(self, op: str, **fields: Any) -> None:
        """Send one message.

        Raises:
            NotDataError: something in it is no data, or too much.
            OSError: nobody is there any more.
        """
        blobs = bytearray()
        packed = {name: self._values.pack(value, blobs) for name, value in fields.items()}
        with self._sending:
            send(self._sock, {"op": op, "f": packed}, blobs)

    def receive(self) -> tuple[str, dict[str, Any]]:
        """The next message.

        Raises:
            EOFError, ProtocolError: there is none, or it cannot be read.
        """
        message, blobs = receive(self._sock)
        fields = message.get("f")
        found = {name: self._values.unpack(one, blobs) for name, one in fields.items()} if fields else {}
        return str(message.get("op")), found

    def close(self) -> None:
        self._sock.close()


class RemoteEngine:
    """What a context needs of :class:`workbench.core.engine.Engine`.

    Args:
        wire: to the judge.
    """

    failures = 0

    def __init__(self, wire: JudgeConnection) -> None:
        self._wire, self._owner, self.waits = wire, _Judge(wire), Waits()
        self._numbering, self._number = threading.Lock(), 0
        self._under_way: dict[int, Entry] = {}

    def listen(self) -> None:
        """Give out results as they come, on a thread of their own; when the judge is gone, so is this process."""
        threading.Thread(target=self._listen, name="workbench-engine", daemon=True).start()

    def _listen(self) -> None:
        try:
            while True:
                _, answer = self._wire.receive()
                self._finish(self._under_way.pop(answer["of"]), answer)
        finally:
            os._exit(0)

    @staticmethod
    def _finish(entry: Entry, answer: dict[str, Any]) -> None:
        if "kind" in answer:
            return entry.deliver(None, named(answer["kind"], answer["text"]))
        result = answer["value"]
        if entry.target is not None and isinstance(result, np.ndarray):
            entry.target[...] = result.reshape(entry.target.shape)
            result = entry.target
        return entry.deliver(result)

    def submit(self, entries: list[Entry], at_once: bool = False) -> None:
        """Send tensors to the judge; the results come later."""
        answer = []
        for entry in entries:
            with self._numbering:
                self._number += 1
                number = self._number
            entry.handle.owner, entry.handle.request = self._owner, entry.request
            self._under_way[number] = entry
            answer.append(self._fields_of(number, entry))
        self._wire.send("submit", entries=answer)

    @staticmethod
    def _fields_of(number: int, entry: Entry) -> dict[str, Any]:
        request = entry.request
        about = {name: getattr(request, name) for name in _FIELDS}
        about |= {"of": number, "kind": request.kind.value, "op": request.op.value}
        return about | {"array": entry.source, "in_place": entry.target is not None}

    def report(self, event: Event) -> None:
        """The judge sees by itself how a rank ends."""

    def flush(self) -> bool:
        return False

    def settled(self) -> bool:
        return not self._under_way

    def leave(self, timeout_s: float) -> bool:
        """``shutdown()``: the rank stays in the judge's world until its function has ended."""
        return True


class _Judge(Owner):
    """Finishes handles, and is told what a rank waits for: it knows who waits for whom."""

    def __init__(self, wire: JudgeConnection) -> None:
        self._wire = wire

    def long_wait(self, handle: Handle, waiter: threading.Lock, timeout_s: float) -> bool:
        """Wait until the lock is free or ``timeout_s`` (-1: no limit) has passed. False if it is not."""
        self._wire.send("waits", name=handle.request.name)
        return waiter.acquire(timeout=timeout_s)


class _Bootstrap:
    """Of a world that is there already."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size

    def exchange(self, value: Any) -> Sequence[Any]:
        """Process sets need it: a graded function has none of its own."""
        raise NotImplementedError("Process sets are not there when a function is graded.")

    def broken(self) -> None:
        """Nobody waits."""


def context(rank: int, size: int, engine: Any) -> Context:
    """This process as a rank of the judge's world: each rank on a machine of its own, and no memory in common."""
    alone: Any = connect(None, None)
    sets = SetTable(rank, replace(alone, name="GRADED", rank=rank, ranks=range(size)))
    there: Any = _Bootstrap(rank, size)
    nobody: Any = None
    world = World(rank, size, local_rank=0, local_size=1, cross_rank=rank, cross_size=size)
    return Context(world, engine, nobody, sets, nobody, there, config.settings(), None, Timeline())
