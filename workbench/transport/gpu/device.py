"""One GPU as one rank uses it: whose turn is it on which stream?

A GPU does what is queued on a *stream* in order, and nobody waits for it: a framework computes on streams of its own,
and a collective has one of ours, so that it runs beside the computation. Four waits keep that right, all of them made
by streams; the CPU waits for none of them::

    caller's stream   … backward ─● ready                  ┌─ step …
                                  │ 1                      │ 2
    our stream            └──────►╵ pack ─ reduce ─ unpack ● done

1. *ready* is recorded on the caller's stream when a tensor is submitted; ours waits for it before it touches it.
2. *done* is recorded on ours behind the batch. ``handle.wait()`` makes the stream that is current where it is called
   wait for it, and returns at once.
3. Memory for a result is the framework's, in the order of the caller's stream; ours waits until that order has come to
   it, for what lay there before may still be read.
4. Until *done*, a batch keeps all its arrays alive: else a framework would give their memory to somebody else.

Everything of ours on a GPU goes through its one stream, so the fusion buffer needs no wait, and no two communicators
are ever in flight in another order on another rank.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import numpy as np

from workbench.core.backend.base import Array, Backend
from workbench.errors import CollectiveError, DeadlineError
from workbench.transport.gpu import kernels
from workbench.transport.life import Life, nothing
from workbench.transport.polling import poll

Event = Any
_MOST_IN_FLIGHT = 64  # batches; a full launch queue would block a call that cannot be ended
_MOST_TABLES = 64
_END_S = 60.0
_NOT_READY = 600  # cudaErrorNotReady


class Caller(Protocol):
    """What a framework knows of its streams."""

    def stream(self) -> tuple[int, Any]:
        """The address of the stream that is current on the calling thread, and what keeps the stream alive."""

    def empty(self, shape: Sequence[int], dtype: Any, stream: int) -> Array:
        """New memory, to be used in the order of a stream."""


@dataclass(slots=True)
class Arrival:
    """An entry's arrays between two streams; see the picture above.

    Args:
        gpu: where they are.
        caller: supplies the current stream and the allocator.
        stream: the caller's, at the submission: its address.
        owner: keeps that stream alive.
        ready: recorded there.
        done: recorded on ours, behind the batch.
        lost: why the job broke before the GPU had done it.
    """

    gpu: Gpu
    caller: Caller
    stream: int
    owner: Any
    ready: Event
    done: Event = None
    lost: CollectiveError | None = None

    def join(self) -> None:
        """Make the stream that is current on this thread wait until the result is there.

        Raises:
            CollectiveError: it never will be.
        """
        if self.lost is not None:
            raise type(self.lost)(f"{self.lost} The result was being sent between the GPUs, and is lost.")
        if self.done is not None:
            with self.gpu.device:
                self.gpu.external(self.caller.stream()[0]).wait_event(self.done)


@dataclass(slots=True)
class _Flight:
    """A batch that the GPU has not finished."""

    done: Event
    since: float
    keep: list[Any] = field(default_factory=list)
    arrivals: list[Arrival] = field(default_factory=list)


class Gpu:
    """A GPU, and this rank's stream on it. The engine's thread uses it; :meth:`arrive` and ``join`` any thread.

    Args:
        index: among the GPUs that this process sees.
        timeout_s: deadline of one batch.

    Attributes:
        stream: ours.
        tick: called amid a long wait; it may raise to end it.
        watchers: called from time to time while batches are in flight; each raises if something went wrong.
    """

    align = kernels.ALIGN

    def __init__(self, index: int, timeout_s: float = 300.0) -> None:
        import cupy

        self._cupy, self.index, self._timeout_s = cupy, index, timeout_s
        self.tick: Callable[[], None] = nothing
        self.watchers: list[Callable[[], None]] = []
        self._flights: deque[_Flight] = deque()
        self._moved = 0.0  # when one of them was done
        self._tables: dict[bytes, Array] = {}
        self._keep: list[Any] = []  # of the batch that is being queued
        self._abandoned: list[Any] = []
        self.device = cupy.cuda.Device(index)
        with self.device:
            self.stream = cupy.cuda.Stream(non_blocking=True)
            self._copy_pieces = cupy.RawModule(code=kernels.COPY).get_function("copy_pieces")

    # --- any thread ---------------------------------------------------------------------------------

    def external(self, stream: int) -> Any:
        """Somebody else's stream, by its address."""
        return self._cupy.cuda.Stream.from_external(_Borrowed(stream))

    def arrive(self, callers: Sequence[Caller]) -> list[Arrival]:
        """Note where the callers' streams are now, after all that makes their tensors: one event for each stream."""
        found: list[Arrival] = []
        ready: dict[int, Event] = {}
        with self.device:  # its default stream has the address that all default streams have
            for caller in callers:
                stream, owner = caller.stream()
                if stream not in ready:
                    ready[stream] = self._record(self.external(stream))
                found.append(Arrival(self, caller, stream, owner, ready[stream]))
        return found

    def over(self, address: int, shape: Sequence[int], dtype: Any, owner: Any) -> Array:
        """An array over somebody's memory on this GPU, which keeps ``owner`` alive."""
        dtype = np.dtype(dtype)
        nbytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
        memory = self._cupy.cuda.UnownedMemory(address, nbytes, owner, self.index)
        pointer = self._cupy.cuda.MemoryPointer(memory, 0)
        return self._cupy.ndarray(tuple(shape), dtype, pointer)  # type: ignore[no-any-return]

    def _record(self, stream: Any) -> Event:
        with self.device:
            event = self._cupy.cuda.Event(disable_timing=True)
            event.record(stream)
        return event

    # --- the engine's thread: memory ----------------------------------------------------------------

    @contextmanager
    def using(self, arrivals: Sequence[Arrival | None], arrays: Sequence[Array | None]) -> Iterator[None]:
        """What is done in the block is queued on our stream, after what makes the arrays and before what uses them.

        Args:
            arrivals: of the batch's entries.
            arrays: kept until the GPU has done it all.
        """
        while len(self._flights) >= _MOST_IN_FLIGHT:
            self.wait(self._flights[0].done)
            self._land()
        self._keep = list(arrays)
        with self.device, self.stream:
            for ready in {id(each.ready): each.ready for each in arrivals if each}.values():
                self.stream.wait_event(ready)
            try:
                yield
            except BaseException:
                self._abandoned += self._keep  # what is queued already may still use them
                raise
            done = self._record(self.stream)
        for arrival in filter(None, arrivals):
            arrival.done = done
        self._flights.append(_Flight(done, time.monotonic(), self._keep, [each for each in arrivals if each]))
        self._keep = []
        self._land()

    def empty(self, shape: Sequence[int], dtype: Any, arrival: Arrival | None) -> Array:
        """Memory for a result, in the order of the caller's stream; of a batch without a caller, in that of ours."""
        if arrival is None:
            array = self._cupy.empty(tuple(shape), dtype)
        else:
            array = arrival.caller.empty(shape, dtype, arrival.stream)
            self.stream.wait_event(self._record(self.external(arrival.stream)))
        self._keep.append(array)
        return array  # type: ignore[no-any-return]

    def copy(self, pairs: Sequence[tuple[Array | None, Array]]) -> None:
        """Copy arrays, all of them in one launch; None stands for zeros.

        Args:
            pairs: (source, target), contiguous, of the same number of bytes.
        """
        copies = [
            (0 if source is None else address(source), address(target), target.nbytes) for source, target in pairs
        ]
        table = self._table(kernels.pieces(copies))
        if len(table):
            self._copy_pieces((len(table),), (kernels.THREADS,), (table,))

    def copy_async(self, to: int, source: int, nbytes: int, kind: int) -> None:
        """Queue a copy between the host and the GPU on our stream; ``kind`` is CUDA's cudaMemcpyKind."""
        self._cupy.cuda.runtime.memcpyAsync(to, source, nbytes, kind, self.stream.ptr)

    def pinned(self, nbytes: int) -> Any:
        """A buffer on the host, from and to which a GPU copies fastest."""
        return self._cupy.cuda.alloc_pinned_memory(nbytes)

    def _table(self, pieces: Array) -> Array:
        """The kernel's table on the GPU. Steps are alike, so their batches' tables are kept."""
        known = pieces.tobytes()
        table = self._tables.pop(known, None)
        if table is None:
            table = self._cupy.asarray(pieces)
        self._tables[known] = table
        if len(self._tables) > _MOST_TABLES:
            del self._tables[next(iter(self._tables))]
        return table

    # --- the engine's thread: waiting ---------------------------------------------------------------

    def finish(self) -> None:
        """Wait until our stream has done all that is queued on it."""
        self.wait(self._record(self.stream))

    def end(self, timeout_s: float = _END_S) -> None:
        """At the end of the job: as :meth:`finish`, while nobody can tell any more whether the other ranks come."""
        self.tick, self._timeout_s = nothing, min(timeout_s, self._timeout_s)
        self.finish()

    def life(self, subset: Callable[[Sequence[int]], Backend], close: Callable[[bool], None]) -> Life:
        """Of a backend for arrays on this GPU; what it has on the host is not its to end.

        Args:
            subset: makes the backend of a process set.
            close: gives back what the backend has on the GPU.
        """
        return Life(partial(setattr, self, "tick"), subset, close, self.give_up)

    def close(self, clean: bool) -> None:
        """Wait for the GPU at the end of the job, if it will come to an end."""
        if clean:
            self.end()

    def give_up(self, why: CollectiveError) -> None:
        """The job is broken: what has not been done by now has no result, and is about to be aborted."""
        for flight in self._flights:
            for arrival in flight.arrivals:
                arrival.lost = arrival.lost or (None if flight.done.done else why)

    def wait(self, event: Event) -> None:
        """Wait for an event on the CPU: ask, then sleep ever longer.

        Raises:
            DeadlineError: the deadline has passed.
        """
        started = time.monotonic()

        def tick(waited_s: float) -> None:
            self._land()
            self._look(started + waited_s - max(started, self._moved))
            self.tick()

        poll(lambda: self._passed(event), tick)

    def watch(self) -> None:
        """Let go what is done, and look after what is not.

        Raises:
            DeadlineError: a batch has been in flight for too long.
            PeerLostError: NCCL says so.
        """
        self._land()
        if self._flights:
            self._look(time.monotonic() - max(self._flights[0].since, self._moved))

    def _look(self, waited_s: float) -> None:
        for watcher in self.watchers:
            watcher()
        if waited_s > self._timeout_s:
            raise DeadlineError(
                f"The GPU has not finished a batch within {self._timeout_s:g} s (WORKBENCH_DATA_TIMEOUT_S): a rank's "
                "GPU is busy for longer, or hangs."
            )

    def _land(self) -> None:
        while self._flights and self._passed(self._flights[0].done):
            self._flights.popleft()
            self._moved = time.monotonic()  # the next one may have begun only now

    def _passed(self, event: Event) -> bool:
        """Has the GPU come so far? Not ``event.done``, which is False for ever where a kernel has failed."""
        code = int(self._cupy.cuda.runtime.eventQuery(event.ptr))
        if code not in (0, _NOT_READY):
            raise CollectiveError(
                f"GPU {self.index} failed with CUDA's error {code}: an earlier kernel made an invalid access. "
                "CUDA_LAUNCH_BLOCKING=1 shows which one. The process cannot use the GPU any more."
            )
        return code == 0


@dataclass(frozen=True, slots=True)
class _Borrowed:
    """Somebody's stream, in the form in which libraries hand them to each other."""

    address: int

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


def address(array: Any) -> int:
    """Where an array on a GPU begins."""
    return int(array.data.ptr)


class CupyCaller:
    """The caller of whoever submits cupy's own arrays."""

    def stream(self) -> tuple[int, Any]:
        import cupy

        stream = cupy.cuda.get_current_stream()
        return int(stream.ptr), stream

    def empty(self, shape: Sequence[int], dtype: Any, stream: int) -> Array:
        import cupy

        with cupy.cuda.Stream.from_external(_Borrowed(stream)):
            return cupy.empty(tuple(shape), dtype)  # type: ignore[no-any-return]


CUPY = CupyCaller()
