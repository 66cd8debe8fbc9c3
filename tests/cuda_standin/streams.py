"""Streams, events and devices under cupy's names.

A handle (`ptr`) is a made-up number; 0 is the default stream of the device that is current where it is used. As in
CUDA, an event belongs to the device on which it was made and is recorded on streams of that device only, while any
stream may wait for it.
"""

from __future__ import annotations

import warnings
from typing import Any

from .operations import CUDARuntimeError, Delay, Op, Queue, WaitFor
from .world import World


class Event:
    """A point of a stream: what was issued there before the last `record`. Never recorded, it is done."""

    world: World

    def __init__(self, block: bool = False, disable_timing: bool = False, interprocess: bool = False) -> None:
        if interprocess and not disable_timing:
            raise ValueError("Timing must be disabled for interprocess events")
        self._device = self.world.device()
        self._point: Op | None = None
        self.ptr = next(self.world.handles)
        self.world.events[self.ptr] = self

    def record(self, stream: Any = None) -> None:
        queue = (self.world.current() if stream is None else stream).queue
        if queue.device != self._device:
            raise CUDARuntimeError(
                f"cudaErrorInvalidResourceHandle: an event of device {self._device} cannot be recorded on {queue}"
            )
        # The point must not be replaced by what is not yet in the queue: another thread may wait for the event.
        with self.world.lock:
            point = Op(f"event {self.ptr:#x}")
            self._point = point
            self.world.issue(queue, point, "record", event=self.ptr)

    @property
    def done(self) -> bool:
        return self.world.query(self._reached)

    def synchronize(self) -> None:
        self.world.note("synchronize", event=self.ptr)
        self.world.drive(self._reached, f"event {self.ptr:#x}")

    def _reached(self) -> bool:
        return self._point is None or self._point.done


class BaseStream:
    """What `Stream` and `ExternalStream` have in common."""

    world: World

    def __init__(self, ptr: int, device_id: int) -> None:
        self.ptr = ptr
        self.device_id = device_id

    @property
    def queue(self) -> Queue:
        """The scheduler's side of it (not in cupy)."""
        return self.world.queue(self.ptr, self.device_id if self.device_id >= 0 else None)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BaseStream) and self.ptr == other.ptr

    def __hash__(self) -> int:
        return self.ptr

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ptr} (device {self.device_id})>"

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.ptr

    def __enter__(self) -> BaseStream:
        device = self._check_device()
        streams = self.world.streams()
        self.world.mine("stack", list).append((device, streams.get(device)))
        streams[device] = self
        return self

    def __exit__(self, *_: object) -> None:
        device, before = self.world.mine("stack", list).pop()
        if before is None:
            del self.world.streams()[device]
        else:
            self.world.streams()[device] = before

    def use(self) -> BaseStream:
        self.world.streams()[self._check_device()] = self
        return self

    def record(self, event: Event | None = None) -> Event:
        event = self.world.cupy.cuda.Event() if event is None else event
        event.record(self)
        return event

    def wait_event(self, event: Event) -> None:
        label = f"wait for event {event.ptr:#x}"
        with self.world.lock:
            self.world.issue(self.queue, WaitFor(label, event._point), "wait_event", event=event.ptr)

    @property
    def done(self) -> bool:
        queue = self.queue
        return self.world.query(lambda: not queue.busy())

    def synchronize(self) -> None:
        self.world.finish(self.queue)

    def delay(self, turns: int) -> None:
        """Occupies the stream for that many turns of the scheduler (not in cupy)."""
        self.world.issue(self.queue, Delay(turns), "delay", turns=turns)

    def _check_device(self) -> int:
        device, current = self.device_id, self.world.device()
        if device not in (-1, current):
            raise RuntimeError(
                f"The device that the stream is created on ({device}) does not match with the current device "
                f"({current})"
            )
        return current


class Stream(BaseStream):
    """A stream of the current device, or with `null` the default stream."""

    def __init__(
        self, null: bool = False, non_blocking: bool = False, ptds: bool = False, priority: int | None = None
    ) -> None:
        if ptds:
            raise NotImplementedError("the stand-in has no per-thread default stream")
        if null:
            super().__init__(0, -1)
            return
        queue = self.world.new_queue(blocking=not non_blocking)
        self._queue = queue
        super().__init__(queue.ptr, queue.device)
        self.world.note("new stream", queue, non_blocking=non_blocking, priority=priority)

    def __del__(self) -> None:
        # What is pending runs on, as in CUDA; the handle is no longer valid.
        queue = getattr(self, "_queue", None)
        if queue is not None:
            queue.destroyed = True

    @classmethod
    def from_external(cls, obj: Any) -> BaseStream:
        """A stream of another library, through the CUDA stream protocol."""
        version, ptr = obj.__cuda_stream__()
        if version != 0:
            raise ValueError(f"__cuda_stream__() returned unsupported version {version}, only version 0 is supported")
        stream = cls.__new__(cls)
        BaseStream.__init__(stream, ptr, cls.world.device())
        stream._foreign = obj
        return stream


class ExternalStream(BaseStream):
    """A stream given by its handle. Deprecated since cupy 14, which says so as this does."""

    def __init__(self, ptr: int, device_id: int = -1) -> None:
        warnings.warn(
            "ExternalStream is deprecated. Use Stream.from_external() instead", DeprecationWarning, stacklevel=2
        )
        super().__init__(ptr, device_id)


class Device:
    """A device, by default the calling thread's current one."""

    world: World

    def __init__(self, device: Any = None) -> None:
        self.id = self.world.device() if device is None else int(device)

    def __int__(self) -> int:
        return self.id

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and self.id == other.id

    def __hash__(self) -> int:
        return self.id

    def __repr__(self) -> str:
        return f"<CUDA Device {self.id}>"

    def __enter__(self) -> Device:
        self.world.mine("devices", list).append(self.world.device())
        self.use()
        return self

    def __exit__(self, *_: object) -> None:
        self.world.set_device(self.world.mine("devices", list).pop())

    def use(self) -> None:
        self.world.set_device(self.id)

    def synchronize(self) -> None:
        self.world.note("synchronize", device_id=self.id)
        with self.world.lock:
            last = [queue.pending[-1] for queue in self.world.queues() if queue.device == self.id and queue.pending]
        self.world.drive(lambda: all(op.done for op in last), f"the end of all streams of device {self.id}")

    @property
    def compute_capability(self) -> str:
        return "90"
