"""Images per second of torch as it is used now: ``mpiexec -n 2 python benchmarks/torch_training.py --models cnn mlp``.

Each way to train is a row: ours, ours sharded, and DDP doing the same. The limit does it, too, on a copy of its own.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import peers
import torch
import torch.nn.functional as F
from figures import Case
from models import TASKS, Task
from peers import MPI, hvd
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint
from training import LIMIT, check

_OURS = ["workbench", "workbench sharded"]


@dataclass(frozen=True)
class Way:
    """A way to train.

    Args:
        form: of the model, before anybody wraps it.
        optimizer: further arguments of SGD.
        compiled: the model is compiled.
        step_compiled: the optimizer's step is.
        bf16: forward is under autocast.
        passes: backward passes per step; only the last is to communicate.
        in_buckets: ours writes the gradients of large linear layers to its buckets; the others do what they do.
        only: "pictures": for networks of convolutions; "rows": for others.
    """

    form: Callable[[nn.Module], nn.Module] = lambda model: model
    optimizer: tuple[str, ...] = ()
    compiled: bool = False
    step_compiled: bool = False
    bf16: bool = False
    passes: int = 1
    in_buckets: bool = False
    only: str = ""


class Checkpointed(nn.Module):
    """Computes the activations of each layer once more in backward, and keeps none."""

    def __init__(self, layers: nn.Module, use_reentrant: bool) -> None:
        super().__init__()
        self.layers, self._reentrant = layers, use_reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As the layers'."""
        x = x.detach().requires_grad_()  # use_reentrant=True needs it
        for layer in self.layers.children():
            x = checkpoint(layer, x, use_reentrant=self._reentrant)
        return x


WAYS = {
    "compiled": Way(compiled=True),
    "compiled step": Way(step_compiled=True),
    "foreach": Way(optimizer=("foreach",)),
    "fused": Way(optimizer=("fused",)),
    "channels_last": Way(lambda model: model.to(memory_format=torch.channels_last), only="pictures"),
    "bf16 autocast": Way(bf16=True),
    "write_in_buckets": Way(in_buckets=True, only="rows"),
    "no_sync, 4 passes": Way(passes=4),
    "checkpoint": Way(lambda model: Checkpointed(model, use_reentrant=False)),
    "checkpoint, reentrant": Way(lambda model: Checkpointed(model, use_reentrant=True)),
}


@dataclass
class Peer:
    """A model that is trained together.

    Args:
        model: its weights.
        called: the model, as it is called.
        optimizer: has zero_grad().
        step: the optimizer's, or made of it.
        quiet: no communication within it.
    """

    model: nn.Module
    called: Any
    optimizer: torch.optim.Optimizer
    step: Callable[[], object]
    quiet: Callable[[], AbstractContextManager[Any]] = nullcontext


def main() -> None:
    """Measure on all ranks; rank 0 prints one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(TASKS), default=["cnn", "mlp"])
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), metavar="WAY")
    parser.add_argument("--backend", default="inductor", help="of torch.compile")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5, help="of one round of the limit, about")
    args = parser.parse_args()
    comm = peers.start()
    cases = []
    for name in args.models:
        for way in args.ways:
            if WAYS[way].only in ("", "pictures" if TASKS[name].shape[1:] else "rows"):
                cases.append(measure(comm, TASKS[name], way, args))
                torch.compiler.reset()
                gc.collect()
    peers.finish(comm, {"section": "torch_training", "ours": _OURS, "limit": LIMIT, "cases": cases, "absent": {}})


def measure(comm: MPI.Intracomm, task: Task, title: str, args: argparse.Namespace) -> Case:
    """All peers train one model each, in turns."""
    way = WAYS[title]
    x, y = task.data(seed=comm.rank)
    if way.only == "pictures":
        x = x.contiguous(memory_format=torch.channels_last)
    built: dict[str, Peer] = {}
    for name, build in builders().items():
        torch.manual_seed(0)
        built[name] = compiled(build(way.form(task.make()), way, title), name, way, args.backend)

    def steps(name: str, count: int) -> None:
        peer = built[name]
        for _ in range(count):
            peer.optimizer.zero_grad()
            for left in reversed(range(way.passes)):
                with peer.quiet() if left else nullcontext():
                    with torch.autocast("cpu", torch.bfloat16, enabled=way.bf16):
                        loss: Any = F.cross_entropy(peer.called(x), y) / way.passes
                    loss.backward()
            peer.step()

    for name in built:
        steps(name, 3)  # DDP makes its buckets anew after the first
    once = comm.allreduce(peers.timed(comm, lambda: steps(LIMIT, 1)), MPI.MAX)
    count = max(1, round(args.seconds / once))
    runs = {name: lambda name=name: steps(name, count) for name in built}
    times = peers.in_turns(comm, runs, args.rounds, repeats=1, before=lambda: None)
    for name, peer in built.items():
        if name != LIMIT:
            check(comm, name, peer.model)
    images = comm.size * task.batch * count * way.passes
    return {"title": f"{task.title}, {title}", "seconds": times, "bytes": 0, "images": images}


def builders() -> dict[str, Callable[[nn.Module, Way, str], Peer]]:
    """How each peer makes a model train together."""
    return {
        LIMIT: lambda model, way, _: plain(model, way),
        "workbench": lambda model, way, title: ours(model, way, f"{title} whole"),
        "workbench sharded": lambda model, way, title: ours(model, way, f"{title} sharded", sharded=True),
        "DDP": lambda model, way, _: ddp(model, way),
    }


def sgd(model: nn.Module, way: Way) -> torch.optim.Optimizer:
    """The optimizer of all peers."""
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, **dict.fromkeys(way.optimizer, True))


def plain(model: nn.Module, way: Way) -> Peer:
    """Nobody to train with."""
    optimizer = sgd(model, way)
    return Peer(model, model, optimizer, optimizer.step)


def ours(model: nn.Module, way: Way, prefix: str, **options: Any) -> Peer:
    """The names of several models must differ."""
    if way.in_buckets:
        hvd.write_in_buckets(model)
    named = [(f"{prefix}.{name}", param) for name, param in model.named_parameters()]
    optimizer = hvd.DistributedOptimizer(sgd(model, way), named, **options)
    return Peer(model, model, optimizer, optimizer.step, optimizer.no_sync)


def ddp(model: nn.Module, way: Way) -> Peer:
    """PyTorch's own, over the Gloo group, without a copy of gradients."""
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = sgd(wrapped, way)
    return Peer(model, wrapped, optimizer, optimizer.step, wrapped.no_sync)


def compiled(peer: Peer, name: str, way: Way, backend: str) -> Peer:
    """As the way says. DDP cuts its graphs by itself."""
    if way.compiled:
        own = hvd.split_at_buckets(backend) if name in _OURS else backend
        peer = replace(peer, called=torch.compile(peer.called, backend=own))
    if way.step_compiled:
        peer = replace(peer, step=torch.compile(peer.step, backend=backend))
    return peer


if __name__ == "__main__":
    main()
