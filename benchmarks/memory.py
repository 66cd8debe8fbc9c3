"""What gradients cost in memory: ``python benchmarks/memory.py --out results/memory.json``.

Trains the MLP of 25 million parameters some steps on each rank, once with plain SGD, once with ``DistributedOptimizer``
around it, and reads from the system what each rank has in memory (``/proc/self/smaps_rollup``; of a page that n ranks
share each has an n-th). Ours holds the gradients in shared memory, plain SGD in its own. With ``sharded`` the
parameters are in shared memory as well. What is private differs by 10 MB and more from run to run.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from pathlib import Path
from typing import Any

import children
import machine
from report import table

HERE = Path(__file__).resolve().parent
PLAIN, WAYS = "plain", ("plain", "workbench", "sharded")
_STEPS = 5


def main() -> None:
    """Start the ranks of each way and show what they hold."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--rank", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.rank:
        rank(args.model, args.rank)
        return
    words = ["--model", args.model, "--rank"]
    found = {way: json.loads(children.run(args.ranks, HERE / "memory.py", [*words, way], 120.0)) for way in WAYS}
    gradients = found[PLAIN]["gradient_bytes"]
    shared = {way: round(statistics.mean(each["shared_bytes"]) / gradients, 3) for way, each in found.items()}
    names = ("held_bytes", "shared_bytes")
    means = {way: [statistics.mean(each[name]) for name in names] for way, each in found.items()}
    rows = [[way, *(f"{each / 2**20:.0f}" for each in means[way]), f"{shared[way]:.2f}"] for way in WAYS]
    print(f"{args.ranks} ranks, {gradients / 2**20:.0f} MiB of gradients each. MiB per rank:")
    print("\n".join(table(["", "all for training", "of it shared", "that, over the gradients' bytes"], rows)))
    if args.out:
        figures = {"section": "memory", "ranks": args.ranks, "model": args.model, "shared_ratio": shared, "ways": found}
        args.out.write_text(json.dumps(figures | {"machine": machine.about()}, indent=1) + "\n")


def rank(model: str, way: str) -> None:
    """Train, and say on rank 0 what every rank holds for it: memory now, less what it was before the model."""
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
    before = held()
    net = task.make()
    optimizer: torch.optim.Optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    if way != PLAIN:
        options: dict[str, Any] = {"sharded": True} if way == "sharded" else {}
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=net.named_parameters(), **options)
    for _ in range(_STEPS):
        optimizer.zero_grad(set_to_none=False)
        loss: Any = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
    del loss
    gc.collect()
    comm.Barrier()
    after = held()
    mine = {name: after[name] - before[name] for name in after}
    comm.Barrier()
    everyone = comm.gather(mine)
    if comm.rank == 0:
        sums = {name: [each[name] for each in everyone or []] for name in ("held_bytes", "shared_bytes")}
        gradient_bytes = sum(4 * param.numel() for param in net.parameters())
        print(json.dumps({"gradient_bytes": gradient_bytes} | sums), flush=True)
    hvd.shutdown()


def held() -> dict[str, int]:
    """Bytes of this process that are no file's: private ones, and its part of those in shared memory."""
    found = {}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        name, _, text = line.partition(":")
        found[name] = int(text.split()[0]) << 10
    return {"held_bytes": found["Pss_Anon"] + found["Pss_Shmem"], "shared_bytes": found["Pss_Shmem"]}


if __name__ == "__main__":
    main()
