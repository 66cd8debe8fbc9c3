"""Twelve mistakes of who trains a language model: ``python benchmarks/mistakes_of_language_models.py``.

Each is a cell for four engines, in DDP, FSDP2, tensor-parallel, pipeline or expert code. Printed is after how many
seconds the notebook has the answer, and the sentence: of the error, or of what finds a mistake that raises none (a
fingerprint, a comparison). Lessons 24 to 28 have the same code without the mistakes.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from typing import Any

BEGIN = """
import copy, os, signal, time, torch, torch.distributed as dist, torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from workbench import fingerprint
if not dist.is_initialized():
    dist.init_process_group("workbench")
rank, n = dist.get_rank(), dist.get_world_size()
mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
data, tensor = mesh["data"].get_local_rank(), mesh["tensor"].get_local_rank()

def block():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8)).double()

def batch(number):
    return torch.randn(4, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(number))

def step(model, x, lr=0.1):
    model(x).square().mean().backward()
    with torch.no_grad():
        for each in model.parameters():
            each -= lr * each.grad

def say(found, text):
    assert not found, text
"""

# (what is wrong, the cell, what the answer must say)
MISTAKES = [
    (
        "dropout with another seed on each rank of a tensor group",
        """
torch.manual_seed(rank)
model = block()
step(model, F.dropout(batch(data), 0.5))
alike = fingerprint(model[0])
say(not alike, f"fingerprint: {alike.first} differs: ranks of a tensor group dropped other numbers")
""",
        r"fingerprint: weight differs",
    ),
    (
        "dropout with one seed on all data ranks",
        """
torch.manual_seed(0)
mask = F.dropout(torch.ones(64), 0.5)
alike = fingerprint([mask])
say(alike.agree, "fingerprint: all data ranks drop the same numbers")
""",
        r"all data ranks drop the same",
    ),
    (
        "a stage sends twice",
        """
if rank == 1:
    for _ in range(2):
        dist.send(torch.ones(8), 2)
if rank == 2:
    dist.recv(torch.ones(8), 1)
""",
        r"MissingRanksError.*send.*rank 1: waiting in the cell, line 3",
    ),
    (
        "experts: a rank sends other numbers of tokens than are expected",
        """
splits = [4, 4, 4, 4] if rank != 2 else [4, 6, 2, 4]
dist.all_to_all_single(torch.empty(16, 8), torch.ones(16, 8), [4] * 4, splits)
""",
        r"sizes.*rank 2: sent [62]",
    ),
    (
        "a layer is frozen on one rank alone",
        """
model = block()
if rank == 3:
    model[0].requires_grad_(False)
ddp = DistributedDataParallel(model)
ddp(batch(rank)).sum().backward()
""",
        r"rank 3|Rank 3|rank\\(s\\) .*3|rank 0",
    ),
    (
        "no_sync() also around the last micro-batch",
        """
ddp = DistributedDataParallel(block())
with ddp.no_sync():
    step(ddp, batch(rank))
alike = fingerprint(ddp.module)
say(not alike, f"fingerprint: {alike.first} differs: gradients were not averaged")
""",
        r"fingerprint: 0.weight differs",
    ),
    (
        "a checkpoint of a sharded model under if rank == 0",
        """
model = fully_shard(block())
if rank == 0:
    whole = {name: each.full_tensor() for name, each in model.state_dict().items()}
""",
        r"MissingRanksError.*rank 0: waiting in the cell, line 3.*ranks 1, 2, 3: idle",
    ),
    (
        "each rank clips its own part of a sharded gradient",
        """
model = fully_shard(block())
model(batch(rank)).square().sum().backward()
mine = torch.stack([each.grad.to_local().norm() for each in model.parameters()]).norm()
alike = fingerprint([mine])
say(not alike, "fingerprint: the norms differ: each rank has that of its own rows")
""",
        r"the norms differ",
    ),
    (
        "a DTensor meets a tensor",
        """
weight = distribute_tensor(torch.ones(8, 8), mesh["tensor"], [Replicate()])
torch.ones(2, 8) @ weight
""",
        r"mixed torch.Tensor and DTensor",
    ),
    (
        "a loss scale that one rank halves alone",
        """
model = block()
step(model, batch(0), lr=0.05 if rank == 2 else 0.1)
alike = fingerprint(model)
say(not alike, f"fingerprint: {alike.first} differs, most on rank {max(range(n), key=alike.largest.__getitem__)}")
""",
        r"fingerprint: 0.weight differs, most on rank 2",
    ),
    (
        "batches by the rank in the job, and not by the data rank",
        """
group = mesh["tensor"].get_group()
parts = [torch.empty(4, 8, dtype=torch.float64) for _ in range(2)]
dist.all_gather(parts, batch(rank), group=group)
say(not torch.equal(*parts), "the ranks of a tensor group have other batches")
""",
        r"other batches",
    ),
    (
        "a rank dies amid an all-to-all",
        """
if rank == 3:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_to_all_single(torch.empty(16, 8), torch.ones(16, 8))
""",
        r"engine 3 is gone",
    ),
]


def answer(engines: Any, code: str) -> tuple[str, float]:
    """What the notebook shows of a cell that fails, in one line, and after how many seconds."""
    from ipyparallel import CompositeError

    from workbench.cluster.cells import failures, message

    begun = time.perf_counter()
    try:
        engines.view.execute(code, silent=False, block=True)
    except CompositeError as error:
        lines = [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in message(failures(error))]
        return " ".join(line.strip() for line in lines), time.perf_counter() - begun
    return "", time.perf_counter() - begun


def sentence(text: str) -> str:
    """From the error's class on, shortened."""
    found = re.search(r"(\w+Error: |engine \d).*", text)
    return re.sub(r"\s+", " ", found[0] if found else text)[:300]


def main() -> None:
    """Print a table, or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    from workbench import cluster

    engines, rows = cluster.up(4), []
    for what, code, expected in MISTAKES:
        engines.view.execute(BEGIN, silent=False, block=True)
        text, seconds = answer(engines, code.lstrip())
        rows.append((what, bool(re.search(expected, text)), round(seconds, 2), sentence(text)))
    engines.down()
    if args.json:
        print(json.dumps(rows))
    for what, right, seconds, told in rows if not args.json else ():
        print(f"{'right' if right else 'WRONG':5} {seconds:6.2f} s  {what}\n         {told}")


if __name__ == "__main__":
    main()
