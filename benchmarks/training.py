"""Images per second of whole training steps: ``mpiexec -n 2 python benchmarks/training.py --models cnn mlp``.

zero_grad, forward, backward and step (SGD, momentum 0.9) on data that is there already. The limit: every rank trains a
copy of its own at the same time, without a word to the others. Afterwards all ranks must have the same weights.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import shutil
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import peers
import torch
import torch.nn.functional as F
from figures import Case
from models import TASKS, Task
from peers import MPI, hvd
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LIMIT = "independent copies"
NANO = "nano"
APART = 0.3  # without an exchange of gradients 0.88 (GPT) to 1.17 (CNN)
# Neither the workbench nor Horovod copies batch norm's statistics from rank 0 in every step; nor does DDP, tuned.
_NEW = "forward_sync_buffers" in inspect.signature(DistributedDataParallel.__init__).parameters
NO_BUFFERS = {"forward_sync_buffers" if _NEW else "broadcast_buffers": False}
Built = tuple[nn.Module, torch.optim.Optimizer]


def main() -> None:
    """Measure on all ranks; rank 0 prints one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one round of the limit, about")
    args = peers.arguments(parser)
    comm = peers.start()
    builders, absent = builders_here(comm)
    cases = []
    for name in args.models:
        task = TASKS[name]
        # Weights, gradients, momentum and buckets of every peer, and what the forward pass leaves: 400 MB at most.
        need = (400 << 20) + len(builders) * 4 * 4 * sum(param.numel() for param in task.make().parameters())
        if peers.fits(comm, need):
            cases.append(measure(comm, task, builders, args.rounds, args.seconds))
        else:
            absent[task.title] = "too little memory here"
        gc.collect()
    ours = [name for name in builders if name.startswith("workbench")]
    peers.finish(comm, {"section": "training", "ours": ours, "limit": LIMIT, "cases": cases, "absent": absent})


def builders_here(comm: MPI.Intracomm) -> tuple[dict[str, Callable[[nn.Module], Built]], dict[str, str]]:
    """How each peer makes a model train together, and which peers are not to be had."""
    real = peers.horovod()
    theirs = {peers.horovod_name(): lambda model: (model, distributed(real, model, "real"))} if real else {}
    if peers.THEIRS:
        return theirs, {}
    builders = {**OURS, NANO: nano(comm), **DDPS}
    absent = peers.absent(real)
    if "sharded" not in inspect.signature(hvd.DistributedOptimizer.__init__).parameters:
        del builders["workbench sharded"]
        absent["workbench sharded"] = "DistributedOptimizer has no `sharded` yet"
    return builders | theirs, absent


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    """The optimizer of all peers."""
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def distributed(module: Any, model: nn.Module, prefix: str, **options: Any) -> torch.optim.Optimizer:
    """Ours or Horovod's; the names of several models must differ."""
    named = [(f"{prefix}.{name}", param) for name, param in model.named_parameters()]
    wrapped: torch.optim.Optimizer = module.DistributedOptimizer(sgd(model), named_parameters=named, **options)
    return wrapped


def nano(comm: MPI.Intracomm) -> Callable[[nn.Module], Built]:
    """``examples/nano.py``: the idea in one file, over sockets."""
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
    from nano import DistributedOptimizer, Engine

    folder = comm.bcast(tempfile.mkdtemp(prefix="nano-") if comm.rank == 0 else None)
    engine = Engine(comm.rank, comm.size, folder)
    comm.Barrier()
    if comm.rank == 0:
        shutil.rmtree(folder)  # they have met
    return lambda model: (model, DistributedOptimizer(engine, sgd(model), model.named_parameters()))


def ddp(model: nn.Module, **options: Any) -> Built:
    """PyTorch's own, over the Gloo group."""
    wrapped = DistributedDataParallel(model, **options)
    return wrapped, sgd(wrapped)


