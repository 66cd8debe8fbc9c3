"""Streams that are late: in how many rounds is a result wrong?

A program that each rank runs. Who makes a tensor is late, or our stream is, or who still reads what lay in the result's
memory before; a rank lets go of what it has submitted, or uses the result on another stream. Delays are kernels that
spin. ``--leave-out`` leaves out one of the four waits of ``transport/gpu/device.py``, and plays the round that needs
it, with long delays: then a result must be wrong. ``--pools`` says from which streams' pools results come.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

import workbench.torch as hvd
from workbench.job.context import HOLDER
from workbench.transport.gpu.device import Arrival, Gpu

LENGTH = 300_001  # odd, and large enough for torch to give it a block of its own
CYCLES_PER_MS = 1_500_000  # about, on today's GPUs
LONG_MS, SHORT_MS, ROUNDS = 40.0, 0.3, 5  # a long delay is longer than anything that Python does meanwhile
WAITS = ("nothing", "ready", "done", "memory", "keep")


class Player:
    """One rank's rounds.

    Args:
        device: its GPU.
        seed: which rounds are played; alike on all ranks.
    """

    def __init__(self, device: torch.device, seed: int = 0) -> None:
        gpu = HOLDER.get().sets.gpu
        self.device, self.n = device, hvd.size()
        self.alike, self.own = random.Random(seed), random.Random(f"{seed} {hvd.rank()}")
        self.ours = torch.cuda.ExternalStream(gpu.stream.ptr, device=device)
        self.caller, self.other = torch.cuda.Stream(device), torch.cuda.Stream(device)
        self.delay_ms, self.number, self.found = 0.0, 0, list[torch.Tensor]()

    def play(self, rounds: int, kinds: Sequence[Callable[[float], None]]) -> int:
        """So many rounds; in how many a result was wrong."""
        self.found.clear()
        for _ in range(rounds):
            self.number += 1
            self.alike.choice(kinds)(float(self.number % 997))
        torch.cuda.synchronize()
        return sum(bool(each.item()) for each in self.found)

    def sleep(self) -> None:
        """Hold the current stream up, in ordinary rounds each time for another while, or not."""
        part = 1.0 if self.delay_ms >= LONG_MS else self.own.choice((0.0, self.own.random(), 1.0))
        if cycles := int(part * self.delay_ms * CYCLES_PER_MS):
            torch.cuda._sleep(cycles)

    def look(self, got: torch.Tensor, wanted: float) -> None:
        """Compare, in the order of the current stream."""
        got.record_stream(torch.cuda.current_stream())
        self.found.append((got != wanted).any())

    def full(self, value: float, length: int = LENGTH) -> torch.Tensor:
        """New memory."""
        return torch.full((length,), value, device=self.device)

    def total(self, value: float) -> float:
        """The sum of what the ranks give: once the value, twice, and so on."""
        return value * self.n * (self.n + 1) / 2

    def sum_async(self, x: torch.Tensor) -> Any:
        """Into new memory."""
        return hvd.allreduce_async(x, op=hvd.Sum, name=f"round {self.number}")

    # --- rounds; each is played by all ranks ------------------------------------------------------------

    def ready(self, value: float) -> None:
        """Who makes the tensor is late."""
        with torch.cuda.stream(self.caller):
            x = self.full(-1.0)
            self.sleep()
            x.fill_(value * (hvd.rank() + 1))
            self.look(self.sum_async(x).wait(), self.total(value))

    def done(self, value: float) -> None:
        """Our stream is late, and the result is used on another stream than the one that submitted it."""
        with torch.cuda.stream(self.caller):
            x = self.full(value * (hvd.rank() + 1))
            with torch.cuda.stream(self.ours):
                self.sleep()
            handle = self.sum_async(x)
        with torch.cuda.stream(self.other):
            self.look(handle.wait(), self.total(value))

    def memory(self, value: float) -> None:
        """What lay in the result's memory before is still to be read when the result is about to be written."""
        with torch.cuda.stream(self.caller):
            x, old = self.full(value), self.full(-value, LENGTH * self.n)
            kept = torch.empty_like(old)
            handle = hvd.allgather_async(x, name=f"round {self.number}")  # announced when somebody waits for it
            self.sleep()
            kept.copy_(old)
            del old
            self.look(handle.wait(), value)
            self.look(kept, -value)

    def keep(self, value: float) -> None:
        """Nobody but the engine has the input any more, and our stream is late."""
        with torch.cuda.stream(self.caller):
            x = self.full(value * (hvd.rank() + 1))
            with torch.cuda.stream(self.ours):
                self.sleep()
            handle = self.sum_async(x)
            del x
            while not handle.poll():
                time.sleep(1e-4)
            time.sleep(2e-3)  # the engine drops what it held during the call
            self.full(-2.0)  # takes the memory of x, if that is free
            self.look(handle.wait(), self.total(value))

    def in_place(self, value: float) -> None:
        """In place, again and again, without looking; the last sum counts."""
        with torch.cuda.stream(self.caller):
            x = self.full(value)
            for i in range(3):
                self.sleep()
                hvd.allreduce_async_(x, name=f"round {self.number} {i}").wait()
                x += 1.0
            self.look(x, value + 3.0)

    @property
    def kinds(self) -> dict[str, Callable[[float], None]]:
        """All kinds of rounds; the first four by the wait that they need."""
        return {each.__name__: each for each in (self.ready, self.done, self.memory, self.keep, self.in_place)}

    # --- what is played ---------------------------------------------------------------------------------

    def ordinary(self, rounds: int) -> int:
        """Rounds of all kinds, with short delays."""
        self.delay_ms = SHORT_MS
        return self.play(rounds, list(self.kinds.values()))

    def long(self, leave_out: str) -> dict[str, int]:
        """Rounds with long delays; of all kinds, or of the one that needs what is left out."""
        wrong = {}
        for name, kind in self.kinds.items():
            if leave_out in ("nothing", name):
                self.delay_ms = 0.0
                self.play(2, [kind])  # kernels are compiled and loaded now, and not amid a delay
                gc.collect()
                torch.cuda.empty_cache()  # so that memory that becomes free is the only one that fits
                self.delay_ms = LONG_MS
                with left_out(leave_out):
                    wrong[name] = self.play(ROUNDS, [kind])
        return wrong


