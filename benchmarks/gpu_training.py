"""A model under bf16 autocast on GPUs: plain torch, with the workbench, and with DDP, in turns in one process.

On one rank the workbench has nobody to talk to and takes a short way; so the whole way (hooks, buckets, engine, NCCL of
one rank) is a peer of its own there, and that is the one to compare with DDP, which takes no short way. A step's time
is the GPU's, from the first submission to the end. Each rank prints a line of JSON. With ``--device cpu`` it is a dry
run with a tiny model, to see whether it runs.
"""

from __future__ import annotations

import argparse
import gc
import inspect
import json
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed
import torch.nn.functional as F
from figures import rotated
from models import GPT2_SMALL, Gpt, Shape
from resnet50 import resnet50
from torch import nn
from torch.nn.parallel import DistributedDataParallel

sys.path.append(str(Path(__file__).resolve().parent.parent))  # the package is that of this checkout, installed or not

import workbench.torch as hvd
from workbench.job.context import HOLDER

PLAIN, OURS, PATH, DDP, TUNED = "plain torch", "workbench", "workbench, whole way", "DDP", "DDP tuned"
dist: Any = torch.distributed  # most of it is not typed
_NEW = "forward_sync_buffers" in inspect.signature(DistributedDataParallel.__init__).parameters
_TUNED = {
    "gradient_as_bucket_view": True,
    "static_graph": True,
    "forward_sync_buffers" if _NEW else "broadcast_buffers": False,  # as the workbench, which copies no statistics
}
_MODELS_BYTES, _FEWEST = 8 << 30, 2
_WARM_UP = 6  # steps: buckets are planned, and cuDNN tries its algorithms


