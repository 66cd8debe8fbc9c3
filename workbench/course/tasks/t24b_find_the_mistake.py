"""Cards of lessons 24 to 27: programs on torch's own parallel APIs, each with a mistake; run on ranks that are threads.

A card's name says what the program should do, and its title the symptom; neither gives the cause.
"""

# mypy: disable-error-code="arg-type"

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from workbench.course.judging.card import PlainCard
from workbench.course.judging.rank_threads import as_ranks_do, on_torch_ranks
from workbench.course.judging.recognise import of_threads
from workbench.course.judging.task import Case

Expected = Callable[..., list[Any]]


def _ranks(name: str, expected: Expected, inputs: Callable[[], Sequence[Sequence[tuple[Any, ...]]]]) -> dict[str, Any]:
    """A card's judge: what is returned is called ``name``; inputs: of each case, by rank."""

    def cases() -> list[Case]:
        return [Case(len(each), "", each) for each in inputs()]

    def wanted(case: Case) -> list[Any]:
        return expected(*zip(*case.inputs, strict=True))

    properties = as_ranks_do(cases, wanted, (name,), run=on_torch_ranks)
    return {"properties": properties, "probes": cases, "outcome": of_threads(on_torch_ranks)}


def _normal(*shape: int, seed: int = 0) -> Any:
    import torch

    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def _model(*widths: int) -> Any:
    """Two layers, with the same weights whenever it is called."""
    from torch import nn

    first, hidden, last = widths
    model = nn.Sequential(nn.Linear(first, hidden), nn.Tanh(), nn.Linear(hidden, last)).double()
    for number, weight in enumerate(model.parameters()):
        weight.data = _normal(*weight.shape, seed=number)
    return model


def _serial(model: Any, batches: Sequence[Any]) -> list[Any]:
    """The mean gradients over batches, of one process."""
    import torch

    losses = torch.stack([model(x).square().mean() for x in batches])
    return [each.numpy() for each in torch.autograd.grad(losses.mean(), list(model.parameters()))]


# --- lesson 24: DDP ---------------------------------------------------------------------------------------


def accumulate_ddp(dist: Any, model: Any, batches: Any) -> Any:
    """Return the mean gradients over all micro-batches of all ranks, as a list.

    model: the same on all ranks. batches: this rank's micro-batches, all of one size.
    """
    from torch.nn.parallel import DistributedDataParallel

    ddp = DistributedDataParallel(model)
    with ddp.no_sync():
        for x in batches[:-1]:
            ddp(x).square().mean().backward()
    ddp(batches[-1]).square().mean().backward()
    return [each.grad / len(batches) for each in model.parameters()]


def _accumulated(models: Any, batches: Any) -> list[Any]:
    return [_serial(models[0], [x for mine in batches for x in mine])] * len(models)


def _micro_batches(n: int, count: int) -> list[tuple[Any, ...]]:
    return [(_model(4, 3, 2), [_normal(2, 4, seed=10 * rank + k) for k in range(count)]) for rank in range(n)]


ACCUMULATE = PlainCard(
    "24.accumulate_ddp",
    "no error, but each rank has gradients of its own",
    accumulate_ddp,
    **_ranks("the gradients", _accumulated, lambda: [_micro_batches(2, 2), _micro_batches(3, 3)]),
)


def fine_tune(dist: Any, model: Any, x: Any, frozen: Any) -> Any:
    """Return the names of the parameters that are trained, and the norm of their mean gradient.

    frozen: numbers of the layers that keep their weights. They are read from a file that only rank 0 has; the other
    ranks have an empty list, but all train the same layers.
    """
    from torch.nn.parallel import DistributedDataParallel

    told = [frozen]
    dist.broadcast_object_list(told, src=0)
    for layer in told[0]:
        model[layer].requires_grad_(False)
    ddp = DistributedDataParallel(model)
    ddp(x).square().mean().backward()
    trained = {name: each.grad for name, each in model.named_parameters() if each.requires_grad}
    return list(trained), sum(each.square().sum() for each in trained.values()).sqrt().item()


def _tuned(models: Any, batches: Any, frozen: Any) -> list[Any]:
    names = [name for name, _ in models[0].named_parameters()]
    pairs = zip(names, _serial(models[0], batches), strict=True)
    kept = {name: each for name, each in pairs if int(name[0]) not in frozen[0]}
    return [(list(kept), float(sum((each**2).sum() for each in kept.values()) ** 0.5))] * len(models)


