"""A stand-in for cupy, to test on any machine in which ORDER a program gives work to GPUs.

What it is:
    * Device memory is host memory, so numbers are right where the order was right.
    * Nothing runs when it is called. Every stream is a queue; what stands at the heads of the queues runs later, in an
      order that chance (seeded) picks. A program that forgets to wait for an event is wrong for some of the seeds.
    * New memory holds NaN, freed memory is overwritten: a program that lets go of an array too early computes NaN.
    * NCCL's ranks are threads. Their calls happen when all have come to the heads of their streams, so calls in a
      different order on two ranks hang, and the error says who waits for whom.

What it is not: a model of speed, or of what a kernel does with the threads of a block.

Example:
    >>> world = install(monkeypatch, seed=3)
    >>> import cupy
    >>> side = cupy.cuda.Stream(non_blocking=True)
    >>> x = cupy.arange(4, dtype=cupy.float32)
    >>> side.wait_event(cupy.cuda.get_current_stream().record())
    >>> with side:
    ...     x *= 2
    >>> side.synchronize()
    >>> x.get().tolist()
    [0.0, 2.0, 4.0, 6.0]
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest

from . import arrays, kernels, memory, nccl, streams
from .creation import Creation
from .operations import CUDARuntimeError
from .ranks import run_ranks
from .runtime import Runtime
from .world import Faults, Record, World

__all__ = ["CUDARuntimeError", "Faults", "Record", "World", "build", "install", "run_ranks"]


def install(monkeypatch: pytest.MonkeyPatch, **options: Any) -> World:
    """Makes `import cupy` give a new stand-in, for one test.

    Args:
        monkeypatch: pytest's; takes the stand-in away again.
        options: see `build`.
    """
    world = build(**options)
    cuda = world.cupy.cuda
    for module in (world.cupy, cuda, cuda.runtime, cuda.nccl):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return world


def build(
    *,
    devices: int = 2,
    seed: int = 0,
    nccl_version: int = 22809,
    eager: bool = False,
    uuids: Sequence[bytes] | None = None,
) -> World:
    """A stand-in that nobody imports: `world.cupy` is the module.

    Args:
        devices: how many there are.
        seed: of the schedule.
        nccl_version: as NCCL writes it, 22809 for 2.28.9.
        eager: operations run as soon as they can, so mostly when they are issued: a kind machine.
        uuids: 16 bytes for each device; equal ones are the same GPU to NCCL. All different unless given.
    """
    world = World(devices, seed, nccl_version, eager, uuids)

    # A class of its own for every world: cupy's classes are made without naming a machine.
    class Device(streams.Device):
        pass

    class Stream(streams.Stream):
        null: Any = None

    class ExternalStream(streams.ExternalStream):
        pass

    class Event(streams.Event):
        pass

    class MemoryPointer(memory.MemoryPointer):
        pass

    class UnownedMemory(memory.UnownedMemory):
        pass

    class NcclCommunicator(nccl.NcclCommunicator):
        pass

    class RawModule(kernels.RawModule):
        pass

    class ndarray(arrays.ndarray):  # noqa: N801 — cupy's name
        pass

    Device.world = Stream.world = ExternalStream.world = Event.world = world
    MemoryPointer.world = UnownedMemory.world = NcclCommunicator.world = RawModule.world = ndarray.world = world
    Stream.null = Stream(null=True)

    def get_current_stream(device_id: int = -1) -> Any:
        return world.streams().get(world.device() if device_id < 0 else device_id, Stream.null)

    def alloc_pinned_memory(size: int) -> memory.PinnedMemoryPointer:
        return memory.PinnedMemoryPointer.allocate(world, size)

    cuda_names = [Device, Stream, ExternalStream, Event, MemoryPointer, UnownedMemory]
    cuda = _module("cupy.cuda", {each.__name__: each for each in cuda_names})
    cuda.get_current_stream, cuda.alloc_pinned_memory = get_current_stream, alloc_pinned_memory
    cuda.is_available, cuda.get_device_id = lambda: devices > 0, world.device
    cuda.runtime = _module("cupy.cuda.runtime", _names(Runtime(world)))
    cuda.nccl = _module("cupy.cuda.nccl", {**_names(nccl.Nccl(world)), "NcclCommunicator": NcclCommunicator})
    world.cupy = _module("cupy", {**_names(Creation(world, ndarray)), "RawModule": RawModule, "cuda": cuda})
    world.cupy.__version__ = "14.2.0"
    return world


def _names(implementation: object) -> dict[str, Any]:
    return {name: getattr(implementation, name) for name in dir(implementation) if not name.startswith("_")}


def _module(name: str, content: dict[str, Any]) -> Any:
    module = ModuleType(name)
    # So that `importlib.util.find_spec` finds it.
    module.__spec__ = ModuleSpec(name, None)
    module.__dict__.update(content)
    return module
