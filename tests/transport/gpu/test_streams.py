"""Which stream waits for which, and when: right for every order in which the streams may run, and no wait too many.

The rounds below are played on made-up GPUs whose streams run late, in random order. What each rank submits, and what
must come out, follows from the number of the round; how late its streams are, and where it uses the results, is its
own affair.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from gpu_world import WAYS, begin, made_up, ranks, run, slow_bus
from thorough import once_more

import workbench as hvd
from workbench.core.messages import Kind
from workbench.transport.gpu import staged
from workbench.transport.gpu.aware_mpi import AwareLink
from workbench.transport.gpu.device import Arrival, Gpu

N, ROUNDS, SEEDS = 2, 12, 28  # 336 rounds each way; 12 where thorough tests do not run

pytestmark = pytest.mark.long


def given(rank: int, number: int, length: int) -> np.ndarray:
    """What a rank submits in a round: whole numbers, which no order of adding rounds."""
    return np.arange(length, dtype=np.float32) * (rank + 1) + number


@dataclass
class Player:
    """One rank.

    Args:
        seed: alike on all ranks.

    Attributes:
        later: stream, array, what it must hold: looked at when nothing is left to do but to look.
    """

    seed: int
    later: list[tuple[Any, Any, np.ndarray]] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        import cupy

        self.cupy = cupy
        self.alike, self.own = random.Random(self.seed), random.Random(f"{self.seed} {hvd.rank()}")
        self.streams = [cupy.cuda.Stream.null, *(cupy.cuda.Stream(non_blocking=True) for _ in range(2))]

    def play(self) -> list[str]:
        """All rounds; what was wrong."""
        for number in range(ROUNDS):
            kind = self.alike.choice([self.late, self.batches, self.overwrites, self.drops, self.gathers, self.casts])
            stream = self.own.choice(self.streams)
            with stream:
                kind(number, stream)
            if self.alike.random() < 0.3:
                self.look()
        hvd.barrier()
        self.look()
        self.cupy.cuda.Device().synchronize()
        return self.wrong

    def look(self) -> None:
        """Compare what has come out."""
        for stream, array, wanted in self.later:
            with stream:
                got = array.get()
            if not np.array_equal(got, wanted):
                self.wrong.append(f"rank {hvd.rank()}: {got} instead of {wanted}")
        self.later.clear()
        self.kept.clear()

    def length(self, number: int) -> int:
        """Ever longer, so that the engine's memory has to grow."""
        return 1 + self.alike.randrange(8) + 5 * number

    def made(self, number: int, length: int, stream: Any) -> Any:
        """A tensor that will hold :func:`given`, when its stream gets there."""
        half = self.cupy.asarray(given(hvd.rank(), number, length) / 2)
        stream.delay(1 + self.own.randrange(12))
        return half * 2

    def uses(self, handles: Sequence[Any], wanted: Sequence[np.ndarray], stream: Any) -> None:
        """Wait, and use the results on the same stream or on another."""
        stream = self.own.choice([stream, stream, *self.streams])
        with stream:
            results = [handle.wait() for handle in handles]
            results = [result[0] if isinstance(result, tuple) else result for result in results]
            factor = self.own.choice([1, 3])  # looked at as it is later on, or used at once
            used = [array if factor == 1 else array * factor for array in results]
            self.later += [(stream, array, right * factor) for array, right in zip(used, wanted, strict=True)]
            self.kept += results  # its memory is in the order of another stream, perhaps: that is the user's affair

    # --- the rounds -------------------------------------------------------------------------------------

    def late(self, number: int, stream: Any) -> None:
        """The tensor is made late, and dropped at once."""
        length = self.length(number)
        handle = hvd.allreduce_async(self.made(number, length, stream), f"late {number}", op=hvd.Sum)
        self.uses([handle], [sum(given(rank, number, length) for rank in range(N))], stream)

    def batches(self, number: int, stream: Any) -> None:
        """Batches back to back, through the same fusion buffer; their tensors come from several streams."""
        handles, wanted = [], []
        for batch in range(2):
            lengths = [self.length(number) for _ in range(2)]
            for i, length in enumerate(lengths):
                with self.own.choice(self.streams) as other:
                    tensor = self.made(number + i, length, other)
                    handles.append(hvd.allreduce_async(tensor, f"batch {number} {batch} {i}", op=hvd.Average))
                wanted.append(sum(given(rank, number + i, length) for rank in range(N)) / np.float32(N))
        self.uses(handles, wanted, stream)

    def overwrites(self, number: int, stream: Any) -> None:
        """The tensor is overwritten as soon as the handle says that it is free."""
        length = self.length(number)
        tensor = self.made(number, length, stream)
        handle = hvd.allreduce_async(tensor, f"overwrites {number}", op=hvd.Sum)
        handle.wait()
        tensor[...] = -1
        self.uses([handle], [sum(given(rank, number, length) for rank in range(N))], stream)

    def drops(self, number: int, stream: Any) -> None:
        """Nobody wants the result."""
        for i, kind in enumerate((Kind.ALLGATHER, Kind.REDUCESCATTER)):
            begin(kind, self.made(number, 2 * self.length(number), stream), f"drops {number} {i}")
            hvd.allreduce_async(self.made(number, self.length(number), stream), f"drops, too {number} {i}")

    def gathers(self, number: int, stream: Any) -> None:
        """The engine makes memory for the result while the caller's stream goes on to use and free other memory."""
        length, me = 2 * self.length(number), hvd.rank()
        parts = [given(rank, number, length) for rank in range(N)]
        kind = self.alike.choice([Kind.ALLGATHER, Kind.ALLTOALL, Kind.REDUCESCATTER])
        wanted = {
            Kind.ALLGATHER: lambda: np.concatenate(parts),
            Kind.ALLTOALL: lambda: np.concatenate([np.split(part, N)[me] for part in parts]),
            Kind.REDUCESCATTER: lambda: np.split(sum(parts), N)[me],
        }[kind]()
        fields = {"op": hvd.Sum} if kind is Kind.REDUCESCATTER else {}
        handle = begin(kind, self.made(number, length, stream), f"gathers {number}", **fields)
        other = self.cupy.zeros(length, np.float32) + number
        stream.delay(25)
        self.later.append((stream, other * 2, np.full(length, 2 * number, np.float32)))
        del other
        self.uses([handle], [wanted], stream)

    def casts(self, number: int, stream: Any) -> None:
        """Sums, and after each of them a broadcast of something else, as long, so through the same memory."""
        for i in range(2):
            length, root = self.length(number), self.alike.randrange(N)
            first = hvd.allreduce_async(self.made(number, length, stream), f"casts {number} {i}", op=hvd.Sum)
            second = begin(Kind.BROADCAST, self.made(number, length, stream), f"casts, too {number} {i}", root=root)
            wanted = [sum(given(rank, number, length) for rank in range(N)), given(root, number, length)]
            self.uses([first, second], wanted, stream)


