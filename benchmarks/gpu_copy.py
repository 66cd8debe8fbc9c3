"""Packing and unpacking ResNet-50's gradients on a GPU, against a copy of as many bytes there.

All of it on our stream, in turns. Times are the GPU's own, of calls that stand in its queue before the first begins, so
that Python's part is left out; that one is told beside it. Prints a line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from figures import rotated
from resnet50 import resnet50

sys.path.append(str(Path(__file__).resolve().parent.parent))  # the package is that of this checkout, installed or not

from workbench.transport.gpu.device import Gpu

_DEVICE_TO_DEVICE = 3  # cudaMemcpyKind
_CYCLES_PER_MS = 1_500_000  # about


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    print(json.dumps(measure(parser.parse_args().rounds)), flush=True)


def measure(rounds: int) -> dict[str, Any]:
    """Milliseconds on the GPU of a copy, of packing and of unpacking; on the host, microseconds of the call."""
    import cupy

    gpu = Gpu(0)
    lengths = [param.numel() for param in resnet50().parameters()]
    step = gpu.align // 4
    starts = [sum(-(-n // step) * step for n in lengths[:i]) for i in range(len(lengths))]
    total = starts[-1] + lengths[-1]
    with gpu.device, gpu.stream:
        gradients = [cupy.full(n, 1.0, cupy.float32) for n in lengths]
        buffer, other = cupy.zeros(total, cupy.float32), cupy.zeros(total, cupy.float32)
        pieces = [buffer[start : start + n] for start, n in zip(starts, lengths, strict=True)]
        into, out_of = list(zip(gradients, pieces, strict=True)), list(zip(pieces, gradients, strict=True))
        whole = lambda: gpu.copy_async(other.data.ptr, buffer.data.ptr, buffer.nbytes, _DEVICE_TO_DEVICE)  # noqa: E731
        peers = {"copy": whole, "pack": lambda: gpu.copy(into), "unpack": lambda: gpu.copy(out_of)}
        launches = count_launches(gpu, peers["pack"]), count_launches(gpu, peers["unpack"])
        for peer in peers.values():
            peer()
        gpu.stream.synchronize()
        times: dict[str, list[float]] = {name: [] for name in peers}
        for turn in range(rounds):
            for name in rotated(list(peers), turn):
                times[name].append(queued_ms(gpu, peers[name], 10))
        host = {name: host_us(gpu, peer, 50) for name, peer in peers.items()}
        right = all(bool((each == 1.0).all().item()) for each in (*gradients, *pieces))
    nbytes = 4 * sum(lengths)
    found = {"bytes": nbytes, "gradients": len(lengths), "launches": launches, "right": right}
    return found | {"ms": times, "host_us": host}


def count_launches(gpu: Any, call: Callable[[], None]) -> int:
    """How often the kernel is launched by one call."""
    launched, launch = [], gpu._copy_pieces
    gpu._copy_pieces = lambda *words: (launched.append(1), launch(*words))
    try:
        call()
    finally:
        gpu._copy_pieces = launch
    return len(launched)


def queued_ms(gpu: Any, call: Callable[[], None], repeats: int) -> float:
    """The median time on the GPU of calls that stand in the queue before the first one begins."""
    import cupy

    with torch.cuda.stream(torch.cuda.ExternalStream(gpu.stream.ptr, device=gpu.index)):
        torch.cuda._sleep(20 * _CYCLES_PER_MS)
    pairs = [(cupy.cuda.Event(), cupy.cuda.Event()) for _ in range(repeats)]
    for begin, end in pairs:
        begin.record(gpu.stream)
        call()
        end.record(gpu.stream)
    gpu.stream.synchronize()
    return sorted(cupy.cuda.get_elapsed_time(begin, end) for begin, end in pairs)[repeats // 2]


def host_us(gpu: Any, call: Callable[[], None], repeats: int) -> float:
    """Microseconds of the CPU until a call has been queued."""
    taken = []
    for _ in range(repeats):
        gpu.stream.synchronize()
        begun = time.perf_counter()
        call()
        taken.append(time.perf_counter() - begun)
    return sorted(taken)[repeats // 2] * 1e6


if __name__ == "__main__":
    main()
