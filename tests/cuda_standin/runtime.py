"""`cupy.cuda.runtime`: devices and raw copies."""
# ruff: noqa: N802, N803, N815 — the names are cupy's

from __future__ import annotations

from typing import Any

import numpy as np

from .memory import Bytes, raw_bytes
from .operations import CUDARuntimeError, Op
from .world import World


class Runtime:
    """The functions of the module. Streams and memory are given by number, as in CUDA."""

    memcpyHostToHost, memcpyHostToDevice, memcpyDeviceToHost, memcpyDeviceToDevice, memcpyDefault = range(5)
    CUDARuntimeError = CUDARuntimeError

    def __init__(self, world: World) -> None:
        self._world = world

    def getDeviceCount(self) -> int:
        return len(self._world.defaults)

    def getDevice(self) -> int:
        return self._world.device()

    def setDevice(self, device: int) -> None:
        self._world.set_device(device)

    def getDeviceProperties(self, device: int) -> dict[str, Any]:
        uuid = self._world.uuids[device]
        return {
            "name": b"Stand-in GPU",
            "uuid": uuid,
            "major": 9,
            "minor": 0,
            "pciBusID": self._world.uuids.index(uuid) + 1,
            "pciDeviceID": 0,
            "pciDomainID": 0,
            "multiProcessorCount": 132,
            "totalGlobalMem": 80 << 30,
        }

    def runtimeGetVersion(self) -> int:
        return 13000

    def driverGetVersion(self) -> int:
        return 13000

    def deviceCanAccessPeer(self, device: int, peerDevice: int) -> int:
        return int(device != peerDevice)

    def deviceSynchronize(self) -> None:
        self._world.cupy.cuda.Device().synchronize()

    def streamSynchronize(self, stream: int) -> None:
        self._world.finish(self._world.queue(stream))

    def eventQuery(self, event: int) -> int:
        """0 where the event is reached; 600, cudaErrorNotReady, where it is not; 700 where something went wrong."""
        return 0 if self._world.events[event].done else 700 if self._world.errors else 600

    def memcpyAsync(self, dst: int, src: int, size: int, kind: int, stream: int) -> None:
        """Copies in the order of the stream, as CUDA does.

        From pageable host memory it copies what is there now, to pageable host memory it blocks until it is done. From
        and to pinned memory it does neither: what is there is read, or written, when the stream gets there.
        """
        queue, memory = self._world.queue(stream), self._world.memory
        kinds = {1: "H2D", 2: "D2H", 3: "D2D"}
        if kind not in kinds:
            raise NotImplementedError(f"the stand-in copies to or from devices; kind is {kind}")
        what = f"memcpyAsync {kinds[kind]}"
        pageable = (kind == 1 and not memory.pinned(src)) or (kind == 2 and not memory.pinned(dst))
        to = self._side(dst, size, kind != 2, what)
        origin = self._side(src, size, kind != 1, what)
        if kind == 1 and pageable:
            origin = origin.copy()
        op = Op(f"{what} of {size} bytes", lambda: np.copyto(to, origin))
        self._world.issue(queue, op, "memcpy", kind=kinds[kind], bytes=size, dst=dst, src=src, pageable=pageable)
        if kind == 2 and pageable:
            self._world.drive(lambda: op.done, what)

    def memsetAsync(self, ptr: int, value: int, size: int, stream: int) -> None:
        queue = self._world.queue(stream)
        content = self._side(ptr, size, True, "memsetAsync")
        op = Op(f"memsetAsync of {size} bytes", lambda: content.fill(value & 0xFF))
        self._world.issue(queue, op, "memset", bytes=size, ptr=ptr, value=value)

    def _side(self, ptr: int, size: int, on_device: bool, what: str) -> Bytes:
        """The bytes of one end, which is on a device or on the host. An address of someone else's is believed."""
        region = self._world.memory.find(ptr)
        if region is None:
            return raw_bytes(ptr, size)
        if (region.device >= 0) != on_device:
            place = "the host" if on_device else f"device {region.device}"
            raise CUDARuntimeError(f"cudaErrorInvalidValue: {what}: {ptr:#x} is memory of {place}")
        return self._world.bytes_at(ptr, size, what)