def _frozen(n: int, *layers: int) -> list[tuple[Any, ...]]:
    return [(_model(4, 3, 2), _normal(5, 4, seed=rank), [] if rank else list(layers)) for rank in range(n)]


FINE_TUNE = PlainCard(
    "24.fine_tune",
    "DDP refuses a model that every rank has",
    fine_tune,
    **_ranks("the names and the norm", _tuned, lambda: [_frozen(2, 0), _frozen(3, 2)]),
)


def scaled_step(dist: Any, weights: Any, gradient: Any, scale: Any) -> Any:
    """Return (weights, scale) after a step in float16, equal on all ranks.

    gradient: this rank's, of `scale` times its loss. If a number in it is infinite on any rank, all ranks leave the
    weights as they are, and halve the scale; else weights - 0.1 * the ranks' mean gradient, without the scale.
    """
    import torch

    bad = torch.tensor(0.0 if gradient.isfinite().all() else 1.0)
    dist.all_reduce(bad, op=dist.ReduceOp.MAX)
    if bad:
        return weights, scale / 2
    dist.all_reduce(gradient)
    return weights - 0.1 * gradient / dist.get_world_size() / scale, scale


def _scaled(weights: Any, gradients: Any, scales: Any) -> list[Any]:
    total = sum(each.numpy() for each in gradients)
    if not abs(total).max() < float("inf"):
        return [(weights[0].numpy(), scales[0] / 2)] * len(scales)
    return [(weights[0].numpy() - 0.1 * total / len(scales) / scales[0], scales[0])] * len(scales)


def _gradients(n: int, *infinite: int) -> list[tuple[Any, ...]]:
    found = [(_normal(3), 64.0 * _normal(3, seed=1 + rank), 64.0) for rank in range(n)]
    for rank in infinite:
        found[rank][1][rank % 3] = float("inf")
    return found


SCALED_STEP = PlainCard(
    "24.scaled_step",
    "training hangs, after hours, when a loss is large",
    scaled_step,
    **_ranks("the weights and the scale", _scaled, lambda: [_gradients(2), _gradients(3, 1), _gradients(2, 0, 1)]),
)

# --- lesson 25: FSDP2 -------------------------------------------------------------------------------------


def checkpoint(dist: Any, model: Any) -> Any:
    """Shard the model over all ranks; then return, as for a file, on rank 0 all of its tensors, whole, as a list.

    model: the same on all ranks. The other ranks return None.
    """
    from torch.distributed.fsdp import fully_shard

    fully_shard(model)
    tensors = [each.full_tensor() for each in model.state_dict().values()]
    if dist.get_rank() == 0:
        return tensors
    return None


def _saved(models: Any) -> list[Any]:
    return [[each.detach().numpy() for each in models[0].parameters()], *[None] * (len(models) - 1)]


CHECKPOINT = PlainCard(
    "25.checkpoint",
    "the checkpoint is never written",
    checkpoint,
    **_ranks("the tensors", _saved, lambda: [[(_model(4, 3, 2),)] * n for n in (2, 3)]),
)


def clip_sharded(dist: Any, model: Any, x: Any, most: Any) -> Any:
    """Shard the model, and return its mean gradients, whole, as a list: clipped, as those of one process would be.

    All are multiplied by most / norm, if that is less than 1. The norm is of all numbers of all tensors.
    """
    from torch.distributed.fsdp import fully_shard

    fully_shard(model)
    model(x).square().mean().backward()
    squares = sum(each.grad.to_local().square().sum() for each in model.parameters())
    dist.all_reduce(squares)
    factor = min(1.0, most / squares.sqrt().item())
    return [factor * each.grad.full_tensor() for each in model.parameters()]


def _clipped(models: Any, batches: Any, most: Any) -> list[Any]:
    gradients = _serial(models[0], batches)
    factor = min(1.0, most[0] / float(sum((each**2).sum() for each in gradients) ** 0.5))
    return [[factor * each for each in gradients]] * len(models)


def _limited(n: int, most: float) -> list[tuple[Any, ...]]:
    model = _model(4, 3, 2)
    model[2].weight.data *= 1e4  # large gradients: the 1e-6 that torch adds to their norm is rounded off
    return [(model, _normal(5, 4, seed=rank), most) for rank in range(n)]


CLIP = PlainCard(
    "25.clip_sharded",
    "no error, but with more ranks gradients are clipped less",
    clip_sharded,
    **_ranks("the gradients", _clipped, lambda: [_limited(2, 1e12), _limited(2, 9e7), _limited(3, 1e3)]),
)

# --- lesson 26: tensor parallel ---------------------------------------------------------------------------


