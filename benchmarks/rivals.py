"""Images per second beside what people choose today: ``mpiexec -n 2 python benchmarks/rivals.py --models cnn mlp``.

As ``training.py``, with other peers: DDP in each of its forms and with its hooks that send fewer bytes, FSDP2,
Accelerate, and DeepSpeed with each stage of ZeRO. A rival that is not installed, or does not start here, is written
down as absent, and the rest runs; ``pip install accelerate deepspeed`` brings both (DeepSpeed compiles a helper
at its first start and needs a C++ compiler for it).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import logging
import os
import socket
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import peers
import torch
from models import GPT, TASKS, Task
from peers import MPI, hvd
from torch import nn
from torch._dynamo.utils import counters
from torch.distributed.tensor import DTensor
from training import LIMIT, NO_BUFFERS, Built, ddp, distributed, measure, sgd, weights

DDP_OURS, FSDP_OURS = "DDP over the workbench", "FSDP2 over the workbench"
OURS = ["workbench", "workbench sharded", "workbench, fp16", DDP_OURS, FSDP_OURS]
MODELS = {**TASKS, "gpt": GPT}
_STAGES = (1, 2, 3)
_NO_GRAPH = ", no graph"
Builders = dict[str, Callable[[nn.Module], Built]]


def main() -> None:
    """Measure on all ranks; rank 0 prints one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one round of the limit, about")
    parser.add_argument("--without", action="append", default=[], metavar="NAME", help="a rival that does not run here")
    parser.add_argument("--compiled", action="store_true", help="every peer's model, by torch.compile")
    args = peers.arguments(parser)
    comm = peers.start()
    name_ranks(comm)
    builders, absent = here(comm, args.without, args.compiled)
    cases = []
    for name in args.models:
        task: Task = MODELS[name]
        need = (400 << 20) + len(builders) * 4 * 4 * sum(param.numel() for param in task.make().parameters())
        if not peers.fits(comm, need):
            absent[task.title] = "too little memory here"
            continue
        case = measure(comm, task, builders, args.rounds, args.seconds, whole, peers.now)
        case["title"] += ", compiled" * args.compiled
        cases.append(case)
        gc.collect()
    ours = [name for name in builders if name in OURS]
    peers.finish(comm, {"section": "rivals", "ours": ours, "limit": LIMIT, "cases": cases, "absent": absent})


def here(comm: MPI.Intracomm, without: Sequence[str], compiled: bool) -> tuple[Builders, dict[str, str]]:
    """How each peer makes a model train together, and which are not to be had, and why.

    A peer whose hooks leave torch.compile nothing to compile has that in its name.
    """
    import workbench.torch.distributed  # noqa: F401 - registers the backend

    ours = torch.distributed.new_group(backend="workbench")
    builders: Builders = {
        LIMIT: lambda model: (model, sgd(model)),
        "workbench": lambda model: (model, distributed(hvd, model, "plain")),
        "workbench sharded": lambda model: (model, distributed(hvd, model, "sharded", sharded=True)),
        "workbench, fp16": lambda model: (model, distributed(hvd, model, "fp16", compression=hvd.Compression.fp16)),
        DDP_OURS: lambda model: ddp(model, process_group=ours),
        FSDP_OURS: lambda model: fsdp2(model, ours),
        "DDP": lambda model: ddp(model),
        "DDP, bucket view": lambda model: ddp(model, gradient_as_bucket_view=True),
        "DDP, static graph": lambda model: ddp(model, static_graph=True),
        "DDP tuned": lambda model: ddp(model, gradient_as_bucket_view=True, static_graph=True, **NO_BUFFERS),
        "DDP, bf16 hook": lambda model: hooked(model, "bf16"),
        "DDP, PowerSGD hook": lambda model: hooked(model, "powersgd"),
        "FSDP2": fsdp2,
        "Accelerate": accelerate,
        **{f"DeepSpeed ZeRO {stage}": lambda model, stage=stage: deepspeed(model, stage) for stage in _STAGES},
    }
    for name in without:
        del builders[name.removesuffix(_NO_GRAPH)]
    if compiled:
        builders = {name: partial(after_compiling, build) for name, build in builders.items()}
    absent = {}
    for name in [each for each in builders if each not in (LIMIT, *OURS)]:
        torch._dynamo.reset()
        counters.clear()
        problem = tried(builders[name])
        problems = [each for each in comm.allgather(problem) if each]
        if problems:
            del builders[name]
            absent[name] = problems[0]
        elif compiled and not counters["stats"]["unique_graphs"]:
            builders[name + _NO_GRAPH] = builders.pop(name)
    return builders, absent


