"""Device memory that is host memory: real addresses, garbage where nothing was written, poison where it was freed.

A block's bytes stay mapped for as long as the world lives, and no address is given twice. So an operation that comes
after the free reads poison, or writes where `World.check_over` finds it; it never crashes the tests.
"""

from __future__ import annotations

import ctypes
import weakref
from bisect import bisect_right, insort
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .operations import CUDARuntimeError, Poison, Queue

if TYPE_CHECKING:
    from .world import World

ALIGNMENT = 512
# Every floating-point type reads them as NaN, bfloat16 too; whoever meets them in a failing test knows which it was.
GARBAGE, POISON = 0xFFFA, 0xFFFD
Bytes = NDArray[np.uint8]


def address(array: NDArray[Any]) -> int:
    """Where the array's first element lies."""
    return int(array.__array_interface__["data"][0])


def spoil(content: Bytes, pattern: int) -> None:
    """Overwrites all bytes."""
    even = len(content) // 2 * 2
    content[:even].view(np.uint16).fill(pattern)
    content[even:] = pattern >> 8


def raw_bytes(ptr: int, size: int) -> Bytes:
    """The bytes at an address, unchecked."""
    return np.frombuffer((ctypes.c_uint8 * size).from_address(ptr), np.uint8) if size else np.empty(0, np.uint8)


@dataclass(order=True)
class Region:
    """A block of the world's: where it begins and ends, and what it is. `device` −1 means pinned host memory.

    `poisoned`: it was freed, and the stream that it belonged to has got there.
    """

    start: int
    end: int = field(compare=False)
    device: int = field(compare=False)
    content: Bytes = field(compare=False, repr=False)
    freed: bool = field(default=False, compare=False)
    poisoned: bool = field(default=False, compare=False)

    def poison(self) -> None:
        """From now on it is somebody else's."""
        spoil(self.content, POISON)
        self.poisoned = True

    def trespassed(self) -> bool:
        """Somebody wrote here after it had become somebody else's."""
        even = len(self.content) // 2 * 2
        return self.poisoned and bool((self.content[:even].view(np.uint16) != POISON).any())


class Memory:
    """All blocks of a world, and those that Python has let go since the scheduler last looked."""

    def __init__(self) -> None:
        self.regions: list[Region] = []
        self.live: weakref.WeakSet[Allocation] = weakref.WeakSet()
        # Finalizers run anywhere, even inside the scheduler: they only leave word here.
        self.let_go: deque[tuple[Region, Queue]] = deque()

    def block(self, size: int, device: int) -> Region:
        """Maps a new block, filled with garbage."""
        whole = np.empty(size + ALIGNMENT, np.uint8)
        skip = -address(whole) % ALIGNMENT
        content = whole[skip : skip + size]
        spoil(content, GARBAGE)
        region = Region(address(content), address(content) + size, device, content)
        insort(self.regions, region)
        return region

    def find(self, ptr: int) -> Region | None:
        """The block that an address belongs to; None where it is not the world's."""
        at = bisect_right(self.regions, ptr, key=lambda region: region.start) - 1
        region = self.regions[at] if at >= 0 else None
        return region if region is not None and ptr < region.end else None

    def at(self, ptr: int, size: int, *, what: str) -> Bytes:
        """The bytes of a call's argument.

        Raises:
            CUDARuntimeError: they run past the end of their block, or were freed before the call.
        """
        region = self.find(ptr) if size else None
        if region is not None and region.freed:
            raise CUDARuntimeError(f"cudaErrorIllegalAddress: {what}: {ptr:#x} was freed before this call")
        if region is not None and ptr + size > region.end:
            past = ptr + size - region.end
            raise CUDARuntimeError(f"cudaErrorIllegalAddress: {what}: {size} bytes at {ptr:#x}, {past} past the block")
        if size and not ptr:
            raise CUDARuntimeError(f"cudaErrorInvalidValue: {what}: {size} bytes at address 0")
        return raw_bytes(ptr, size)

    def pinned(self, ptr: int) -> bool:
        """The address is pinned host memory, so the device copies from and to it on its own."""
        region = self.find(ptr)
        return region is not None and region.device < 0


