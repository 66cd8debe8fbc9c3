"""What recording for ``workbench.timeline()`` costs: ``mpiexec -n 2 python benchmarks/recording.py``.

The same training step with and without the recorder, in turns, round by round in the other order; a round's ratio
compares neighbours, so a machine that slows down slows both. Two models: the convolutional network of the first lesson,
and one of 100 narrow layers, 200 small tensors, which has as much to record as there is to compute. Ratios are of wall
time and of CPU time (all threads of all ranks), medians with quartiles; what is above 1 is the cost. On a busy machine
they are noise; ``recorder_us`` is not: what the recorder's calls take for all tensors in one batch, on rank 0, alone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import workbench.torch as hvd
from workbench.core.handle import Handle
from workbench.core.messages import Kind, Request, Response
from workbench.core.pending import Entry
from workbench.job import api
from workbench.job.context import HOLDER
from workbench.runtime.trace.recorder import Recorder


def main() -> None:
    """Measure on all ranks; rank 0 prints a JSON line for each model."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--steps", type=int, default=1, help="of one round, with and without each")
    args = parser.parse_args()
    torch.set_num_threads(1)
    hvd.init()
    for name, make in {"lesson": lesson, "deep": deep}.items():
        step, tensors = make()
        measure(step, 10, True)
        pairs = [both(step, args.steps, first=bool(i % 2)) for i in range(args.rounds)]
        report = {"model": name, "ranks": hvd.size(), "tensors": tensors, "rounds": args.rounds, "steps": args.steps}
        for i, clock in enumerate(("wall", "cpu")):
            report[f"{clock}_ms_per_step_without"] = round(statistics.median(off[i] for _, off in pairs) * 1e3, 3)
            report[f"{clock}_ratio"] = quartiles([on[i] / off[i] for on, off in pairs])
        report["recorder_us"] = round(recorder_us(tensors), 1)
        if hvd.rank() == 0:
            print(json.dumps(report), flush=True)


def lesson() -> tuple[Callable[[], None], int]:
    """The first lesson's network on digits, 72 images per rank."""
    layers = [layer for i in range(3) for layer in (nn.Conv2d(64 if i else 1, 64, 3, padding=1), nn.ReLU())]
    model = nn.Sequential(*layers, nn.AvgPool2d(4), nn.Flatten(), nn.Linear(256, 10))
    return training(model, torch.randn(72, 1, 8, 8))


def deep() -> tuple[Callable[[], None], int]:
    """100 layers of 64 units: 200 tensors, 72 rows per rank."""
    layers = [layer for _ in range(99) for layer in (nn.Linear(64, 64), nn.ReLU())]
    return training(nn.Sequential(*layers, nn.Linear(64, 10)), torch.randn(72, 64))


def training(model: nn.Module, x: torch.Tensor) -> tuple[Callable[[], None], int]:
    """A training step, and how many gradients travel in it."""
    y = torch.randint(0, 10, (len(x),))
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(sgd, named_parameters=model.named_parameters())

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    return step, len(list(model.parameters()))


def both(step: Callable[[], None], steps: int, first: bool) -> tuple[tuple[float, float], tuple[float, float]]:
    """With the recorder and without, neighbours in time."""
    times = {on: measure(step, steps, on) for on in (first, not first)}
    return times[True], times[False]


def measure(step: Callable[[], None], steps: int, on: bool) -> tuple[float, float]:
    """Seconds per step, (wall, CPU of all ranks)."""
    HOLDER.get().timeline.recorder.on = on
    hvd.barrier()
    wall, cpu = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    mine = np.array([time.perf_counter() - wall, time.process_time() - cpu]) / steps
    everyone = api.allgather(mine[None])
    return float(everyone[:, 0].max()), float(everyone[:, 1].sum())


def recorder_us(tensors: int) -> float:
    """The recorder's part in one batch, without anything around it; the best of many."""
    responses = [Response(f"allreduce.{i}", Kind.ALLREDUCE, "float32", (64, 64)) for i in range(tensors)]
    entries = [Entry(Request(each.name, each.kind), None, None, Handle(each.name)) for each in responses]
    recorder, seconds = Recorder(), []
    for _ in range(1000):
        start = time.perf_counter()
        for entry in entries:
            entry.submitted = time.perf_counter_ns()
        recorder.announces(entries)
        recorder.completed(1, list(responses))
        recorder.arrived()
        recorder.begins()
        for activity in ("INIT_FUSION_BUFFER", "MEMCPY_IN_FUSION_BUFFER", "MPI_ALLREDUCE", "MEMCPY_OUT_FUSION_BUFFER"):
            recorder.did(activity, time.perf_counter_ns())
        recorder.ended(responses, list(entries))
        seconds.append(time.perf_counter() - start)
    return min(seconds) * 1e6


def quartiles(values: list[float]) -> dict[str, float]:
    """Median and quartiles."""
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": round(middle, 4), "q1": round(low, 4), "q3": round(high, 4)}


if __name__ == "__main__":
    main()