def tried(build: Callable[[nn.Module], Built]) -> str:
    """Why a peer cannot train the smallest of models here, or ""."""
    try:
        model, optimizer = build(nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 2)))
        for _ in range(2):
            optimizer.zero_grad()
            getattr(optimizer, "backward", torch.Tensor.backward)(model(torch.ones(3, 4)).sum())
            optimizer.step()
    except Exception as error:  # noqa: BLE001 - whatever a rival raises where it does not run
        return f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return ""


def hooked(model: nn.Module, how: str) -> Built:
    """DDP, with its hook that sends bf16, or a product of two thin matrices."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    wrapped, optimizer = ddp(model, gradient_as_bucket_view=True)
    if how == "bf16":
        wrapped.register_comm_hook(None, default_hooks.bf16_compress_hook)  # type: ignore[operator]
    else:
        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
        wrapped.register_comm_hook(state, powerSGD_hook.powerSGD_hook)  # type: ignore[operator]
    return wrapped, optimizer


def fsdp2(model: nn.Module, group: Any = None) -> Built:
    """``fully_shard`` around each layer, or block of layers, that has parameters, and around the whole."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    mesh = DeviceMesh.from_group(group or torch.distributed.group.WORLD, "cpu")
    for layer in getattr(model, "blocks", model).children():
        if any(True for _ in layer.parameters()):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, sgd(model)


def accelerate(model: nn.Module) -> Built:
    """As its documentation says: model and optimizer are prepared together."""
    from accelerate import Accelerator  # type: ignore[import-not-found]

    made = Accelerator(cpu=True)
    torch.set_num_threads(1)  # as all peers; it chooses by itself
    return made.prepare(model, sgd(model))  # type: ignore[no-any-return]


class DeepSpeedStep:
    """DeepSpeed's engine as an optimizer: it does the backward pass and the step, and clears the gradients."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.backward, self.step = engine.backward, engine.step

    def zero_grad(self) -> None:
        """The engine's step has done it."""


def deepspeed(model: nn.Module, stage: int) -> Built:
    """With a stage of ZeRO."""
    os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed as library  # type: ignore[import-not-found]

    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    config = {
        "train_micro_batch_size_per_gpu": 1,
        "zero_optimization": {"stage": stage},
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "gradient_clipping": 0.0,  # else it clips at a norm of 1
    }
    engine, *_ = library.initialize(model=model, optimizer=sgd(model), config=config, dist_init_required=False)
    return engine, DeepSpeedStep(engine)  # type: ignore[return-value]


def whole(param: torch.Tensor) -> np.ndarray:
    """A parameter's values, also of one that the ranks share."""
    if isinstance(param, DTensor):
        return weights(param.full_tensor())
    if hasattr(param, "ds_id"):  # DeepSpeed's, of stage 3
        import deepspeed as library

        with library.zero.GatheredParameters([param]):
            return weights(param).copy()
    return weights(param)


def after_compiling(build: Callable[[nn.Module], Built], model: nn.Module) -> Built:
    """The peer wraps the compiled model."""
    return build(torch.compile(model))  # type: ignore[arg-type]


def name_ranks(comm: MPI.Intracomm) -> None:
    """The variables by which torch's launchers name ranks: Accelerate and DeepSpeed read them."""
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as server:
        port = comm.bcast(server.getsockname()[1])
    rank, size = str(comm.rank), str(comm.size)
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}


if __name__ == "__main__":
    main()
