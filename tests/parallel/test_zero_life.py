"""ZeRO 2 and 3 as objects: bytes and memory, what is refused and by which words, replaced, broken off, looked at."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from all_ranks import wait_for_all
from bag import MAKES, Pair
from broken_off import broken_off, fail
from counted import counted
from thorough import diagonal
from torch import nn
from zero import OPTIMIZERS, STAGES, Mixed, Twins, net

import workbench.torch as hvd
from workbench.errors import CollectiveError, MismatchError
from workbench.job.context import HOLDER
from workbench.torch.sharded.memory_tracker import MemoryTracker


def wide(layers: int = 8, width: int = 64) -> nn.Module:
    """Layers of one size, which 2 and 4 ranks divide."""
    torch.manual_seed(0)
    return nn.Sequential(*(each for _ in range(layers) for each in (nn.Linear(width, width), nn.Tanh())))


def trained(model: nn.Module, stage: Any, **options: Any) -> Callable[[], None]:
    """A function that makes one step."""
    if stage == "parameters":
        hvd.shard_parameters(model)
    inner = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), sharded=stage, **options)
    x = torch.ones(2, 64)

    def step() -> None:
        optimizer.zero_grad()
        model(x).square().sum().backward()
        optimizer.step()

    step.optimizer = optimizer  # type: ignore[attr-defined]
    return step


# --- bytes and memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("stage", "times"), [("optimizer", 2), ("gradients", 2), ("parameters", 3)])
def test_bytes_sent(stage: str, times: int, n: int, job_with: Callable[..., None]) -> None:
    """A step sends 2(n - 1)/n of the parameters' bytes, with stage 3 once more (n - 1)/n. Counted at the Link."""
    job_with(BACKEND="mpi", EAGER_BYTES=0, BUCKET_BYTES=40_000)
    model = wide()
    nbytes = sum(param.numel() * param.element_size() for param in model.parameters())
    step = trained(model, stage)
    for _ in range(3):
        step()
    hvd.barrier()
    with counted() as sent:
        step()
        hvd.barrier()
    # Beside the parameters: which of them have a gradient, a byte for each; ZeRO 1 also gathers the buckets' padding.
    assert sent.bytes == pytest.approx(times * (n - 1) / n * nbytes, rel=0.002)


@pytest.mark.parametrize("stage", STAGES)
def test_bytes_alive(stage: str, n: int, job_with: Callable[..., None]) -> None:
    """At most, and after a step, there are as many bytes as the stage's formula says, within a tenth."""
    layers, width = 8, 64
    layer = 4 * (width * width + width)
    job_with(BUCKET_BYTES=layer)
    model, whole = wide(layers, width), layers * layer
    step = trained(model, stage)
    for _ in range(2):
        step()
    with MemoryTracker([*model.parameters()] if stage == "gradients" else []) as live:
        step()
        live.peak = 0
        step()
        rest = live.now()
    shards = {"gradients": whole + 2 * whole / n, "parameters": 3 * whole / n}[stage]
    # In flight: two layers' gradients; in stage 3 also the one whose parameters are gathered.
    assert live.peak == pytest.approx(shards + layer * {"gradients": 2, "parameters": 3}[stage], rel=0.1)
    assert rest == pytest.approx(shards - whole / n, rel=0.1)


# --- a parameter that is not here ---------------------------------------------------------------------


def test_who_looks_at_a_resharded_parameter(n: int) -> None:
    """Whatever needs its values says whose it is and what to do; its shape, dtype and name can be looked at."""
    twins = Twins("parameters", net, OPTIMIZERS["SGD"])
    weight = twins.model.get_parameter("0.weight")
    assert (tuple(weight.shape), weight.dtype, weight.numel()) == ((13, 7), torch.float64, 91)
    assert "0.weight" in repr(weight)
    for look in (weight.sum, lambda: weight + 1, weight.tolist, lambda: copy.deepcopy(twins.model), weight.data_ptr):
        with pytest.raises(RuntimeError, match=r"'0.weight' is divided among the ranks.*hvd.full_parameters"):
            look()
    with pytest.raises(RuntimeError, match=r"hvd\.full_state_dict"):
        twins.model.state_dict()
    twins.step(0)
    twins.check()