def dropout(dist: Any, x: Any, seed: Any, tensor: Any) -> Any:
    """Return x with about half of its numbers 0 and the others doubled, by a generator of its own.

    Ranks stand in a grid, `tensor` of them in a row. A row is a tensor group: each has the same x, and drops the same
    numbers. Row d takes seed + d, for other data ranks drop others.
    """
    import torch
    from torch.distributed.device_mesh import init_device_mesh

    shape = dist.get_world_size() // tensor, tensor
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))
    chance = torch.Generator().manual_seed(seed + mesh["data"].get_local_rank())
    return 2 * x * (torch.rand(x.shape, generator=chance) < 0.5)


def _dropped(x: Any, seed: Any, tensor: Any) -> list[Any]:
    import torch

    found = []
    for rank, (mine, number, ranks) in enumerate(zip(x, seed, tensor, strict=True)):
        chance = torch.Generator().manual_seed(number + rank // ranks)
        found.append((2 * mine * (torch.rand(mine.shape, generator=chance) < 0.5)).numpy())
    return found


def _grid(n: int, tensor: int) -> list[tuple[Any, ...]]:
    return [(_normal(3, 4, seed=rank // tensor), 7, tensor) for rank in range(n)]


DROPOUT = PlainCard(
    "26.dropout",
    "no error, but tensor-parallel training is worse than training by one process",
    dropout,
    **_ranks("x", _dropped, lambda: [_grid(2, 2), _grid(4, 2), _grid(2, 1)]),
)


def columns(dist: Any, seed: Any, rows: Any, width: Any) -> Any:
    """Return this rank's columns of a layer's first weights: with all ranks' beside each other, those of one process.

    One process draws them all: torch.randn(rows, width) with a generator of this seed. The ranks divide width.
    """
    import torch

    chance = torch.Generator().manual_seed(seed)
    whole = torch.randn(rows, width, generator=chance)
    return whole.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]


def _drawn(seed: Any, rows: Any, width: Any) -> list[Any]:
    import torch

    whole = torch.randn(rows[0], width[0], generator=torch.Generator().manual_seed(seed[0]))
    return [each.numpy() for each in whole.chunk(len(rows), dim=1)]


COLUMNS = PlainCard(
    "26.columns",
    "no error, but a layer of 4,096 columns learns as one of 1,024",
    columns,
    **_ranks("the columns", _drawn, lambda: [[(1, 2, 4)] * 2, [(2, 3, 6)] * 3]),
)


def with_bias(dist: Any, x: Any, weight: Any, bias: Any) -> Any:
    """Return x @ weight + bias, whole, on every rank; each rank keeps some columns of weight. All three are whole."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    weight = distribute_tensor(weight, mesh, [Shard(1)])
    x = distribute_tensor(x, mesh, [Replicate()])
    bias = distribute_tensor(bias, mesh, [Replicate()])
    return (x @ weight + bias).full_tensor()


def _added(x: Any, weights: Any, biases: Any) -> list[Any]:
    return [(x[0] @ weights[0] + biases[0]).numpy()] * len(x)


WITH_BIAS = PlainCard(
    "26.with_bias",
    "an addition is refused",
    with_bias,
    **_ranks(
        "the sum", _added, lambda: [[(_normal(2, 3), _normal(3, 6, seed=1), _normal(6, seed=2))] * n for n in (2, 3)]
    ),
)


def samples(dist: Any, count: Any, seed: Any, tensor: Any) -> Any:
    """Return the numbers of this rank's samples, as a list, by DistributedSampler with this seed.

    Ranks stand in a grid, `tensor` of them in a row. A row is a tensor group, which computes one batch together.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.utils.data.distributed import DistributedSampler

    shape = dist.get_world_size() // tensor, tensor
    data = init_device_mesh("cpu", shape, mesh_dim_names=("data", "tensor"))["data"]
    return list(DistributedSampler(range(count), data.size(), data.get_local_rank(), seed=seed))


def _dealt(counts: Any, seeds: Any, tensors: Any) -> list[Any]:
    from torch.utils.data.distributed import DistributedSampler

    given = zip(counts, seeds, tensors, strict=True)
    return [
        list(DistributedSampler(range(count), len(counts) // tensor, rank // tensor, seed=seed))
        for rank, (count, seed, tensor) in enumerate(given)
    ]


SAMPLES = PlainCard(
    "26.samples",
    "no error, and no loss that falls",
    samples,
    **_ranks("the samples", _dealt, lambda: [[(8, 3, 2)] * 2, [(8, 3, 2)] * 4, [(8, 3, 1)] * 2]),
)

# --- lesson 27: pipelines and experts ---------------------------------------------------------------------


def stages(dist: Any, x: Any) -> Any:
    """Send micro-batches through all ranks, of which each adds its rank; return on the last the results, as a list.

    x: a list of tensors; rank 0 has the numbers, the others the shapes alone. The other ranks return an empty list.
    """
    import torch

    rank, last, results = dist.get_rank(), dist.get_world_size() - 1, []
    for micro in x:
        if rank > 0:
            micro = torch.empty_like(micro)
            dist.recv(micro, rank - 1)
        micro = micro + rank
        if rank < last:
            dist.send(micro, rank + 1)
        else:
            results.append(micro)
    return results


def _passed(n: int, microbatches: int) -> list[tuple[Any, ...]]:
    return [([_normal(2, seed=k) for k in range(microbatches)],)] * n


def _passed_on(x: Any) -> list[Any]:
    return [*[[]] * (len(x) - 1), [(each + sum(range(len(x)))).numpy() for each in x[0]]]


STAGES = PlainCard(
    "27.stages",
    "all micro-batches have arrived, and a rank still waits",
    stages,
    **_ranks("the results", _passed_on, lambda: [_passed(2, 1), _passed(3, 4)]),
)


def dispatch(dist: Any, tokens: Any, expert: Any) -> Any:
    """Return the tokens for this rank's expert, of all ranks: first rank 0's, in their order there, and so on.

    tokens: this rank's, an array (tokens, width). expert: for each the rank of its expert.
    """
    import torch

    sent = torch.bincount(expert, minlength=dist.get_world_size())
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    mine = tokens.new_empty(int(received.sum()), tokens.shape[1])
    dist.all_to_all_single(mine, tokens[expert.argsort(stable=True)], received.tolist(), sent.tolist())
    return mine


def _routed(tokens: Any, experts: Any) -> list[Any]:
    import numpy as np

    pairs = list(zip(tokens, experts, strict=True))
    return [np.concatenate([each.numpy()[to.numpy() == rank] for each, to in pairs]) for rank in range(len(pairs))]


def _tokens(*experts: Sequence[int]) -> list[tuple[Any, ...]]:
    import torch

    return [(_normal(len(to), 2, seed=rank), torch.tensor(to)) for rank, to in enumerate(experts)]


DISPATCH = PlainCard(
    "27.dispatch",
    "it works in the test, and fails with real tokens",
    dispatch,
    **_ranks("the tokens", _routed, lambda: [_tokens([0, 1], [1, 0]), _tokens([1, 0, 1], [1, 1], [2, 0, 1, 1])]),
)


def through_experts(dist: Any, tokens: Any, received: Any, sent: Any) -> Any:
    """Divide the tokens of this rank's expert by their largest norm, and send them back; return this rank's own.

    tokens: an array (tokens, width) of those that have come; an expert may have got none. received, sent: lists, how
    many have come from each rank, and how many this rank had sent to each.
    """
    largest = tokens.norm(dim=1).max() if len(tokens) else 1.0
    back = tokens.new_empty(sum(sent), tokens.shape[1])
    dist.all_to_all_single(back, tokens / largest, sent, received)
    return back


def _back(tokens: Any, received: Any, sent: Any) -> list[Any]:
    import numpy as np

    done = [
        each.numpy() / max((*np.linalg.norm(each.numpy(), axis=1), 0.0)) if len(each) else each.numpy()
        for each in tokens
    ]
    parts = [np.split(each, np.cumsum(counts)[:-1]) for each, counts in zip(done, received, strict=True)]
    return [np.concatenate([mine[rank] for mine in parts]) for rank in range(len(sent))]


def _counts(*sent: Sequence[int]) -> list[tuple[Any, ...]]:
    received = [list(each) for each in zip(*sent, strict=True)]
    return [(_normal(sum(come), 2, seed=rank), come, list(sent[rank])) for rank, come in enumerate(received)]


THROUGH_EXPERTS = PlainCard(
    "27.through_experts",
    "once in a thousand steps all ranks fail, and one of them first",
    through_experts,
    **_ranks("the tokens", _back, lambda: [_counts((1, 2), (2, 1)), _counts((2, 0, 1), (1, 0, 3), (0, 0, 1))]),
)

TASKS = [ACCUMULATE, FINE_TUNE, SCALED_STEP, CHECKPOINT, CLIP, DROPOUT, COLUMNS, WITH_BIAS, SAMPLES, STAGES]
TASKS += [DISPATCH, THROUGH_EXPERTS]
