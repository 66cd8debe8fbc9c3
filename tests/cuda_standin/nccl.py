"""`cupy.cuda.nccl`: communicators whose members are threads of one process, each with a device of its own."""
# ruff: noqa: N802, N803 — the names are cupy's

from __future__ import annotations

import itertools
import os
import time
from typing import Any

from .arithmetic import TYPES
from .meeting import Call, Clique, GroupOp
from .operations import Queue
from .world import World

_NAMES = ["SUCCESS", "UNHANDLED_CUDA_ERROR", "SYSTEM_ERROR", "INTERNAL_ERROR", "INVALID_ARGUMENT", "INVALID_USAGE"]
SYSTEM, ARGUMENT, USAGE = 2, 4, 5


class NcclError(RuntimeError):
    """As cupy's, and says what was wrong, which NCCL writes into its log only."""

    def __init__(self, status: int, text: str = "") -> None:
        self.status = status
        name = _NAMES[status]
        super().__init__(f"NCCL_ERROR_{name}: {name.lower().replace('_', ' ')}{f' ({text})' if text else ''}")


class NcclCommunicator:
    """One rank of a communicator, on the device that is current where it is made. Blocks until all ranks have come."""

    world: World

    def __init__(self, ndev: int, commId: bytes, rank: int, config: object = None) -> None:
        world = self.world
        if len(commId) != 128 or not 0 <= rank < ndev:
            raise NcclError(ARGUMENT, f"an id of {len(commId)} bytes, rank {rank} of {ndev}")
        self._rank, self._size, self._device = rank, ndev, world.device()
        self._alive = False
        with world.lock:
            self._clique = clique = world.cliques.setdefault(bytes(commId), Clique(world, ndev))
            if rank in clique.members or clique.size != ndev:
                raise NcclError(USAGE, f"rank {rank} of {ndev} came twice, or to one of {clique.size}")
            clique.members[rank] = self
            world.note("init", rank=rank, communicator=clique.number, size=ndev)
            world.lock.notify_all()
            end = time.monotonic() + world.init_timeout_s
            while len(clique.members) < ndev:
                world.raise_errors()
                if not world.lock.wait(end - time.monotonic()) and time.monotonic() >= end:
                    came = sorted(clique.members)
                    del clique.members[rank]
                    raise NcclError(SYSTEM, f"of {ndev} ranks only {came} came in {world.init_timeout_s} s")
            self._refuse_shared_devices()
            self._alive = True
            world.communicators.append(self)

    def __repr__(self) -> str:
        return f"rank {self._rank} of {self._clique}"

    def _refuse_shared_devices(self) -> None:
        if self.world.nccl_version >= 23000 and os.environ.get("NCCL_MULTI_RANK_GPU_ENABLE") == "1":
            return
        uuids = [self.world.uuids[member._device] for member in self._clique.members.values()]
        if len(set(uuids)) < len(uuids):
            raise NcclError(USAGE, "Duplicate GPU detected")

    # --- calls --------------------------------------------------------------------------------------------------------

    def allReduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, stream: int) -> None:
        self._call(Call("allReduce", count, datatype, op=op), stream, (sendbuf, 1), (recvbuf, 1))

    def reduce(self, sendbuf: int, recvbuf: int, count: int, datatype: int, op: int, root: int, stream: int) -> None:
        received = (recvbuf, 1) if self._rank == root else None
        self._call(Call("reduce", count, datatype, op=op, root=root), stream, (sendbuf, 1), received)

    def broadcast(self, sendbuff: int, recvbuff: int, count: int, datatype: int, root: int, stream: int) -> None:
        sent = (sendbuff, 1) if self._rank == root else None
        self._call(Call("broadcast", count, datatype, root=root), stream, sent, (recvbuff, 1))

    def bcast(self, buff: int, count: int, datatype: int, root: int, stream: int) -> None:
        self.broadcast(buff, buff, count, datatype, root, stream)

    def reduceScatter(self, sendbuf: int, recvbuf: int, recvcount: int, datatype: int, op: int, stream: int) -> None:
        self._call(Call("reduceScatter", recvcount, datatype, op=op), stream, (sendbuf, self._size), (recvbuf, 1))

    def allGather(self, sendbuf: int, recvbuf: int, count: int, datatype: int, stream: int) -> None:
        self._call(Call("allGather", count, datatype), stream, (sendbuf, 1), (recvbuf, self._size))

    def send(self, sendbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._call(Call("send", count, datatype, peer=peer), stream, (sendbuf, 1), None)

    def recv(self, recvbuf: int, count: int, datatype: int, peer: int, stream: int) -> None:
        self._call(Call("recv", count, datatype, peer=peer), stream, None, (recvbuf, 1))

    def _call(self, call: Call, stream: int, sent: tuple[int, int] | None, received: tuple[int, int] | None) -> None:
        """Checks the arguments, then issues the call, or adds it to the thread's open group.

        `sent` and `received` are an address and how many times `count` elements lie there.
        """
        self._check_alive()
        if call.datatype not in TYPES or call.op not in range(5) or call.count < 0:
            raise NcclError(ARGUMENT, f"{call}: type {call.datatype}, operation {call.op}, {call.count} elements")
        if not (0 <= call.root < self._size and 0 <= call.peer < self._size):
            raise NcclError(ARGUMENT, f"{call}: root {call.root}, peer {call.peer} of {self._size} ranks")
        queue = self.world.queue(stream, self._device)
        if queue.device != self._device:
            raise NcclError(ARGUMENT, f"{call}: {queue} is not of the communicator's device {self._device}")
        call.rank = self._rank
        for name, buffer in (("sent", sent), ("received", received)):
            if buffer is not None:
                call.addresses[name] = buffer[0]
                setattr(call, name, self._buffer(call, *buffer))
        if call.overlaps(self._size):
            raise NcclError(ARGUMENT, f"{call}: its buffers overlap, and not as in-place buffers may")
        group = Group.of(self.world)
        group.calls.append((self, queue, call))
        if not group.depth:
            group.issue()

    def _buffer(self, call: Call, ptr: int, times: int) -> Any:
        size = call.count * times * TYPES[call.datatype].itemsize
        region = self.world.memory.find(ptr)
        if region is not None and region.device not in (-1, self._device):
            raise NcclError(ARGUMENT, f"{call}: {ptr:#x} is memory of device {region.device}, not of {self._device}")
        return self.world.bytes_at(ptr, size, str(call)).view(TYPES[call.datatype])

    # --- state --------------------------------------------------------------------------------------------------------

    def check_async_error(self) -> None:
        self._check_alive()
        if self._rank in self.world.faults.failed:
            raise NcclError(SYSTEM, self.world.faults.failed[self._rank])

    def abort(self) -> None:
        """Drops what is pending of this communicator, on this rank; its streams go on."""
        with self.world.lock:
            if self._alive:
                self.world.note("abort", rank=self._rank, communicator=self._clique.number)
                self._end()
                for queue in self.world.queues():
                    for op in [each for each in queue.pending if getattr(each, "communicator", None) is self]:
                        queue.pending.remove(op)
                        op.done = True
                self.world.lock.notify_all()

    def destroy(self) -> None:
        """Waits for what is pending of this communicator, on this rank; then it is gone."""
        if self._alive:
            self.world.note("destroy", rank=self._rank, communicator=self._clique.number)
            self.world.drive(lambda: not self._pending(), f"the end of the operations of {self}")
            self._end()

    def device_id(self) -> int:
        self._check_alive()
        return self._device

    def rank_id(self) -> int:
        self._check_alive()
        return self._rank

    def size(self) -> int:
        self._check_alive()
        return self._size

    def _pending(self) -> list[Any]:
        queues = self.world.queues()
        return [op for queue in queues for op in queue.pending if getattr(op, "communicator", None) is self]

    def _end(self) -> None:
        with self.world.lock:
            self._alive = False
            self.world.communicators.remove(self)

    def _check_alive(self) -> None:
        if not self._alive:
            raise NcclError(ARGUMENT, f"{self} was aborted or destroyed")


class Group:
    """The calls of a thread between `groupStart` and `groupEnd`, or the one call outside of them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.depth = 0
        self.calls: list[tuple[NcclCommunicator, Queue, Call]] = []

    @classmethod
    def of(cls, world: World) -> Group:
        """The calling thread's."""
        return world.mine("group", lambda: cls(world))

    def issue(self) -> None:
        """All calls of one communicator become one operation."""
        calls, self.calls = self.calls, []
        with self._world.lock:
            for communicator in dict.fromkeys(each for each, _, _ in calls):
                mine = [(queue, call) for each, queue, call in calls if each is communicator]
                communicator._check_alive()
                if len({queue for queue, _ in mine}) > 1:
                    raise NcclError(USAGE, "the stand-in wants one stream for a communicator's calls in a group")
                op = GroupOp(communicator, communicator._clique, [call for _, call in mine])
                verb = str(mine[0][1].kind) if len(mine) == 1 else "group"
                told = [call.told() for _, call in mine]
                details = told[0] if len(mine) == 1 else {"calls": told}
                who = {"rank": communicator._rank, "communicator": communicator._clique.number}
                self._world.issue(mine[0][0], op, verb, **who, **details)


class Nccl:
    """The module's functions and constants."""

    NCCL_SUM, NCCL_PROD, NCCL_MAX, NCCL_MIN, NCCL_AVG = range(5)
    NCCL_INT8, NCCL_UINT8, NCCL_INT32, NCCL_UINT32, NCCL_INT64, NCCL_UINT64 = range(6)
    NCCL_FLOAT16, NCCL_FLOAT32, NCCL_FLOAT64, NCCL_BFLOAT16 = range(6, 10)
    NCCL_CHAR, NCCL_INT, NCCL_HALF, NCCL_FLOAT, NCCL_DOUBLE = 0, 2, 6, 7, 8
    available = True
    NcclError = NcclError

    def __init__(self, world: World) -> None:
        self._world = world
        self._ids = itertools.count(1)

    def get_version(self) -> int:
        return self._world.nccl_version

    def get_build_version(self) -> int:
        return self._world.nccl_version

    def get_unique_id(self) -> bytes:
        return next(self._ids).to_bytes(128, "little")

    def groupStart(self) -> None:
        Group.of(self._world).depth += 1

    def groupEnd(self) -> None:
        group = Group.of(self._world)
        if not group.depth:
            raise NcclError(USAGE, "groupEnd without groupStart")
        group.depth -= 1
        if not group.depth:
            group.issue()