def test_a_module_that_uses_another_s_parameter(n: int) -> None:
    """It is told which units to give; with these units it works."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.encode = nn.Linear(7, 5, dtype=torch.float64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.encode(x) @ self.encode.weight @ self.encode.weight.T

    model = hvd.shard_parameters(Tied())
    with pytest.raises(RuntimeError, match=r"'encode.weight' is divided.*units=\["):
        model(torch.ones(1, 7, dtype=torch.float64))
    model = Tied()
    hvd.shard_parameters(model, units=[])
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), sharded="parameters")
    twin = Tied()
    reference = torch.optim.SGD(twin.parameters(), lr=0.1)
    for one, its in ((model, optimizer), (twin, reference)):
        one(torch.ones(2, 7, dtype=torch.float64)).sum().backward()
        its.step()
    assert torch.allclose(hvd.full_state_dict(model)["encode.weight"], twin.encode.weight, rtol=0, atol=1e-12)


def test_full_parameters_can_be_changed(rank: int, n: int) -> None:
    """What all ranks change alike stays, and training goes on from there; step() within is refused."""
    twins = Twins("parameters", net, OPTIMIZERS["SGD"])
    twins.step(0)
    with torch.no_grad():
        with hvd.full_parameters(twins.model) as model:
            model.get_parameter("0.weight").mul_(2.0)
            assert torch.isfinite(model.get_parameter("0.weight")).all()
            with pytest.raises(RuntimeError, match="would be undone"):
                twins.optimizer.step()
        twins.twin.get_parameter("0.weight").mul_(2.0)
    twins.go_on(range(1, 3))


def test_an_error_amid_forward(n: int) -> None:
    """A layer that raises on all ranks leaves nothing gathered, and the next step is right."""
    twins = Twins("parameters", net, OPTIMIZERS["SGD"])
    twins.step(0)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        twins.model(torch.ones(1, 6, dtype=torch.float64))
    assert not any(flat.unsharded for flat in twins.optimizer._distributed.backward.flats)
    twins.step(1)
    twins.check()


# --- what is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"compression": hvd.Compression.fp16}, "compression"),
        ({"num_groups": 2}, "groups"),
        ({"groups": 2}, "groups"),
        ({"op": hvd.Sum}, "op=sum"),
        ({"op": hvd.Adasum}, "op=adasum"),
        ({"gradient_predivide_factor": 2.0}, "gradient_predivide_factor"),
        ({"sparse_as_dense": True}, "sparse_as_dense"),
        ({"overlap_forward": True}, "overlap_forward"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_options_that_do_not_go_with_it(stage: str, options: dict[str, Any], named: str, n: int) -> None:
    """Each is refused at once, by name."""
    inner = torch.optim.SGD([nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(ValueError, match=f"sharded='{stage}' does not go with {named}"):
        hvd.DistributedOptimizer(inner, sharded=stage, **options)


def test_words_that_are_no_stage(n: int) -> None:
    """The error lists those that are; parameters that are not divided, or are already, are named."""
    model = nn.Linear(2, 2)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(ValueError, match="sharded='params': give one of False, True, 'optimizer', 'gradients', 'param"):
        hvd.DistributedOptimizer(inner, sharded="params")
    with pytest.raises(ValueError, match=r"weight, bias is not divided. Call hvd.shard_parameters\(model\)"):
        hvd.DistributedOptimizer(inner, model.named_parameters(), sharded="parameters")
    hvd.shard_parameters(model)
    with pytest.raises(ValueError, match="are divided already"):
        hvd.shard_parameters(model)
    for stage in (False, True, "gradients"):
        with pytest.raises(ValueError, match="Give DistributedOptimizer sharded='parameters'"):
            hvd.DistributedOptimizer(torch.optim.SGD(model.parameters()), model.named_parameters(), sharded=stage)
    with pytest.raises(ValueError, match="Linear is no module of this model"):
        hvd.shard_parameters(nn.Linear(2, 2), units=[nn.Linear(1, 1)])


@pytest.mark.parametrize("stage", STAGES)
def test_what_has_no_parts(stage: str, n: int) -> None:
    """GradScaler, elastic states, and sparse gradients: refused, and what to do is said."""
    step = trained(wide(1), stage)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    with pytest.raises(RuntimeError, match="Use bfloat16, which needs no GradScaler"):
        scaler.step(step.optimizer)  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="sharded='gradients' and 'parameters' do not work with it"):
        hvd.elastic.TorchState(optimizer=step.optimizer)  # type: ignore[attr-defined]
    model = nn.Embedding(5, 3, sparse=True)
    if stage == "parameters":
        hvd.shard_parameters(model)
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), sharded=stage)
    with pytest.raises(ValueError, match=f"'weight' is sparse, and sharded='{stage}' takes dense ones only"):
        model(torch.tensor([1])).sum().backward()
    optimizer.abandon_step()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("stage", STAGES)
def test_models_that_differ(stage: str, rank: int, n: int) -> None:
    """Another shape, or another number of layers, on one rank: all ranks are told where, before anything is divided."""
    for mine, words in (
        (nn.Linear(3, 4 if rank else 2), r"number 0:\n  rank 0: weight: \(2, 3\).*\n  rank 1: weight: \(4, 3\)"),
        (nn.Linear(3, 2, bias=not rank), r"number 1:\n  rank 0: bias.*\n  rank 1: units"),
    ):
        with pytest.raises(MismatchError, match=words):
            trained(mine, stage)


@pytest.mark.ranks(2)
def test_join_is_no_way_out(rank: int, n: int) -> None:
    """A rank that has joined has no part to give: the others hear that in the next step, and none hangs."""
    step = trained(wide(2), "gradients")
    step()
    if rank:
        with pytest.raises(CollectiveError, match="Reducescatter is not supported with Join"):
            step()
        step.optimizer.abandon_step()  # type: ignore[attr-defined]
    hvd.join()
    hvd.barrier()


# --- replaced, lost, broken off -----------------------------------------------------------------------


@pytest.mark.parametrize(("first", "later"), diagonal([False, True, "gradients"], ["gradients", False, True]))
def test_another_optimizer_takes_over(first: Any, later: Any, n: int) -> None:
    """Made again for the same model, at whichever stage: the first one says so, and the new one is right."""
    pair = Pair(n, sharded=first)
    pair.go_on(range(3))
    old = pair.optimizer
    pair.wrap(sharded=later)
    pair.reference = pair.make(pair.twin.parameters())
    if n > 1 or first == "gradients":
        with pytest.raises(RuntimeError, match="has taken over"):
            old.step()
    pair.go_on(range(3, 6))
    pair.check_state()


def test_another_optimizer_of_a_divided_model(n: int) -> None:
    """The first one says that it was replaced, and the new one trains on."""
    twins = Twins("parameters", net, OPTIMIZERS["SGD"])
    twins.step(0)
    old = twins.optimizer
    inner = OPTIMIZERS["Adam"](twins.model.parameters())
    twins.optimizer = hvd.DistributedOptimizer(inner, twins.model.named_parameters(), sharded="parameters")
    twins.reference = OPTIMIZERS["Adam"](twins.twin.parameters())
    with pytest.raises(RuntimeError, match="has taken over"):
        old.step()
    twins.go_on(range(1, 3))
    with pytest.raises(ValueError, match="DistributedOptimizer already"):
        hvd.DistributedOptimizer(twins.optimizer, sharded="parameters")


def halves(*models: nn.Module) -> list[nn.Sequential]:
    """The first layer and the others, of each model."""
    return [half for model in models for half in (nn.Sequential(*model)[:1], nn.Sequential(*model)[1:])]


def test_two_optimizers_of_one_divided_model(n: int) -> None:
    """Disjoint parts: the first one says so, and what helps. With each part divided by itself both are right."""
    first, last, its_first, its_last = halves(wide(3), wide(3))

    def made(part: nn.Module) -> Any:
        inner = OPTIMIZERS["Adam"](part.parameters())
        return hvd.DistributedOptimizer(inner, part.named_parameters(), sharded="parameters")

    together = hvd.shard_parameters(wide(3))
    old, _ = map(made, halves(together))
    with pytest.raises(RuntimeError, match=r"other parameters of the same model \('\d\.weight' \.\.\.\)"):
        old.step()
    optimizers = [made(hvd.shard_parameters(part)) for part in (first, last)]
    optimizers += [OPTIMIZERS["Adam"](part.parameters()) for part in (its_first, its_last)]
    for step in range(3):
        x = torch.randn(n, 64, generator=torch.Generator().manual_seed(step))
        for each in optimizers:
            each.zero_grad()
        last(first(x[hvd.rank()])).square().mean().backward()
        its_last(its_first(x)).square().mean().backward()
        for each in optimizers:
            each.step()
    for mine, its in ((first, its_first), (last, its_last)):
        for name, value in hvd.full_state_dict(mine).items():
            assert torch.allclose(value, its.state_dict()[name], rtol=0, atol=1e-5)


def test_a_model_that_is_moved(n: int) -> None:
    """When a parameter gets other memory, the update would miss the model: an error says so, and what to do."""
    pair = Pair(n, MAKES["SGD"], sharded="gradients")
    pair.step(0)
    pair.bag._apply(lambda tensor: tensor.clone())
    with pytest.raises(RuntimeError, match=r"memory of parameter '\w.*' has been replaced.*Make a new one"):
        pair.optimizer.step()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("stage", STAGES)
def test_another_job(stage: str, n: int, job_with: Callable[..., None]) -> None:
    """After shutdown() and init() the others' parts are gone: it says so, and a checkpoint goes on."""
    twins = Twins(stage, net, OPTIMIZERS["Adam"])
    twins.step(0)
    weights, state = hvd.full_state_dict(twins.model), copy.deepcopy(twins.optimizer.state_dict())
    job_with()
    with pytest.raises(RuntimeError, match="belongs to a job that has ended"):
        twins.optimizer.step()
    if stage == "parameters":
        with pytest.raises(RuntimeError, match=r"belong to a job that has ended.*hvd\.load_full_state_dict"):
            twins.loss(twins.model, 1, [hvd.rank()])
    again = Twins(stage, net, OPTIMIZERS["Adam"])
    again.twin, again.reference = twins.twin, twins.reference
    hvd.load_full_state_dict(again.model, weights)
    again.optimizer.load_state_dict(state)
    again.step(1)
    again.check()
    again.check_state()


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("when", "stage"), [("in backward", "gradients"), ("in forward", "parameters")])
def test_a_rank_that_raises_amid_a_step(when: str, stage: str, rank: int, n: int) -> None:
    """Its exception ends the step on all ranks, none hangs, and the ranks train on from a checkpoint."""
    twins = Twins(stage, net, OPTIMIZERS["Adam"])
    twins.step(0)
    weights, state = hvd.full_state_dict(twins.model), copy.deepcopy(twins.optimizer.state_dict())
    hvd.barrier()
    raises = rank == n - 1

    hooks = []
    if raises and when == "in backward":
        hooks.append(twins.model.get_parameter("0.weight").register_hook(fail))
    elif raises:
        hooks.append(twins.model.get_submodule("2").register_forward_pre_hook(fail))

    def step() -> None:
        twins.loss(twins.model, 1, [rank]).backward()
        twins.optimizer.step()
        hvd.full_state_dict(twins.model)

    broken_off(step, hooks)
    twins.optimizer.abandon_step()
    hvd.load_full_state_dict(twins.model, weights)
    twins.optimizer.load_state_dict(state)
    twins.go_on(range(1, 3))
    twins.check_state()


@pytest.mark.ranks(2)
def test_a_layer_that_one_rank_alone_runs(rank: int, n: int) -> None:
    """In stage 3 the others would have to gather it, too: all ranks get an error that names it."""
    model = hvd.shard_parameters(Mixed())
    x = torch.ones(2, 7, dtype=torch.float64)
    cell = HOLDER.get()
    cell.cell_begins()

    def forward() -> None:
        model(x, extra=rank == 0)
        hvd.barrier()

    with pytest.raises(CollectiveError, match=r"some_ranks.weight|last.weight"):
        forward()
    wait_for_all()
    cell.cell_begins()
    hvd.barrier()