OURS: dict[str, Callable[[nn.Module], Built]] = {
    LIMIT: lambda model: (model, sgd(model)),
    "workbench": lambda model: (model, distributed(hvd, model, "plain")),
    "workbench sharded": lambda model: (model, distributed(hvd, model, "sharded", sharded=True)),
}
DDPS: dict[str, Callable[[nn.Module], Built]] = {
    "DDP": lambda model: ddp(model),
    "DDP tuned": lambda model: ddp(model, gradient_as_bucket_view=True, static_graph=True, **NO_BUFFERS),
}


def weights(param: torch.Tensor) -> np.ndarray:
    """Of a parameter that each rank has whole."""
    return param.detach().numpy()


def measure(
    comm: MPI.Intracomm,
    task: Task,
    builders: dict[str, Callable[[nn.Module], Built]],
    rounds: int,
    seconds: float,
    whole: Callable[[torch.Tensor], np.ndarray] = weights,
    now: Callable[[str | None], object] = lambda name: None,
) -> Case:
    """All peers train one model each, in turns.

    Args:
        comm: of all ranks.
        task: what.
        builders: by peer. An optimizer with a method ``backward(loss)`` is asked for the backward pass.
        rounds: how many.
        seconds: of one round of the limit, about.
        whole: a parameter's values, which all ranks ask for together.
        now: called with the name of the peer that runs next, at the end with None.
    """
    x, y = task.data(seed=comm.rank)
    built: dict[str, Built] = {}
    for name, build in builders.items():
        torch.manual_seed(0)
        built[name] = build(task.make())

    def steps(name: str, count: int) -> None:
        model, optimizer = built[name]
        now(name)
        for _ in range(count):
            optimizer.zero_grad()
            loss: Any = F.cross_entropy(model(x), y)  # its backward() is not typed
            getattr(optimizer, "backward", torch.Tensor.backward)(loss)
            optimizer.step()

    warm_up(task, built, steps, whole)
    first = next(iter(built))
    once = comm.allreduce(peers.timed(comm, lambda: steps(first, 1)), MPI.MAX)
    count = max(1, round(seconds / once))
    runs = {name: lambda name=name: steps(name, count) for name in built}
    times = peers.in_turns(comm, runs, rounds, repeats=1, before=lambda: None)
    for name, (model, _) in built.items():
        if name != LIMIT:
            now(name)
            check(comm, name, model, whole)
    now(None)
    return {"title": task.title, "seconds": times, "bytes": 0, "images": comm.size * task.batch * count}


def warm_up(
    task: Task,
    built: dict[str, Built],
    steps: Callable[[str, int], object],
    whole: Callable[[torch.Tensor], np.ndarray],
) -> None:
    """The first steps of each peer; compare what they have changed with what those of the first peer have.

    Weights alone do not tell: where each rank has a part of them, all ranks see the same, whoever made it.

    Raises:
        ArithmeticError: they differ by more than rounding and compression do.
    """
    torch.manual_seed(0)
    start = torch.nn.utils.parameters_to_vector(task.make().parameters()).detach().numpy()
    first = None
    for name, (model, _) in built.items():
        steps(name, 3)  # DDP makes its buckets anew after the first
        if name == LIMIT:
            continue
        moved = np.concatenate([whole(param).ravel() for param in model.parameters()]) - start
        first = moved if first is None else first
        apart = np.linalg.norm(moved - first) / np.linalg.norm(first)
        if not apart < APART:
            raise ArithmeticError(f"{name}: its first steps differ from those of the first peer by {apart:.0%}.")


def check(
    comm: MPI.Intracomm, name: str, model: nn.Module, whole: Callable[[torch.Tensor], np.ndarray] = weights
) -> None:
    """Compare this rank's weights with rank 0's.

    Raises:
        ArithmeticError: they differ by more than rounding, or are no numbers any more.
    """
    for which, param in model.named_parameters():
        mine = whole(param)
        first = mine.copy()
        comm.Bcast(first)
        if not (np.isfinite(mine).all() and np.allclose(mine, first, rtol=1e-5, atol=1e-6)):
            raise ArithmeticError(f"{name}: {which} on rank {comm.rank} is not what it is on rank 0.")


if __name__ == "__main__":
    main()