class Allocation:
    """Device memory from the pool of the stream that is current when it is made (cupy's `Memory`).

    cupy's pool is one per stream: a freed block goes to whoever allocates next *on that stream*. So the block is
    poisoned as soon as the work is done that its own stream had pending at the free: at once where there is none. No
    other stream is waited for; work of theirs that comes later finds poison.

    And a new block is an old one of that stream, whose last use may be what the stream has pending now: until the
    stream has got there, what others write into the block is lost.
    """

    def __init__(self, world: World, size: int) -> None:
        queue = world.current().queue
        self.size, self.device_id = size, queue.device
        self.ptr, self.content = 0, np.empty(0, np.uint8)  # cupy's address of no bytes
        if size:
            with world.lock:
                region = world.memory.block(size, queue.device)
                world.memory.live.add(self)
                if queue.pending:
                    content = region.content
                    world._append(queue, Poison("the last use of new memory", lambda: spoil(content, GARBAGE)))
            self.ptr, self.content = region.start, region.content
            weakref.finalize(self, world.memory.let_go.append, (region, queue)).atexit = False


class UnownedMemory:
    """Memory of someone else: a framework's tensor. `owner` lives as long as this does."""

    world: World

    def __init__(self, ptr: int, size: int, owner: object, device_id: int = -1) -> None:
        self.ptr, self.size, self._owner = ptr, size, owner
        region = self.world.memory.find(ptr)
        known = region.device if region is not None else self.world.device()
        self.device_id = known if device_id < 0 else device_id
        self.content = raw_bytes(ptr, size)


class MemoryPointer:
    """A place in device memory. It keeps the memory alive."""

    world: World

    def __init__(self, mem: Any, offset: int) -> None:
        self.mem = mem
        self.ptr: int = mem.ptr + offset
        self.device_id: int = mem.device_id

    @property
    def device(self) -> Any:
        return self.world.cupy.cuda.Device(self.device_id)

    def __int__(self) -> int:
        return self.ptr

    def __add__(self, offset: int) -> MemoryPointer:
        return type(self)(self.mem, self.ptr - self.mem.ptr + offset)

    def copy_from_device_async(self, src: Any, size: int, stream: Any = None) -> None:
        self._copy(self.ptr, int(src), size, 3, stream)

    def copy_from_host_async(self, mem: Any, size: int, stream: Any = None) -> None:
        self._copy(self.ptr, getattr(mem, "value", mem), size, 1, stream)

    def copy_to_host_async(self, mem: Any, size: int, stream: Any = None) -> None:
        self._copy(getattr(mem, "value", mem), self.ptr, size, 2, stream)

    def memset_async(self, value: int, size: int, stream: Any = None) -> None:
        stream = self.world.current() if stream is None else stream
        self.world.cupy.cuda.runtime.memsetAsync(self.ptr, value, size, stream.ptr)

    def _copy(self, dst: int, src: int, size: int, kind: int, stream: Any) -> None:
        stream = self.world.current() if stream is None else stream
        self.world.cupy.cuda.runtime.memcpyAsync(dst, src, size, kind, stream.ptr)


class PinnedMemoryPointer(np.ndarray[Any, Any]):
    """Pinned host memory, for `np.frombuffer`. Freed, it is poisoned at once: cupy's pool gives it to anyone."""

    @classmethod
    def allocate(cls, world: World, size: int) -> PinnedMemoryPointer:
        with world.lock:
            region = world.memory.block(size, device=-1)
        pointer = region.content.view(cls)
        weakref.finalize(pointer, cls._free, region).atexit = False
        return pointer

    @staticmethod
    def _free(region: Region) -> None:
        region.freed = True
        region.poison()

    @property
    def ptr(self) -> int:
        return address(self)

    def size(self) -> int:  # type: ignore[override]  # cupy's is a method
        return self.nbytes
