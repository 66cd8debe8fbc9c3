"""The scheduler of a made-up machine: what was issued runs later, in an order between the streams that chance picks."""

from __future__ import annotations

import gc
import itertools
import random
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .memory import Bytes, Memory
from .operations import CUDARuntimeError, Op, Poison, Queue


@dataclass(frozen=True)
class Record:
    """One call that was issued. `stream` numbers the streams from 1 across devices; 0 is a device's default stream.

    Verbs and their details:
        new stream (non_blocking, priority), record and wait_event (event), delay (turns);
        malloc (ptr, bytes), free (ptr), memset (ptr, value, bytes), memcpy (kind, bytes, dst, src, pageable);
        compute (name, arrays: their addresses), kernel (name, grid, block);
        init, destroy, abort (rank, communicator), and NCCL's calls under their own names (rank, communicator, kind,
        count, datatype, op, root, peer, sent, received), or several as group (rank, communicator, calls);
        synchronize, of an event (event), a device (device_id) or a stream.
    """

    thread: str
    device: int
    stream: int | None
    verb: str
    details: dict[str, Any]


class Faults:
    """What a test lets go wrong. A rank is named by its number inside a communicator, whichever that is."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.failed: dict[int, str] = {}
        self.dead: set[int] = set()

    def fail_async(self, rank: int, error: str = "unhandled system error") -> None:
        """From now on `check_async_error` of this rank's communicators raises, and their operations never end."""
        with self._world.lock:
            self.failed[rank] = error

    def die(self, rank: int) -> None:
        """From now on no operation of this rank comes to any meeting; the others' wait for it until their `abort`."""
        with self._world.lock:
            self.dead.add(rank)

    def of(self, rank: int) -> str:
        """What became of the rank; empty while it is well."""
        return "has failed" if rank in self.failed else "is dead" if rank in self.dead else ""


