"""A send or a receive on the virtual clock."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from workbench.course.simulator.communicator import ANY, Array, Pending, nbytes
from workbench.course.simulator.failures import NEVER
from workbench.course.simulator.run import SimulatedMessage
from workbench.errors import WorkbenchError


class RequestWorld(Protocol):
    """What a request needs of the scheduler."""

    clocks: list[float]
    posted: list[Request]

    def wait(self, request: Request) -> Any: ...
    def poll(self, request: Request) -> bool: ...


class Request(Pending):
    """A send or a receive that was posted."""

    def __init__(self, world: RequestWorld, rank: int, epoch: int, peer: int, tag: int, verb: str, sends: bool) -> None:
        self.world, self.rank, self.epoch, self.peer, self.tag = world, rank, epoch, peer, tag
        self.verb, self.sends = verb, sends
        self.posted, self.begins, self.ends, self.where = world.clocks[rank], NEVER, NEVER, ""
        self.data: Any = None  # what is sent, or has come
        self.array: Array | None = None  # the caller's own
        self.waited = False
        self.since = NEVER  # it holds its rank up from then on
        self.message = -1  # its number in the log
        if self.goes_on:
            world.posted.append(self)

    @property
    def goes_on(self) -> bool:
        """Does its rank go on until it calls wait()?"""
        return self.verb[0] in "iI"

    def wait(self) -> Any:
        self.waited = True
        data = self.world.wait(self)
        if self.array is None:
            return data
        if self.sends and not _same(self.array, self.data):
            raise WorkbenchError(
                f"Rank {self.rank}: the array given to {self.verb}(dest={self.peer}) was changed before wait(). Until "
                "then it belongs to the message: real ranks would send wrong numbers, sometimes. Wait first, or copy."
            )
        if not self.sends:
            _fill(self.array, data, self)
        self.array = None
        return None

    def test(self) -> tuple[bool, Any]:
        if not self.world.poll(self):
            return False, None
        return True, self.wait()

    Wait, Test = wait, test


def fits(send: Request, recv: Request) -> bool:
    """Is this receive made for this send?"""
    same = send.epoch == recv.epoch
    return same and send.peer == recv.rank and recv.peer in (ANY, send.rank) and (recv.tag < 0 or recv.tag == send.tag)


def logged(send: Request, recv: Request) -> SimulatedMessage:
    """What has gone from one to the other."""
    held, awaited = (
        min(one.since, max(one.posted, send.begins)) if one.goes_on else one.posted for one in (send, recv)
    )
    on_the_way, size = (send.begins, send.ends), nbytes(send.data)
    return SimulatedMessage(send.rank, recv.rank, send.tag, size, send.posted, *on_the_way, held, awaited, send.verb)


def _same(a: Array, b: Array) -> bool:
    return bool(np.array_equal(a, b, equal_nan=a.dtype.kind in "fc"))


def _fill(target: Array, data: Any, request: Request) -> None:
    if not isinstance(data, np.ndarray):
        raise TypeError(
            f"Rank {request.rank}: {request.verb}() got an object that send() sent; receive it with recv()."
        )
    if data.dtype != target.dtype or data.size > target.size:
        raise ValueError(
            f"Rank {request.rank}: {request.verb}(source={request.peer}) has room for {target.size} × {target.dtype}, "
            f"but {data.size} × {data.dtype} came. Give it an array of the sender's dtype that is large enough."
        )
    target.reshape(-1)[: data.size] = data.reshape(-1)