def main() -> None:
    """Measure on one rank, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=4, help="of a peer in a round")
    parser.add_argument("--model", choices=("resnet50", "gpt"), default="resnet50")
    parser.add_argument("--most", type=int, default=256, help="samples in a batch; of GPT an eighth of them")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    print(json.dumps(measure(args)), flush=True)


@dataclass(frozen=True)
class Task:
    """What is trained.

    Args:
        network: makes it.
        side: of an image, in pixels; 0: samples are texts.
        classes: of images, or different words.
        words: of a text.
        sample_bytes: of the GPU's memory that a sample takes, about.
    """

    network: Callable[[], nn.Module]
    side: int = 0
    classes: int = 0
    words: int = 0
    sample_bytes: int = 128 << 20

    @property
    def unit(self) -> str:
        """What is counted."""
        return "tokens" if self.words else "images"

    def make(self, device: torch.device) -> nn.Module:
        """The network, from the same weights each time."""
        torch.manual_seed(1)
        made = self.network()
        return made.to(device) if self.words else made.to(device=device, memory_format=torch.channels_last)

    def batch(self, samples: int, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
        """Random samples, the same in every step."""
        if self.words:
            text = torch.randint(0, self.classes, (samples, self.words + 1), device=device)
            return text[:, :-1], text[:, 1:]
        x = torch.randn(samples, 3, self.side, self.side, device=device).to(memory_format=torch.channels_last)
        return x, torch.randint(0, self.classes, (samples,), device=device)


def task_of(model: str, device: torch.device) -> Task:
    """ResNet-50 or GPT-2 small; in a dry run something tiny."""
    if model == "gpt":
        tiny = device.type != "cuda"
        shape = Shape(1, 8, 2, 16, 50) if tiny else GPT2_SMALL
        network = partial(Gpt, shape)
        return Task(network, classes=50 if tiny else 50257, words=16 if tiny else 1024, sample_bytes=1 << 30)
    if device.type == "cuda":
        return Task(resnet50, side=224, classes=1000)
    return Task(lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(144, 10)), side=8, classes=10)


@dataclass
class Peer:
    """One way to train: what is called with images, and what steps."""

    forward: nn.Module
    optimizer: Any

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """One training step, as users write it."""
        self.optimizer.zero_grad()
        with torch.autocast(x.device.type, torch.bfloat16):
            loss = F.cross_entropy(self.forward(x), y)
        loss.backward()
        self.optimizer.step()


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a step, the slowest rank's, by peer and round."""
    hvd.init()
    device = torch.device("cpu")
    if args.device == "cuda":
        device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
        torch.cuda.set_device(device)
        torch.backends.cudnn.benchmark = True
    meet(device)
    task = task_of(args.model, device)
    batch = agreed(min, fitting(task, device, args.most // 8 if task.words else args.most))
    x, y = task.batch(batch, device)
    peers = {name: make(name, task, device) for name in names()}
    for peer in peers.values():
        for _ in range(_WARM_UP):
            peer.step(x, y)
    gc.collect()
    gc.disable()
    seconds: dict[str, list[float]] = {name: [] for name in peers}
    for turn in range(args.rounds):
        for name in rotated(list(peers), turn):
            hvd.barrier()
            mine = timed(lambda peer=peers[name]: peer.step(x, y), args.steps, device)  # type: ignore[misc]
            seconds[name].append(agreed(max, mine))
    equal = same_everywhere(peers[OURS].forward)
    reduce = [1e3 * agreed(max, each) for each in reducing(task, device, args.rounds)]
    about = {"ranks": hvd.size(), "batch": batch * max(1, task.words), "unit": task.unit}
    about |= {"gradients": len(list(peers[PLAIN].forward.parameters()))}
    result = {**about, "seconds": seconds, "reduce_ms": reduce, "weights_equal": equal, "way": way()}
    dist.destroy_process_group()
    hvd.shutdown()
    return result


def names() -> list[str]:
    """The peers. On one rank the workbench takes a short way, as nobody is there to talk to; the long one is forced."""
    return [PLAIN, OURS, *([PATH] if hvd.size() == 1 else []), DDP, TUNED]


def make(name: str, task: Task, device: torch.device) -> Peer:
    """A peer with a model of its own, all from the same weights."""
    model = task.make(device)
    forward: nn.Module = model
    if name in (DDP, TUNED):
        where = [device] if device.type == "cuda" else None
        forward = DistributedDataParallel(model, where, **(_TUNED if name == TUNED else {}))
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    if name in (OURS, PATH):
        named = [(f"{name} {each}", param) for each, param in model.named_parameters()]
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=named)
    if name == PATH:
        optimizer._distributed.choose_source(alone=False)
    return Peer(forward, optimizer)


def fitting(task: Task, device: torch.device, most: int) -> int:
    """How many samples: by the memory that is free, and by trying."""
    if device.type != "cuda":
        return 2
    free, _ = torch.cuda.mem_get_info(device)
    batch = most
    while batch > _FEWEST and batch * task.sample_bytes + _MODELS_BYTES > free:
        batch //= 2
    while True:
        try:
            make(PLAIN, task, device).step(*task.batch(batch, device))
            return batch
        except torch.cuda.OutOfMemoryError:
            if batch <= _FEWEST:
                raise
            batch //= 2
        finally:
            gc.collect()
            torch.cuda.empty_cache()


def timed(step: Callable[[], None], steps: int, device: torch.device) -> float:
    """Seconds of a step on the GPU, from when the first is submitted to the end of the last."""
    if device.type != "cuda":
        begun = perf_counter()
        for _ in range(steps):
            step()
        return (perf_counter() - begun) / steps
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize(device)
    begin.record()
    for _ in range(steps):
        step()
    end.record()
    torch.cuda.synchronize(device)
    return begin.elapsed_time(end) / 1e3 / steps


def reducing(task: Task, device: torch.device, rounds: int) -> list[float]:
    """Seconds to reduce all gradients of a step by one call, nothing beside it: negotiate, pack, reduce, unpack."""
    gradients = [torch.ones(param.shape, device=device) for param in task.make(device).parameters()]
    reduce = lambda: hvd.grouped_allreduce_(gradients, name="gradients")  # noqa: E731
    for _ in range(3):
        reduce()
    found = []
    for _ in range(rounds):
        hvd.barrier()
        found.append(timed(reduce, 3, device))
    return found


def same_everywhere(model: nn.Module) -> bool:
    """Have all ranks the same weights? A wrong sum would show."""
    mine = torch.cat([param.detach().reshape(-1) for param in model.parameters()])
    return all(torch.equal(mine, each) for each in hvd.allgather(mine.reshape(1, -1)))


def agreed(choose: Callable[[list[float]], float], mine: float) -> Any:
    """The least or the greatest of all ranks' numbers."""
    found = choose(hvd.allgather(torch.tensor([mine], dtype=torch.float64)).tolist())
    return type(mine)(found)


def way() -> str:
    """Who moves the bytes of tensors on GPUs."""
    sets = HOLDER.get().engine.sets
    return str(sets.backend(0, "cuda").name) if sets.gpu is not None else "none: by copies on the host"


def meet(device: torch.device) -> None:
    """Make torch.distributed's default process group of the same ranks."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = torch.tensor([server.getsockname()[1]])
    where = f"tcp://127.0.0.1:{int(hvd.broadcast(port, 0))}"
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=where, rank=hvd.rank(), world_size=hvd.size())


if __name__ == "__main__":
    main()
