"""What a step loses to checkpoints: ``python benchmarks/checkpoint.py --out results/checkpoint.json``.

Each rank trains; a round is so many steps with one commit at their beginning. Four ways take turns in the same
processes: no commit; a commit; a commit that is handed to the thread that writes (``state.checkpoint``); and a commit
after which rank 0 writes all of it with ``torch.save`` and fsync while the others wait, which is the naive way. A round
is longer than the writing; what is still being written at its end counts, for the round waits for it.

What one checkpoint costs is the round's time beyond that of the round with a commit alone, the median over the rounds.
Where others use the machine, that difference drowns; the writer's CPU time, on rank 0, still says what it takes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import children
import machine
from report import table

HERE = Path(__file__).resolve().parent
WAYS = ("none", "commit", "checkpoint", "blocking")


def main() -> None:
    """Start the ranks and show what they measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--models", default="cnn,mlp")
    parser.add_argument("--seconds", type=float, default=4.0, help="of training in a round")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", help="on the disk to measure; by default a temporary one")
    parser.add_argument("--rank", help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.rank:
        rank(args.rank, args.folder, args.seconds, args.rounds)
        return
    found = {}
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        for model in args.models.split(","):
            words = ["--rank", model, "--folder", folder, "--seconds", str(args.seconds), "--rounds", str(args.rounds)]
            found[model] = json.loads(children.run(args.ranks, HERE / "checkpoint.py", words, 580.0))
    rows = [[model, *(f"{each[name]:.0f}" for name in NAMES)] for model, each in found.items()]
    print(f"{args.ranks} ranks; medians of {args.rounds} rounds; ms unless it says otherwise:")
    print("\n".join(table(["", *(name.replace("_", " ") for name in NAMES)], rows)))
    if args.out:
        about = {"section": "checkpoint", "ranks": args.ranks, "rounds": args.rounds, "models": found}
        args.out.write_text(json.dumps(about | {"machine": machine.about()}, indent=1) + "\n")


NAMES = (
    "state_mib",
    "step_ms",
    "hand_over_us",
    "commit_ms",
    "checkpoint_ms",
    "blocking_ms",
    "writing_ms",
    "writer_cpu_ms",
)


def rank(model: str, folder: str, seconds: float, rounds: int) -> None:
    """Train in every way, in turns; rank 0 prints one JSON line."""
    import torch
    import torch.nn.functional as F
    from models import TASKS
    from mpi4py import MPI

    import workbench.torch as hvd

    torch.set_num_threads(1)
    comm = MPI.COMM_WORLD.Dup()
    hvd.init()
    task = TASKS[model]
    x, y = task.data(seed=comm.rank)
    net = task.make()
    optimizer: Any = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters())
    plain = hvd.elastic.TorchState(net, optimizer, step=0)
    state = hvd.elastic.TorchState(net, optimizer, step=0)
    checkpoints = state.checkpoint(Path(folder) / model)
    state.sync()
    written: list[float] = []
    handed: list[float] = []
    hand_over = checkpoints.receive

    def receive(*words: Any) -> None:
        before = time.perf_counter()
        hand_over(*words)
        handed.append(time.perf_counter() - before)

    cpu: list[float] = []
    write = checkpoints._write

    def counted(*words: Any) -> None:
        before = time.thread_time()
        write(*words)
        cpu.append(time.thread_time() - before)

    checkpoints.receive = receive  # type: ignore[method-assign]
    checkpoints._write = counted  # type: ignore[method-assign]

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()

    def save() -> None:
        plain.commit()
        if comm.rank == 0:
            with open(Path(folder) / f"{model}.pt", "wb") as file:
                torch.save({"model": net.state_dict(), "optimizer": optimizer.state_dict()}, file)
                file.flush()
                os.fsync(file.fileno())
        comm.Barrier()

    begins: dict[str, Callable[[], object]] = {
        "none": lambda: None,
        "commit": plain.commit,
        "checkpoint": state.commit,
        "blocking": save,
    }

    def round_of(way: str, steps: int) -> float:
        os.sync()
        comm.Barrier()
        before = time.perf_counter()
        begins[way]()
        for _ in range(steps):
            step()
            if way == "checkpoint" and comm.rank == 0 and not checkpoints.busy() and len(written) < len(handed):
                written.append(time.perf_counter() - before)
        checkpoints.wait()
        comm.Barrier()
        return time.perf_counter() - before

    for way in WAYS:
        round_of(way, 3)
    steps = comm.bcast(max(3, int(seconds / (round_of("none", 5) / 5))))
    written.clear()
    handed.clear()
    cpu.clear()
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds):
        for way in WAYS[number % 4 :] + WAYS[: number % 4]:
            times[way].append(round_of(way, steps))
    beyond = {
        way: [1e3 * (mine - base) for mine, base in zip(times[way], times[than], strict=True)]
        for way, than in (("commit", "none"), ("checkpoint", "commit"), ("blocking", "commit"))
    }
    held = sum(each.numel() * each.element_size() for each in net.state_dict().values())
    held += sum(each["momentum_buffer"].nbytes for each in optimizer.state_dict()["state"].values())
    hvd.shutdown()
    if comm.rank == 0:
        figures = {
            "state_mib": held / 2**20,
            "steps": steps,
            "step_ms": 1e3 * statistics.median(times["none"]) / steps,
            "hand_over_us": 1e6 * statistics.median(handed),
            "writer_cpu_ms": 1e3 * statistics.median(cpu),
            "writing_ms": 1e3 * statistics.median(written) if written else float("nan"),
            **{f"{way}_ms": statistics.median(each) for way, each in beyond.items()},
            "beyond_ms": beyond,
            "round_ms": {way: [1e3 * each for each in found] for way, found in times.items()},
        }
        print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