def wrong(seed: int, way: str) -> list[str]:
    """What goes wrong in the rounds of one seed."""
    with made_up(N, way, seed=seed) as world, pytest.MonkeyPatch.context() as patch:
        slow_bus(patch)
        try:
            found = [each for rank in ranks(world, N, lambda: Player(seed).play()) for each in rank]
            world.check_over()
        except (RuntimeError, AssertionError) as error:
            return [str(error)]
    return found


@pytest.mark.parametrize("seeds", [range(1), once_more(range(1, SEEDS))], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_the_numbers_are_right_whatever_the_order(way: str, seeds: range) -> None:
    """In every round of every seed; nothing is left in flight, and no freed memory is read or written."""
    assert {seed: found for seed in seeds if (found := wrong(seed, way))} == {}


# --- every wait is needed -------------------------------------------------------------------------------


class Without:
    """Somebody else's object, one of whose methods does nothing."""

    def __init__(self, whole: Any, missing: str) -> None:
        self._whole, self._missing = whole, missing

    def __getattr__(self, name: str) -> Any:
        return (lambda *_: None) if name == self._missing else getattr(self._whole, name)


def without(patch: pytest.MonkeyPatch, where: type, method: str, attribute: str, missing: str) -> None:
    """Within ``where.method``, ``self.attribute.missing()`` does nothing."""
    real = getattr(where, method)

    def mutant(self: Any, *args: Any) -> Any:
        whole = getattr(self, attribute)
        setattr(self, attribute, Without(whole, missing))
        try:
            return real(self, *args)
        finally:
            setattr(self, attribute, whole)

    patch.setattr(where, method, mutant)


def no_ready(patch: pytest.MonkeyPatch) -> None:
    """1: our stream does not wait for what makes the tensors."""
    real = Gpu.arrive

    def arrive(self: Gpu, callers: Any) -> list[Arrival]:
        arrivals = real(self, callers)
        with self.device:
            for each in arrivals:
                each.ready = self._cupy.cuda.Event()  # never recorded
        return arrivals

    patch.setattr(Gpu, "arrive", arrive)


def no_join(patch: pytest.MonkeyPatch) -> None:
    """2: whoever uses the results does not wait for our stream."""
    patch.setattr(Arrival, "join", lambda self: None)


def no_order_of_new_memory(patch: pytest.MonkeyPatch) -> None:
    """3: our stream writes into new memory before the caller's stream has got there."""
    without(patch, Gpu, "empty", "stream", "wait_event")


def no_tensors_kept(patch: pytest.MonkeyPatch) -> None:
    """4: what was submitted is let go before our stream has come to it."""
    real = Gpu.using
    patch.setattr(Gpu, "using", lambda self, arrivals, arrays: real(self, arrivals, []))


def no_results_kept(patch: pytest.MonkeyPatch) -> None:
    """4: what :meth:`Gpu.empty` has made is let go before our stream has come to it."""
    real = Gpu.empty

    def empty(self: Gpu, *args: Any) -> Any:
        array = real(self, *args)
        self._keep.pop()
        return array

    patch.setattr(Gpu, "empty", empty)


def no_wait_for_the_fetch(patch: pytest.MonkeyPatch) -> None:
    """The host reduces what it has not got yet."""
    without(patch, staged.StagedCollectives, "_copy_here", "_gpu", "finish")


def no_wait_before_growth(patch: pytest.MonkeyPatch) -> None:
    """Pinned memory is given back while a result is on its way out of it."""
    without(patch, staged._Pinned, "like", "_gpu", "finish")


def no_wait_before_a_broadcast(patch: pytest.MonkeyPatch) -> None:
    """The host writes into pinned memory while a result is on its way out of it."""
    real = staged.StagedCollectives.broadcast

    def broadcast(self: staged.StagedCollectives, array: Any, root: int, source: Any = None) -> Any:
        whole, self._gpu = self._gpu, self._gpu if self._rank == root else Without(self._gpu, "finish")
        try:
            return real(self, array, root, source)
        finally:
            self._gpu = whole

    patch.setattr(staged.StagedCollectives, "broadcast", broadcast)


def no_wait_before_a_message(patch: pytest.MonkeyPatch) -> None:
    """MPI sends what is not there yet."""
    without(patch, AwareLink, "sendrecv", "_gpu", "finish")


EVERYWHERE = [no_ready, no_join, no_order_of_new_memory, no_tensors_kept, no_results_kept]
MUTANTS = {
    "nccl": EVERYWHERE,
    "staged": [*EVERYWHERE, no_wait_for_the_fetch, no_wait_before_growth, no_wait_before_a_broadcast],
    "mpi": [*EVERYWHERE, no_wait_before_a_message],
}


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("way", "mutate"),
    [
        pytest.param(
            way,
            each,
            id=f"{way}-{each.__name__}",
            marks=() if way == "staged" or each not in EVERYWHERE else pytest.mark.thorough,
        )
        for way, mutants in MUTANTS.items()
        for each in mutants
    ],
)
def test_every_wait_is_needed(way: str, mutate: Callable[[pytest.MonkeyPatch], None]) -> None:
    """Without one of them the same rounds go wrong, for one of the first seeds: numbers, or foreign memory."""
    with pytest.MonkeyPatch.context() as patch:
        mutate(patch)
        found = next(filter(None, (wrong(seed, way) for seed in range(2 * SEEDS))), ["nothing went wrong"])
    assert re.search("instead of|written after the free|was freed before this call", "\n".join(found)), found


# --- who waits ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", WAYS)
def test_a_thread_that_has_another_gpu_current_may_wait(way: str) -> None:
    """What it then does on the rank's GPU comes after the result."""

    def on_another_thread(handle: Any, device: Any) -> list[float]:
        result = handle.wait()  # here GPU 0 is current, as in every new thread
        with device:
            return (result * 2).tolist()

    def rank() -> list[float]:
        import cupy

        with cupy.cuda.Stream(non_blocking=True) as stream:
            tensor = cupy.ones(3, np.float32)
            stream.delay(30)
            handle = hvd.allreduce_async(tensor * 2, op=hvd.Sum)
        with ThreadPoolExecutor(1) as pool:
            return pool.submit(on_another_thread, handle, cupy.cuda.Device()).result()

    for seed in range(10):
        assert run(N, rank, way, seed=seed)[0] == [[8.0] * 3] * N
