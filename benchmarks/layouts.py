"""The simulator of layouts beside what was measured: ``python benchmarks/layouts.py``, and ``--published``.

Measured here: ``examples/gpt.py`` on two ranks, each with one thread, in every layout that two ranks have, with torch's
own functions. What the simulator is told is measured, too: two copies at work at once without a message, and messages
of each kind, of two sizes. Held out are all steps with two ranks.

Published: steps of others, in ``published_layouts.csv``. Of each table one row gives the rate of computing, and all
others are held out.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from importlib import import_module
from itertools import groupby
from pathlib import Path
from statistics import median
from typing import Any

from workbench.course.training.layouts import Cluster, Layout, Transformer, memory, parts, seconds

HERE = Path(__file__).resolve().parent
SHAPES = {"a": (4, 256, 4, 256), "b": (6, 384, 6, 128), "c": (2, 512, 8, 256)}  # layers, width, heads, tokens
SAMPLES, SIZES = 16, (1 << 18, 1 << 23)  # of a step; bytes of messages
CUTS = [
    *[("data", Layout(data=2, microbatches=m, recompute="nothing")) for m in (1, 4)],
    *[("sharded", Layout(sharded=2, microbatches=m, recompute="nothing")) for m in (1, 2)],
    *[("tensor", Layout(tensor=2, microbatches=m, recompute="nothing")) for m in (1, 2)],
    *[("pipeline", Layout(pipeline=2, microbatches=m, recompute="nothing")) for m in (2, 4, 8)],
    ("context", Layout(context=2, recompute="nothing")),
]


def model_of(name: str, samples: int = SAMPLES) -> Transformer:
    """What the simulator is told of a shape, in float32."""
    layers, width, heads, tokens = SHAPES[name]
    return Transformer(layers, width, tokens, samples, 256, True, heads=heads, number_bytes=4, state=(4, 4, 8))


# --- on a rank --------------------------------------------------------------------------------------------


def gpt() -> Any:
    """The module of ``examples/gpt.py``."""
    sys.path.insert(0, str(HERE.parent / "examples"))
    return import_module("gpt")


def timed(steps: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The median of each step, of the slowest rank; in turns, for a machine is not always equally fast."""
    import torch
    import torch.distributed as dist

    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds + 1):
        for name, step in steps.items():
            dist.barrier()
            begun = time.perf_counter()
            step()
            took = torch.tensor([time.perf_counter() - begun])
            dist.all_reduce(took, op=dist.ReduceOp.MAX)
            taken[name].append(took.item())
    return {name: median(each[1:]) for name, each in taken.items()}


