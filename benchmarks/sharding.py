"""Memory and bytes of ZeRO's stages: ``python benchmarks/sharding.py --out results/sharding.json``.

Trains a network of equal layers with Adam on each rank, in float32: not sharded, with ``sharded="optimizer"``,
``"gradients"`` and ``"parameters"``, and with torch's own ``fully_shard`` over Gloo. What the tensors hold is counted
storage by storage (``workbench.torch.sharded.memory_tracker``), at most amid a step, and after it. What is sent is
counted at the Link, over MPI; of ``fully_shard`` it is not, for Gloo tells nobody. Beside both stands the formula. No
time is taken.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import children
import machine
from report import table

HERE = Path(__file__).resolve().parent
THEIRS = "fully_shard"
WAYS = ("none", "optimizer", "gradients", "parameters", THEIRS)
LAYERS, WIDTH, BATCH = 24, 256, 4
LAYER_BYTES = 4 * (WIDTH * WIDTH + WIDTH)
_WARM_STEPS, _K = 3, 2  # Adam keeps two numbers for each parameter


def formula(way: str, n: int) -> float:
    """Bytes held at most amid a step, in units of P: what belongs to the rank, and what is on its way.

    On its way are the gradients of two layers, one being filled and one being reduced; with ``parameters`` and
    ``fully_shard`` also a layer that is gathered.
    """
    layer = 1 / LAYERS
    return {
        "none": 2 + _K,
        "optimizer": 2 + _K / n,
        "gradients": 1 + (1 + _K) / n + 2 * layer,
        "parameters": (2 + _K) / n + 3 * layer,
        THEIRS: (2 + _K) / n + 3 * layer,
    }[way]


def sent(way: str, n: int) -> float | None:
    """Bytes sent by each rank in a step, in units of P."""
    times = {"none": 2, "optimizer": 2, "gradients": 2, "parameters": 3}.get(way)
    return None if times is None else times * (n - 1) / n


def main() -> None:
    """Start the ranks of each way and show what they hold and send."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rank", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.rank:
        rank(args.rank)
        return
    found = []
    for n in args.ranks:
        for way in WAYS:
            one = json.loads(children.run(n, HERE / "sharding.py", ["--rank", way], 180.0))
            found.append({"ranks": n, "way": way, "formula": formula(way, n), "sent_formula": sent(way, n), **one})
    print(f"{LAYERS} layers, {LAYERS * LAYER_BYTES / 2**20:.1f} MiB of parameters (P), Adam. In units of P, per rank:")
    heads = ["ranks", "", "held at most", "formula", "off by", "after a step", "sent", "formula"]
    print("\n".join(table(heads, [_row(each) for each in found])))
    if args.out:
        about = {"layers": LAYERS, "layer_bytes": LAYER_BYTES, "optimizer": "Adam", "batch": BATCH}
        figures = {"section": "sharding", **about, "ways": found, "machine": machine.about()}
        args.out.write_text(json.dumps(figures, indent=1) + "\n")


def _row(each: dict[str, Any]) -> list[str]:
    off = each["most"] / each["formula"] - 1
    nbytes = ["not counted", ""] if each["sent"] is None else [f"{each['sent']:.3f}", f"{each['sent_formula']:.3f}"]
    held = [f"{each['most']:.3f}", f"{each['formula']:.3f}", f"{off:+.1%}", f"{each['after']:.3f}"]
    return [str(each["ranks"]), each["way"], *held, *nbytes]


def rank(way: str) -> None:
    """Train, and say on rank 0 what it holds and sends. ``WORKBENCH_BACKEND`` must not be chosen outside."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(*(each for _ in range(LAYERS) for each in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))
    figures = _theirs(model) if way == THEIRS else _ours(model, way)
    if figures is not None:
        print(json.dumps(figures), flush=True)


def _ours(model: Any, way: str) -> dict[str, Any] | None:
    import os

    import torch

    os.environ |= {
        "WORKBENCH_BUCKET_BYTES": str(LAYER_BYTES),
        "WORKBENCH_BACKEND": "mpi",
        "WORKBENCH_EAGER_BYTES": "0",
    }
    import workbench.torch as hvd

    hvd.init()
    if way == "parameters":
        hvd.shard_parameters(model)
    inner = torch.optim.Adam(model.parameters())
    stage = False if way == "none" else way
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), sharded=stage)
    known = () if way == "parameters" else tuple(model.parameters())
    figures = _measured(model, optimizer, known, hvd.barrier)
    first = hvd.rank() == 0
    hvd.shutdown()
    return figures if first else None


def _theirs(model: Any) -> dict[str, Any] | None:
    import torch
    import torch.distributed as dist
    from mpi4py import MPI
    from torch.distributed.fsdp import fully_shard

    comm = MPI.COMM_WORLD
    folder = comm.bcast(tempfile.mkdtemp() if comm.rank == 0 else None)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=comm.rank, world_size=comm.size)
    for layer in model:
        if any(True for _ in layer.parameters()):
            fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters())
    figures = _measured(model, optimizer, [each.to_local() for each in model.parameters()], comm.Barrier)
    comm.Barrier()
    dist.destroy_process_group()
    if comm.rank == 0:
        shutil.rmtree(folder)
    return {**figures, "sent": None} if comm.rank == 0 else None


def _measured(model: Any, optimizer: Any, known: Any, barrier: Any) -> dict[str, Any]:
    import torch

    from workbench.torch.sharded.memory_tracker import MemoryTracker

    x, y = torch.randn(2, BATCH, WIDTH, generator=torch.Generator().manual_seed(1))

    def step() -> None:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()

    for _ in range(_WARM_STEPS):
        step()
    states = [value for state in optimizer.state.values() for value in state.values() if torch.is_tensor(value)]
    states = [value.to_local() if hasattr(value, "to_local") else value for value in states]
    with MemoryTracker([*states, *known]) as live:
        step()
        live.peak = 0
        step()
        after = live.now()
    most = live.peak
    barrier()
    nbytes = _sent_in(step, barrier)
    whole = LAYERS * LAYER_BYTES
    return {"most": most / whole, "after": after / whole, "sent": nbytes / whole}


def _sent_in(step: Any, barrier: Any) -> int:
    """What leaves this rank by its Link; 0 where there is no job of ours."""
    from workbench.job.context import HOLDER

    context = HOLDER.find()
    if context is None:
        return 0
    link: Any = context.sets.everybody.link
    inner, total = link.start, [0]

    def counting(send: Any, dest: int, recv: Any, source: int) -> Any:
        total[0] += 0 if send is None else send.nbytes
        return inner(send, dest, recv, source)

    link.start = counting
    step()
    barrier()
    del link.start
    return total[0]


if __name__ == "__main__":
    main()