class World:
    """Devices, streams and what is pending on them.

    Nothing runs by itself. A query (`event.done`) lets a few operations run, a `synchronize` as many as it takes, and
    `run_all` all that can. Which stream's turn it is, chance decides; and some streams are drawn ten or a hundred times
    as often as others, so that an operation may also come very late.
    """

    def __init__(self, devices: int, seed: int, nccl_version: int, eager: bool, uuids: Sequence[bytes] | None) -> None:
        self.random = random.Random(seed)
        self.lock = threading.Condition(threading.RLock())
        self.deadline_s = 10.0
        self.init_timeout_s = 10.0
        self.nccl_version = nccl_version
        self.eager = eager
        self.uuids = list(uuids) if uuids is not None else [bytes([0xD0 + d] * 16) for d in range(devices)]
        if len(self.uuids) != devices:
            raise ValueError(f"{devices} devices, but {len(self.uuids)} uuids")
        self.memory = Memory()
        self.faults = Faults(self)
        self.log: list[Record] = []
        self.errors: list[str] = []
        self.communicators: list[Any] = []
        self.cupy: Any = None
        self._local = threading.local()
        self._numbers = itertools.count()
        self.defaults = [Queue(0, device, 0, None, self._speed()) for device in range(devices)]
        self._by_ptr: dict[int, Queue] = {}
        self.cliques: dict[bytes, Any] = {}
        self.events: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        self.handles = itertools.count(0x9000)

    # --- who is calling -----------------------------------------------------------------------------------------------

    def device(self) -> int:
        """The calling thread's current device."""
        return getattr(self._local, "device", 0)

    def set_device(self, device: int) -> None:
        if not 0 <= device < len(self.defaults):
            raise CUDARuntimeError(f"cudaErrorInvalidDevice: invalid device ordinal {device}")
        self._local.device = device

    def mine(self, name: str, make: Callable[[], Any]) -> Any:
        """The calling thread's own object of that name, made when it is first asked for."""
        if not hasattr(self._local, name):
            setattr(self._local, name, make())
        return getattr(self._local, name)

    def streams(self) -> dict[int, Any]:
        """The calling thread's current stream of each device on which it is not the default stream."""
        return self.mine("streams", dict)

    def current(self) -> Any:
        """The calling thread's current stream, of its current device."""
        return self.streams().get(self.device(), self.cupy.cuda.Stream.null)

    # --- streams and what is issued on them ---------------------------------------------------------------------------

    def new_queue(self, blocking: bool) -> Queue:
        with self.lock:
            number, device = len(self._by_ptr) + 1, self.device()
            default = self.defaults[device] if blocking else None
            queue = Queue(number, device, 0x5000 + 16 * number, default, self._speed())
            self._by_ptr[queue.ptr] = queue
            return queue

    def queue(self, ptr: int, device: int | None = None) -> Queue:
        """The stream of a handle; 0 and 1 are the default stream of `device`, by default the current one."""
        if ptr in (0, 1):
            return self.defaults[self.device() if device is None else device]
        queue = self._by_ptr.get(ptr)
        if queue is None or queue.destroyed:
            raise CUDARuntimeError(f"cudaErrorInvalidResourceHandle: {ptr:#x} is no stream, or one that was destroyed")
        return queue

    def note(self, verb: str, queue: Queue | None = None, /, **details: Any) -> None:
        """Writes into the log."""
        device, stream = (self.device(), None) if queue is None else (queue.device, queue.number)
        self.log.append(Record(threading.current_thread().name, device, stream, verb, details))

    def issue(self, queue: Queue, op: Op, verb: str, /, **details: Any) -> Op:
        """Appends an operation to a stream."""
        with self.lock:
            self._settle_freed()
            self.note(verb, queue, **details)
            self._append(queue, op)
            if self.eager:
                self.run_all()
            self.lock.notify_all()
        return op

    def bytes_at(self, ptr: int, size: int, what: str) -> Bytes:
        """The memory that a call names by its address; see `Memory.at`."""
        with self.lock:
            self._settle_freed()
            return self.memory.at(ptr, size, what=what)

    def _append(self, queue: Queue, op: Op) -> None:
        op.queue, op.number = queue, next(self._numbers)
        queue.pending.append(op)

    def _settle_freed(self) -> None:
        """Poisons what was freed, each block when its own stream has got there."""
        while self.memory.let_go:
            region, queue = self.memory.let_go.popleft()
            region.freed = True
            self.note("free", queue, ptr=region.start)
            if queue.pending:
                self._append(queue, Poison("freed memory", region.poison))
            else:
                region.poison()

    def _speed(self) -> int:
        return self.random.choice((1, 10, 100))

    # --- running ------------------------------------------------------------------------------------------------------

    def queues(self) -> list[Queue]:
        return [*self.defaults, *self._by_ptr.values()]

    def step(self) -> bool:
        """One turn of one stream; false where none can have one."""
        self._settle_freed()
        ready = [queue for queue in self.queues() if queue.pending and not queue.waits_for()]
        if not ready:
            return False
        queue = self.random.choices(ready, [each.speed for each in ready])[0]
        op = queue.pending[0]
        try:
            ended = op.turn()
        except Exception as problem:  # noqa: BLE001 — whatever it is, it is the device's fault now, not this caller's
            self.errors.append(f"{op.label} on {queue}: {problem}")
            ended = True
        if ended:
            op.done, op.work = True, None
            if queue.head() is op:
                queue.pending.popleft()
        return True

    def run_all(self) -> None:
        """Runs whatever can run."""
        with self.lock:
            while self.step():
                pass

    def query(self, reached: Callable[[], bool]) -> bool:
        """Lets a few operations run, then looks; false for ever where something went wrong, as cupy's `done`."""
        with self.lock:
            for _ in range(self.random.randrange(4)):
                self.step()
            return not self.errors and reached()

    def drive(self, reached: Callable[[], bool], what: str) -> None:
        """Lets operations run until it is reached. Other threads may issue some meanwhile.

        Raises:
            RuntimeError: it was not reached in `deadline_s`; the message says what each stream waits for.
        """
        end = time.monotonic() + self.deadline_s
        while True:
            with self.lock:
                self._settle_freed()
                self.raise_errors()
                if reached():
                    self.lock.notify_all()
                    return
                if time.monotonic() > end:
                    raise RuntimeError(f"{what} was not reached in {self.deadline_s} s.\n{self.describe()}")
                if not self.step():
                    self.lock.wait(0.01)

    def finish(self, queue: Queue) -> None:
        """`drive` to the end of what is pending on a stream now; what others issue meanwhile is not waited for."""
        self.note("synchronize", queue)
        with self.lock:
            last = queue.pending[-1] if queue.pending else None
        self.drive(lambda: last is None or last.done, f"the end of {queue}")

    def raise_errors(self) -> None:
        """What went wrong on the device is told to everyone who waits from then on, as CUDA does.

        A test that expects it empties `errors` before `check_over`.
        """
        if self.errors:
            raise CUDARuntimeError("; ".join(self.errors))

    # --- looking at it ------------------------------------------------------------------------------------------------

    def describe(self) -> str:
        """What is pending, a line for each stream."""
        with self.lock:
            lines = [
                f"{queue}: {queue.pending[0].label} waits for {queue.waits_for() or 'its turn'}"
                f" ({len(queue.pending)} pending)"
                for queue in self.queues()
                if queue.pending
            ]
        return "\n".join(lines) or "nothing is pending"

    def check_over(self) -> None:
        """Nothing is left, and nothing went wrong.

        No pending operation, no device memory, no communicator, no error that was not expected, and nothing was written
        into memory that had been freed.
        """
        if self.memory.live:
            gc.collect()
        with self.lock:
            self._settle_freed()
            left = [f"pending: {self.describe()}"] if any(queue.busy() for queue in self.queues()) else []
            left += [f"not freed: {each.size} bytes at {each.ptr:#x}" for each in self.memory.live]
            left += [f"not destroyed: {each}" for each in self.communicators]
            left += [f"error: {each}" for each in self.errors]
            wronged = [region for region in self.memory.regions if region.trespassed()]
            left += [f"written after the free: {each.end - each.start} bytes at {each.start:#x}" for each in wronged]
        assert not left, "\n".join(left)
