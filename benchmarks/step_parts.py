"""Where the time of a training step goes: ``mpiexec -bind-to core -n 2 python benchmarks/step_parts.py``.

Each way to train is timed in turns, some steps at a time: forward, backward (with what begins in it), what is waited
for after it, and the optimizer's own step. Two ways set limits: *copies*, where no rank hears of another, and
*barrier*, the same with a barrier in each step: what the ranks' unequal pace costs everybody. Milliseconds of rank 0,
medians; *of copies* is the speed beside that of the copies in the same round, with quartiles, by the slowest rank.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter
from typing import Any

import peers
import torch
import torch.nn.functional as F
from models import TASKS
from peers import MPI, hvd
from torch import nn
from training import DDPS, LIMIT, OURS, Built, distributed

PARTS = ("forward", "backward", "wait", "update")


def in_buckets(model: nn.Module) -> Built:
    """Ours, with large linear layers that write their gradients to the buckets."""
    return model, distributed(hvd, hvd.write_in_buckets(model), "in buckets")


WAYS: dict[str, Callable[[nn.Module], Built]] = {
    "copies": OURS[LIMIT],
    "barrier": OURS[LIMIT],
    "workbench": OURS["workbench"],
    "write_in_buckets": in_buckets,
    "sharded": OURS["workbench sharded"],
    **DDPS,
}


def main() -> None:
    """Measure on all ranks; rank 0 prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=list(TASKS), default=["cnn", "mlp"])
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS))
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--seconds", type=float, default=0.3, help="of the copies in one round, about")
    given = parser.parse_args()
    comm = peers.start()
    for name in given.models:
        measure(comm, name, ["copies", *(way for way in given.ways if way != "copies")], given.rounds, given.seconds)


def measure(comm: MPI.Intracomm, name: str, ways: list[str], rounds: int, seconds: float) -> None:
    """One model in all ways."""
    x, y = TASKS[name].data(seed=comm.rank)
    built: dict[str, Built] = {}
    for way in ways:
        torch.manual_seed(0)
        built[way] = WAYS[way](TASKS[name].make())

    def step(way: str) -> list[float]:
        model = built[way][0]
        optimizer: Any = built[way][1]
        ours = isinstance(optimizer, hvd.DistributedOptimizer) and way != "sharded"
        times = [perf_counter()]
        optimizer.zero_grad()
        loss: Any = F.cross_entropy(model(x), y)
        times.append(perf_counter())
        loss.backward()
        times.append(perf_counter())
        if way == "barrier":
            comm.Barrier()
        if ours:
            optimizer.synchronize()
        times.append(perf_counter())
        if ours:
            with optimizer.skip_synchronize():
                optimizer.step()
        else:
            optimizer.step()
        times.append(perf_counter())
        return [end - begin for begin, end in pairwise(times)]

    for way in ways:
        for _ in range(5):
            step(way)
    begun = perf_counter()
    step("copies")
    count = comm.bcast(max(1, round(seconds / (perf_counter() - begun))))
    whole: dict[str, list[float]] = {way: [] for way in ways}
    parts: dict[str, list[list[float]]] = {way: [] for way in ways}
    dice = random.Random(1)
    for _ in range(rounds):
        for way in dice.sample(ways, len(ways)):
            comm.Barrier()
            begun = perf_counter()
            found = [step(way) for _ in range(count)]
            whole[way].append(comm.allreduce((perf_counter() - begun) / count, MPI.MAX))
            parts[way].append([statistics.mean(each) for each in zip(*found, strict=True)])
    if comm.rank == 0:
        print(f"\n{TASKS[name].title}, {comm.size} ranks\n{'':17} step, ms  of copies            {'  '.join(PARTS)}")
        for way in ways:
            low, middle, high = statistics.quantiles([a / b for a, b in zip(whole["copies"], whole[way], strict=True)])
            each = [1e3 * statistics.median(part) for part in zip(*parts[way], strict=True)]
            took = f"{1e3 * statistics.median(whole[way]):8.1f}  {middle:.3f} ({low:.3f} to {high:.3f})"
            shown = "  ".join(f"{ms:{len(part)}.2f}" for part, ms in zip(PARTS, each, strict=True))
            print(f"{way:17} {took}  {shown}", flush=True)


if __name__ == "__main__":
    main()