def messages() -> dict[str, Callable[[], Any]]:
    """Half an allreduce, as each axis has it: in place, into new arrays, and as DTensors that change their cut."""
    import torch
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    mesh, found = init_device_mesh("cpu", (2,)), dict[str, Callable[[], Any]]()
    for size in SIZES:
        whole = torch.ones(1, size // 1024, 256)  # of 4 bytes
        part, flat = whole.chunk(2, 1)[dist.get_rank()].contiguous(), torch.ones(size // 8)

        def gathered(flat: Any = flat) -> None:
            both = torch.empty(2 * len(flat))
            dist.all_gather_into_tensor(both, flat)
            dist.reduce_scatter_tensor(torch.empty_like(flat), both)

        def cut(whole: Any = whole, part: Any = part) -> None:
            DTensor.from_local(part, mesh, [Shard(1)]).redistribute(mesh, [Replicate()]).to_local()
            DTensor.from_local(whole, mesh, [Partial()]).redistribute(mesh, [Shard(1)]).to_local()

        found |= {f"data {size}": partial(dist.all_reduce, whole), f"sharded {size}": gathered, f"tensor {size}": cut}
    return found


def step_of(kind: str, name: str, microbatches: int) -> Callable[[], Any]:
    """A step of training without the optimizer, cut in two."""
    import torch
    import torch.distributed as dist

    module, rank = gpt(), dist.get_rank()
    layers, width, heads, tokens = SHAPES[name]
    torch.manual_seed(0)
    model = module.GPT(module.Shape(layers, width, heads, tokens))
    chance = torch.Generator().manual_seed(0)
    texts = torch.randint(256, (SAMPLES, tokens + 1), generator=chance)
    if kind == "pipeline":
        return _pipeline(model, texts, microbatches)
    if kind in ("alone", "data", "sharded"):
        texts = texts.chunk(2)[rank]
    run, several = _cut(kind, model), texts.chunk(microbatches)

    def step() -> None:
        model.zero_grad()
        for number, each in enumerate(several, 1):
            if kind == "data":
                run.require_backward_grad_sync = number == len(several)
            loss(run, each).backward()

    loss = _part_of_the_text if kind == "context" else module.loss_of
    return step


def _cut(kind: str, model: Any) -> Any:
    from torch.distributed.fsdp import fully_shard
    from torch.nn.parallel import DistributedDataParallel

    if kind == "data":
        return DistributedDataParallel(model)
    if kind == "sharded":
        for block in model.blocks:
            fully_shard(block)
        return fully_shard(model)
    if kind == "tensor":
        _tensor(model)
    if kind == "context":
        for block in model.blocks:
            block.attention.forward = lambda x, turns, its=block.attention: _attention(its, x, turns)
    return model


def _tensor(model: Any) -> None:
    """By heads and columns, with sequence parallelism between: as in lesson 26."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor import parallel as tp

    whole, part = Replicate(), Shard(1)
    gathered = {
        "attention": tp.PrepareModuleInput(
            input_layouts=(part, None), desired_input_layouts=(whole, None), use_local_output=True
        ),
        "mlp": tp.PrepareModuleInput(input_layouts=(part,), desired_input_layouts=(whole,), use_local_output=True),
    }
    columns = {f"attention.{each}": tp.ColwiseParallel() for each in ("query", "key", "value")}
    rows = {each: tp.RowwiseParallel(output_layouts=part) for each in ("attention.out", "mlp.down")}
    norms = {each: tp.SequenceParallel() for each in ("attention_norm", "mlp_norm")}
    mesh, last = init_device_mesh("cpu", (dist.get_world_size(),)), len(model.blocks) - 1
    for block in model.blocks:
        tp.parallelize_module(block, mesh, {**gathered, **columns, **rows, **norms, "mlp.up": tp.ColwiseParallel()})
    first = tp.PrepareModuleInput(
        input_layouts=(whole, None), desired_input_layouts=(part, None), use_local_output=True
    )
    behind = tp.PrepareModuleOutput(output_layouts=part, desired_output_layouts=whole)
    tp.parallelize_module(model, mesh, {"blocks.0": first, f"blocks.{last}": behind})


def _attention(layer: Any, x: Any, turns: Any) -> Any:
    """Of this rank's tokens to all: keys and values are gathered, as Llama 3's context parallelism does."""
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F

    class Gathered(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            whole = x.new_empty(dist.get_world_size() * len(x), *x.shape[1:])
            dist.all_gather_into_tensor(whole, x.contiguous())
            return whole

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            mine = grad.new_empty(len(grad) // dist.get_world_size(), *grad.shape[1:])
            dist.reduce_scatter_tensor(mine, grad.contiguous())
            return mine

    query, key, value = (
        each(x).unflatten(-1, (-1, layer.size)).transpose(1, 2) for each in (layer.query, layer.key, layer.value)
    )
    query, key = gpt().turned(query, turns), gpt().turned(key, turns)
    key, value = Gathered.apply(  # type: ignore[no-untyped-call]
        torch.stack((key, value)).permute(3, 0, 1, 2, 4)
    ).permute(1, 2, 3, 0, 4)
    tokens, first = key.shape[2], dist.get_rank() * x.shape[1]
    seen = torch.arange(tokens) <= first + torch.arange(x.shape[1])[:, None]
    return layer.out(F.scaled_dot_product_attention(query, key, value, attn_mask=seen).transpose(1, 2).flatten(-2))


def _part_of_the_text(model: Any, texts: Any) -> Any:
    import torch.distributed as dist
    import torch.nn.functional as F

    rank, n = dist.get_rank(), dist.get_world_size()
    mine, words = texts[:, :-1].chunk(n, 1)[rank], texts[:, 1:].chunk(n, 1)[rank]
    x = model.embedding(mine)
    turns = model.turns.chunk(n)[rank]
    for block in model.blocks:
        x = block(x, turns)
    return F.cross_entropy(model.head(model.norm(x)).flatten(0, 1), words.flatten())


def _pipeline(model: Any, texts: Any, microbatches: int) -> Callable[[], Any]:
    import torch
    import torch.distributed as dist
    import torch.nn.functional as F
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B

    rank, half = dist.get_rank(), len(model.blocks) // 2

    class Stage(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = model.blocks[half:] if rank else model.blocks[:half]
            self.ends = torch.nn.ModuleList([model.norm, model.head] if rank else [model.embedding])

        def forward(self, x: Any) -> Any:
            x = x if rank else self.ends[0](x)
            for block in self.blocks:
                x = block(x, model.turns)
            return self.ends[1](self.ends[0](x)) if rank else x

    stage = Stage()

    def loss(scores: Any, words: Any) -> Any:
        return F.cross_entropy(scores.flatten(0, 1), words.flatten())

    schedule = Schedule1F1B(PipelineStage(stage, rank, 2, torch.device("cpu")), microbatches, loss_fn=loss)

    def step() -> None:
        stage.zero_grad()
        schedule.step(*[texts[:, :-1]] * (rank == 0), **{"target": texts[:, 1:]} if rank else {})

    return step


def measure(rounds: int) -> dict[str, float]:
    """On each of two ranks: seconds of messages by kind and bytes, of a step alone by micro-batches, of all cuts."""
    import torch
    import torch.distributed as dist

    import workbench.torch.distributed  # noqa: F401 - the backend

    torch.set_num_threads(1)
    dist.init_process_group("workbench")
    found = timed(messages(), 5 * rounds)
    for name in SHAPES:
        steps = {f"{name} alone {m}": step_of("alone", name, m) for m in (1, 2, 4)}
        steps |= {f"{name} {kind} {cut.microbatches}": step_of(kind, name, cut.microbatches) for kind, cut in CUTS}
        found |= timed(steps, rounds)
    dist.destroy_process_group()
    return found


# --- beside the simulator ---------------------------------------------------------------------------------


def here(found: dict[str, float]) -> Iterator[tuple[str, float, float]]:
    """(what, measured, predicted) seconds of each step that was cut."""
    small, large = SIZES
    for name in SHAPES:
        for kind, cut in CUTS:
            by = {"pipeline": "data", "context": "sharded"}.get(kind, kind)  # whose messages these are like
            two_s = {size: found[f"{by} {size}"] for size in SIZES}  # of both halves of an allreduce
            per_byte_s = (two_s[large] - two_s[small]) / (large - small)
            latency_s = max(0.0, two_s[small] - per_byte_s * small) / 2
            micro = SAMPLES / (cut.batches * cut.microbatches)
            alone = min((1, 2, 4), key=lambda m: abs(SAMPLES / 2 / m - micro))  # copies have half of the samples
            model = model_of(name, SAMPLES // 2)
            one = parts(model, Cluster(1, 1, flops=1.0), Layout(microbatches=alone, recompute="nothing"))[0]
            reached = one / found[f"{name} alone {alone}"]
            place = Cluster(1, 2, flops=reached, inside_s=per_byte_s, latency_s=latency_s)
            yield (
                f"{name} {kind}, micro-batches: {cut.microbatches}",
                found[f"{name} {kind} {cut.microbatches}"],
                seconds(model_of(name), place, cut),
            )


A100 = Cluster(1, inside_s=1 / 235e9, between_s=1 / 200e9, memory_s=1 / 2.0e12)
H100 = Cluster(1, inside_s=1 / 368e9, between_s=1 / 400e9, memory_s=1 / 2.4e12)
PLAYBOOK = Cluster(1, inside_s=1 / 436e9, memory_s=1 / 3.35e12)
"""Bytes a second that are measured or given by others: of allreduces inside a host, of a host's network, of memory."""


def published() -> Iterator[tuple[str, list[tuple[str, Transformer, Cluster, Layout, float, float]]]]:
    """By table: (model, shape, cluster without its rate of computing, layout, seconds, memory in GiB or 0)."""
    with (HERE / "published_layouts.csv").open() as file:
        for table, rows in groupby(csv.DictReader(file), key=lambda row: row["table"]):
            yield table, [_row(table, row) for row in rows]


def _row(table: str, row: dict[str, str]) -> tuple[str, Transformer, Cluster, Layout, float, float]:
    whole = ("layers", "width", "tokens", "samples", "vocabulary", "tied", "heads", "number_bytes")
    shape: dict[str, Any] = {name: int(row[name]) for name in whole}
    shape |= {"per_layer": int(row["per_layer"] or 0), "key_width": float(row["key_width"]), "kept": float(row["kept"])}
    axes = ("data", "tensor", "pipeline", "microbatches", "sharded", "context", "chunks", "zero")
    layout = Layout(**{name: int(row[name]) for name in axes}, recompute=row["recompute"])
    place = A100 if "Megatron" in table else H100 if "titan" in table else PLAYBOOK
    place = replace(place, hosts=int(row["gpus"]) // 8, overlap=float(row["overlap"]))
    state = tuple(map(float, row["state"].split()))
    model = Transformer(**shape, state=state)  # type: ignore[arg-type]
    return row["model"], model, place, layout, float(row["seconds"]), float(row["memory_gib"] or 0)


def solved(took: Callable[[float], float], wanted: float, low: float, high: float) -> float:
    """Where a function of one number that falls, or rises, has a value."""
    rises = took(high) > took(low)
    for _ in range(100):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if (took(middle) > wanted) == rises else (middle, high)
    return low


def compared(rows: list[Any], table: str) -> tuple[str, list[tuple[str, float, float, float, float]]]:
    """What was fitted, in words; then, of the other rows, seconds published and predicted, GiB published and predicted.

    The first row gives the rate of computing. Two tables need the second row for one more constant: the playbook, with
    up to 256 micro-batches, what a layer takes at least; that with float8, whose attention computes in bf16, the rate
    of scores.
    """
    known = 2 if "Playbook" in table or "float8" in table else 1

    def rated(place: Cluster, flops: float, other: float) -> Cluster:
        if "Playbook" in table:
            return replace(place, flops=flops, layer_s=other)
        return replace(place, flops=flops, score_flops=other if known == 2 else 0.0)

    flops, other = 4e14, 3e-3 if "Playbook" in table else 3e14
    for _ in range(20 if known == 2 else 1):
        for number in range(known):
            _, model, place, layout, wanted, _ = rows[number]
            if number == 0:
                flops = solved(lambda x: seconds(model, rated(place, x, other), layout), wanted, 1e13, 5e15)  # noqa: B023
            else:
                low, high = (1e-5, 1e-1) if "Playbook" in table else (1e13, 5e15)
                other = solved(lambda x: seconds(model, rated(place, flops, x), layout), wanted, low, high)  # noqa: B023
    words = f"{flops / 1e12:.0f} TFLOP/s of each GPU"
    if known == 2:
        words += (
            f", a layer takes {1e3 * other:.1f} ms at least" if "Playbook" in table else f", scores {other / 1e12:.0f}"
        )
    held = [
        (name, wanted, seconds(model, rated(place, flops, other), layout), gib, sum(memory(model, layout)) / 2**30)
        for name, model, place, layout, wanted, gib in rows[known:]
    ]
    return words, held


def errors(pairs: list[tuple[float, float]]) -> str:
    """Median and worst of predicted beside what was found."""
    off = [abs(predicted / found - 1) for found, predicted in pairs]
    return f"median {median(off):.1%}, worst {max(off):.1%} of {len(off)}"


def main() -> None:
    """Print what was found, what was predicted, and how far off it is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--published", action="store_true", help="the tables of others alone; nothing is measured")
    parser.add_argument("--rounds", type=int, default=7, help="steps of which the median counts")
    parser.add_argument("--out", type=Path, help="write what was measured here")
    words = parser.parse_args()
    for table, rows in published():
        told, held = compared(rows, table)
        print(f"{table}: {told}; {errors([each[1:3] for each in held])}")
        for name, wanted, got, gib, predicted in held:
            in_memory = f"; {gib:5.1f} GiB, predicted {predicted:5.1f}" if gib else ""
            print(f"  {name:52} {wanted:7.2f} s, predicted {got:7.2f} {got / wanted - 1:+6.1%}{in_memory}")
    if words.published:
        return
    import workbench

    found = workbench.run(measure, (words.rounds,), np=2)[0]
    if words.out:
        words.out.write_text(json.dumps(found, indent=1) + "\n")
    pairs = list(here(found))
    print(f"Two ranks on this machine: {errors([each[1:] for each in pairs])}")
    for what, wanted, got in pairs:
        print(f"  {what:40} {wanted:6.3f} s, predicted {got:6.3f} {got / wanted - 1:+6.1%}")


if __name__ == "__main__":
    main()
