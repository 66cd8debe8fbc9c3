"""What exact mode and commits cost a step: ``mpiexec -n 2 python benchmarks/elastic.py --output results/elastic.json``.

All train the same network in turns, without a failure. Plain is DistributedOptimizer by itself. A deep copy is what a
commit was before it copied into the memory of an older one.
"""

from __future__ import annotations

import argparse
import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import peers
import torch
import torch.nn.functional as F
from figures import quartiles, ratios
from models import TASKS, Task
from peers import MPI, hvd

PLAIN = "plain"


def main() -> None:
    """Measure on all ranks; rank 0 prints one JSON line, and writes it where it is told to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(TASKS), default=["cnn", "mlp"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one round of a peer, about")
    parser.add_argument("--shards-per-rank", type=int, default=1)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    comm = peers.start()
    cases = [measure(comm, TASKS[name], args) for name in args.models]
    if comm.rank == 0 and args.output:
        about = {"section": "elastic", "ranks": comm.size, "shards_per_rank": args.shards_per_rank, "cases": cases}
        args.output.write_text(json.dumps(about, indent=1) + "\n")
    peers.finish(comm, {"section": "elastic", "cases": [{**case, "seconds": {}} for case in cases]})


def measure(comm: MPI.Intracomm, task: Task, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of one step of each peer, and its ratio to plain."""
    pieces = args.shards_per_rank
    data = [task.data(seed=comm.rank * pieces + i) for i in range(pieces)]
    built = {
        PLAIN: plain(task, data, "plain", lambda state: None),
        "plain, commit": plain(task, data, "committed", lambda state: state.commit()),
        "plain, deep copy": plain(task, data, "copied", deep_copy),
        "exact": exactly(comm, task, data, "exact", commit=False),
        "exact, commit": exactly(comm, task, data, "exact committed", commit=True),
    }
    for step in built.values():
        for _ in range(3):
            step()
    once = comm.allreduce(peers.timed(comm, built[PLAIN]), MPI.MAX)
    count = max(1, round(args.seconds / once))

    def many(step: Callable[[], None]) -> Callable[[], None]:
        return lambda: [step() for _ in range(count)] and None

    times = peers.in_turns(
        comm, {name: many(step) for name, step in built.items()}, args.rounds, repeats=1, before=lambda: None
    )
    seconds = {name: [each / count for each in rounds] for name, rounds in times.items()}
    medians = {name: quartiles(rounds).median for name, rounds in seconds.items()}
    beside = {name: list(ratio) for name, ratio in ratios(seconds, PLAIN).items()}
    return {"title": task.title, "step_s": medians, "ratio_to_plain": beside, "seconds": seconds}


def ours(task: Task, prefix: str) -> tuple[torch.nn.Module, Any, Any]:
    """A network, its optimizer and its state; the names of several networks must differ."""
    torch.manual_seed(0)
    model = task.make()
    named = [(f"{prefix}.{name}", param) for name, param in model.named_parameters()]
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9), named)
    return model, optimizer, hvd.elastic.TorchState(model, optimizer)


def plain(task: Task, data: Any, prefix: str, commit: Callable[[Any], Any]) -> Callable[[], None]:
    """A step that passes over its data once, the last of several passes communicating."""
    model, optimizer, state = ours(task, prefix)

    def step() -> None:
        optimizer.zero_grad()
        with optimizer.no_sync():
            for x, y in data[:-1]:
                F.cross_entropy(model(x), y).backward()
        x, y = data[-1]
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        commit(state)

    return step


def deep_copy(state: Any) -> None:
    """A commit as it was, and the same question whether the hosts have changed."""
    state.old_copy = copy.deepcopy((state.model.state_dict(), state.optimizer.state_dict()))
    state.check_host_updates()


def exactly(comm: MPI.Intracomm, task: Task, data: Any, prefix: str, commit: bool) -> Callable[[], None]:
    """A step over this rank's logical shards."""
    model, optimizer, state = ours(task, prefix)
    state.begin_exact(comm.size * len(data))
    state.sync()

    def step() -> None:
        for shard in state.shards():
            x, y = data[shard - state.exact.owned.start]
            F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if commit:
            state.commit()

    return step


if __name__ == "__main__":
    main()