@contextmanager
def left_out(what: str) -> Iterator[None]:
    """Within the block one wait is not made."""
    kept = Gpu.arrive, Arrival.join, Gpu.empty, Gpu.using
    arrive, _, empty, using = kept

    def never(gpu: Gpu) -> Any:
        """An event that was never recorded: nobody waits for it."""
        with gpu.device:
            return gpu._cupy.cuda.Event(disable_timing=True)

    def early(self: Gpu, callers: Any) -> list[Arrival]:
        arrivals = arrive(self, callers)
        for each in arrivals:
            each.ready = never(self)
        return arrivals

    def hasty(self: Gpu, shape: Any, dtype: Any, arrival: Any) -> Any:
        self._record = lambda stream: never(self)
        try:
            return empty(self, shape, dtype, arrival)
        finally:
            del self._record

    @contextmanager
    def forgetful(self: Gpu, arrivals: Any, arrays: Any) -> Iterator[None]:
        with using(self, arrivals, arrays):
            yield
        for flight in self._flights:
            flight.keep.clear()

    changes = {
        "ready": (Gpu, "arrive", early),
        "done": (Arrival, "join", lambda self: None),
        "memory": (Gpu, "empty", hasty),
        "keep": (Gpu, "using", forgetful),
    }
    if what in changes:
        setattr(*changes[what])
    try:
        yield
    finally:
        Gpu.arrive, Arrival.join, Gpu.empty, Gpu.using = kept


def pools(device: torch.device) -> dict[str, bool]:
    """Does a result's memory come from the pool of the stream that was current at the submission?"""
    found = {}
    for name, stream in {"default": torch.cuda.default_stream(device), "side": torch.cuda.Stream(device)}.items():
        with torch.cuda.stream(stream):
            out = hvd.allgather(torch.ones(LENGTH, device=device))
            at = out.data_ptr()
            segments = [s for s in torch.cuda.memory_snapshot() if s["address"] <= at < s["address"] + s["total_size"]]
            found[name] = [each["stream"] for each in segments] == [stream.cuda_stream]
    return found


def main() -> None:
    """Play on one rank; print what came of it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--leave-out", choices=WAITS, help="play long rounds, without this wait")
    parser.add_argument("--pools", action="store_true")
    args = parser.parse_args()
    os.environ.setdefault("WORKBENCH_FUSION_WINDOW_S", "0.01")  # so that what is not waited for is held back
    os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")  # or streams of one connection wait for each other
    hvd.init()
    device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
    torch.cuda.set_device(device)
    result: dict[str, Any]
    if args.pools:
        result = pools(device)
    else:
        player = Player(device)
        result = player.long(args.leave_out) if args.leave_out else {"wrong": player.ordinary(args.rounds)}
    hvd.shutdown()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
