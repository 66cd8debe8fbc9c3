"""Exact mode: the weights of any number of ranks are, bit for bit, those of a serial run over the logical shards."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from thorough import diagonal
from torch import nn

import workbench.torch as hvd
from workbench import config
from workbench.elastic.exact import seed_for
from workbench.errors import CollectiveError
from workbench.torch import elastic

pytestmark = pytest.mark.processes("random states of the whole process")

SHARDS, STEPS, BATCH = 4, 5, 6
X = torch.randn(60, 1, 8, 8, generator=torch.Generator().manual_seed(5))
Y = torch.randint(0, 3, (60,), generator=torch.Generator().manual_seed(6))
MB = 1 << 20


def mlp() -> nn.Module:
    """All of it travels inside an announcement."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 33), nn.ReLU(), nn.Linear(33, 3))


def wide() -> nn.Module:
    """Longer than what travels inside an announcement, and than a segment of the stage."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3000), nn.ReLU(), nn.Linear(3000, 200), nn.Linear(200, 3))


def cnn() -> nn.Module:
    """BatchNorm's statistics and Dropout's random numbers belong to a shard."""
    layers = [nn.Conv2d(1, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.Dropout(0.4), nn.Flatten(), nn.Linear(180, 3)]
    return nn.Sequential(*layers)


class Uneven(nn.Module):
    """One part is used by shard 1 alone, and one by nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.common, self.one, self.nobody = nn.Linear(64, 3), nn.Linear(64, 3), nn.Linear(2, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.common(x.flatten(1))
        return out + self.one(x.flatten(1)) if x[0, 0, 0, 0] > 0 else out


Optimize = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Optimize] = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, lr=0.01, weight_decay=0.01),
}


def loss(model: nn.Module, samples: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    """With random numbers of all three kinds."""
    noise = random.random() + np.random.rand()
    x = X[samples].to(dtype) * (0.5 + noise)
    return F.cross_entropy(model(x), Y[samples])


def serially(
    model: nn.Module, optimize: Optimize, shards: int, steps: int = STEPS
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The oracle: one process, no workbench but the seeds and the samples."""
    optimizer, samples = optimize(model.parameters()), elastic.ShardBatches(len(X), shards, BATCH)
    buffers = [[b.clone() for b in model.buffers()] for _ in range(shards)]
    dtype = next(model.parameters()).dtype
    for step in range(steps):
        grads: list[list[torch.Tensor | None]] = []
        for shard in range(shards):
            for mine, kept in zip(model.buffers(), buffers[shard], strict=True):
                mine.copy_(kept)
            torch.manual_seed(seed_for(0, step, shard))
            model.zero_grad()
            if len(samples(step, shard)):
                loss(model, samples(step, shard), dtype).backward()
            grads.append([p.grad for p in model.parameters()])
            buffers[shard] = [b.clone() for b in model.buffers()]
        for param, *each in zip(model.parameters(), *grads, strict=True):
            if all(one is None for one in each):
                param.grad = None
                continue
            parts = [torch.zeros_like(param) if one is None else one for one in each]
            total = parts[0].float() if dtype is not torch.float64 else parts[0]
            for part in parts[1:]:
                total = total + part
            param.grad = (total / shards).to(dtype)
        optimizer.step()
    for mine, kept in zip(model.buffers(), buffers[0], strict=True):
        mine.copy_(kept)
    return model, optimizer


def train_with(
    model: nn.Module, optimize: Optimize, shards: int, trouble: Callable[[Any], None] = lambda state: None
) -> tuple[nn.Module, Any]:
    """Elastically; ``trouble`` comes before each commit."""
    optimizer = hvd.DistributedOptimizer(optimize(model.parameters()), model.named_parameters())
    state, samples = elastic.TorchState(model, optimizer), elastic.ShardBatches(len(X), shards, BATCH)
    dtype = next(model.parameters()).dtype

    @elastic.run(exact=True, shards=shards)
    def train(state: Any) -> None:
        while state.exact.step < STEPS:
            step = state.exact.step
            for shard in state.shards():
                if len(samples(step, shard)):
                    loss(model, samples(step, shard), dtype).backward()
            optimizer.step()
            trouble(state)
            state.commit()

    train(state)
    return model, state


def bits(model: nn.Module) -> dict[str, bytes]:
    """Weights and buffers to the bit."""
    return {name: value.flatten().view(torch.uint8).numpy().tobytes() for name, value in model.state_dict().items()}


def made(build: Callable[[], nn.Module], dtype: torch.dtype = torch.float32) -> nn.Module:
    """The same weights each time."""
    torch.manual_seed(11)
    return build().to(dtype)


def same_as_serial(model: nn.Module, build: Callable[[], nn.Module], optimize: Optimize, shards: int) -> None:
    """Compare to the bit with the oracle."""
    dtype = next(model.parameters()).dtype
    oracle, _ = serially(made(build, dtype), optimize, shards)
    mine, its = bits(model), bits(oracle)
    assert [name for name in its if mine[name] != its[name]] == []


@pytest.mark.parametrize(
    ("build", "name", "dtype"),
    diagonal([mlp, wide, cnn, Uneven], list(OPTIMIZERS), [torch.float32, torch.bfloat16, torch.float64], most=2),
)
def test_any_number_of_ranks_has_the_bits_of_the_serial_run(build: Any, name: str, dtype: torch.dtype) -> None:
    """Four shards on these ranks, over an epoch's short end into the next epoch."""
    model, _ = train_with(made(build, dtype), OPTIMIZERS[name], SHARDS)
    same_as_serial(model, build, OPTIMIZERS[name], SHARDS)


@pytest.mark.parametrize(("extra", "build"), diagonal([-1, 0, 1], [mlp, wide, cnn, Uneven], most=2))
def test_one_shard_a_rank_and_fewer_shards_than_ranks(build: Any, extra: int, n: int) -> None:
    """The ordinary reduction where it has the order of the shards; ranks without a shard."""
    shards = max(1, n + extra)
    model, _ = train_with(made(build), OPTIMIZERS["sgd"], shards)
    same_as_serial(model, build, OPTIMIZERS["sgd"], shards)


def test_without_shared_memory(job_with: Any, n: int) -> None:
    """The same over sockets or MPI, where the ordinary reduction has another order."""
    job_with(BACKEND="gloo" if config.launch().launcher in ("torchrun", "slurm", "elastic") else "mpi")
    model, _ = train_with(made(cnn), OPTIMIZERS["adam"], SHARDS)
    same_as_serial(model, cnn, OPTIMIZERS["adam"], SHARDS)
    model, _ = train_with(made(wide), OPTIMIZERS["sgd"], n)
    same_as_serial(model, wide, OPTIMIZERS["sgd"], n)


def test_a_failure_on_one_rank_changes_no_bit(n: int, rank: int) -> None:
    """Before a commit, twice; the ranks do the step again."""
    failures = {2, 3} if rank == n - 1 else set()

    def trouble(state: Any) -> None:
        if state.exact.step in failures:
            failures.remove(state.exact.step)
            raise CollectiveError("trouble")

    model, _ = train_with(made(cnn), OPTIMIZERS["adam"], SHARDS, trouble)
    same_as_serial(model, cnn, OPTIMIZERS["adam"], SHARDS)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("with_newest", ["last", "first"])
def test_ranks_that_missed_a_commit_get_the_newest_one(with_newest: str, n: int, rank: int) -> None:
    """As after a kill amid a commit: whoever has it, all go on from it, buffers of all shards included."""
    model = made(cnn)
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["adam"](model.parameters()), model.named_parameters())
    state, samples = elastic.TorchState(model, optimizer, note="none"), elastic.ShardBatches(len(X), SHARDS, BATCH)
    state.begin_exact(SHARDS)
    state.sync()
    chosen = n - 1 if with_newest == "last" else 0
    for step in range(STEPS):
        for shard in state.shards():
            if len(samples(step, shard)):
                loss(model, samples(step, shard), torch.float32).backward()
        optimizer.step()
        state.note = f"after {step}"
        if step < STEPS - 1:
            state.save()
        else:  # the exchange has succeeded for all, and only one rank has lived to save it
            state.exact.exchange()
            if rank == chosen:
                state._save_here()
                state.exact.version += 1
    state.restore()
    assert state.exact.step == (STEPS if rank == chosen else STEPS - 1)
    state.sync()
    assert (state.exact.step, state.note, state.exact.version) == (STEPS, f"after {STEPS - 1}", STEPS)
    state._settle()
    oracle, inner = serially(made(cnn), OPTIMIZERS["adam"], SHARDS)
    assert bits(model) == bits(oracle)
    for mine, its in zip(optimizer.state.values(), inner.state.values(), strict=True):
        assert all(torch.equal(mine[key], its[key]) for key in its)


def test_a_checkpoint_goes_on_where_it_was(n: int) -> None:
    """Two steps here, and the rest by a serial run's state: what a change of the number of ranks comes to."""
    model = made(cnn)
    optimizer = hvd.DistributedOptimizer(OPTIMIZERS["adam"](model.parameters()), model.named_parameters())
    samples = elastic.ShardBatches(len(X), SHARDS, BATCH)

    def steps(state: Any, until: int) -> None:
        while state.exact.step < until:
            step = state.exact.step
            for shard in state.shards():
                if len(samples(step, shard)):
                    loss(state.model, samples(step, shard), torch.float32).backward()
            state.optimizer.step()
            state.commit()

    state = elastic.TorchState(model, optimizer)
    state.begin_exact(SHARDS)
    state.sync()
    steps(state, 2)
    saved = copy.deepcopy([state.exact.state_dict(), model.state_dict(), optimizer.state_dict()])
    everyone = hvd.allgather_object([{key: repr(value) for key, value in saved[0].items()}, bits(model) and 0])
    assert all(each == everyone[0] for each in everyone)
    again = made(cnn)
    inner = hvd.DistributedOptimizer(OPTIMIZERS["adam"](again.parameters()), again.named_parameters())
    again.load_state_dict(saved[1])
    inner.load_state_dict(saved[2])
    other = elastic.TorchState(again, inner)
    other.begin_exact(SHARDS)
    other.exact.load_state_dict(saved[0])
    other.sync()
    steps(other, STEPS)
    other._settle()
    same_as_serial(again, cnn, OPTIMIZERS["adam"], SHARDS)


def plain(**options: Any) -> Any:
    """A model and its optimizer."""
    model = mlp()
    return model, hvd.DistributedOptimizer(OPTIMIZERS["sgd"](model.parameters()), model.named_parameters(), **options)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"op": hvd.Adasum}, "op=adasum"),
        ({"op": hvd.Max}, "op=max"),
        ({"compression": hvd.Compression.fp16}, "compression"),
        ({"backward_passes_per_step": 2}, "backward_passes_per_step > 1"),
        ({"gradient_predivide_factor": 2.0}, "gradient_predivide_factor"),
        ({"num_groups": 2}, "groups"),
        ({"sharded": True, "op": hvd.Average}, "sharded=True"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_has_no_order_is_refused(options: Any, named: str) -> None:
    """All of it in one error, before the first step."""
    with pytest.raises(ValueError, match=f"does not work with {named}: .*exact=True out"):
        elastic.run(exact=True)(lambda state: None)(elastic.TorchState(*plain(**options)))


def test_misuse_is_named() -> None:
    """No optimizer, SyncBatchNorm, another kind of state, a step amid the shards, sparse gradients."""
    run: Any = elastic.run(exact=True, shards=4)

    def never(state: Any) -> None:
        raise AssertionError

    model, optimizer = plain()
    with pytest.raises(ValueError, match="the state has no optimizer"):
        run(never)(elastic.TorchState(model))
    with pytest.raises(ValueError, match="its statistics belong to a shard"):
        run(never)(elastic.TorchState(model, optimizer, other=hvd.SyncBatchNorm(3)))
    with pytest.raises(RuntimeError, match=r"need @hvd\.elastic\.run\(exact=True\)"):
        elastic.TorchState(model, optimizer).shards()
    state = elastic.TorchState(model, optimizer)
    state.begin_exact(4)
    with pytest.raises(RuntimeError, match="outside of `for shard"):
        loss(model, np.arange(3), torch.float32).backward()
    for _ in state.shards():
        with pytest.raises(RuntimeError, match="before the last of this rank's shards"):
            optimizer.step()
        break
    with pytest.raises(ValueError, match="takes no closure"):
        optimizer.step(lambda: 0.0)
    table = nn.Embedding(5, 2, sparse=True)
    sparse = hvd.DistributedOptimizer(torch.optim.SGD(table.parameters(), lr=1.0), table.named_parameters())
    state = elastic.TorchState(table, sparse)
    for shards in (hvd.size(), hvd.size() + 1):
        state.begin_exact(shards)
        for _ in state.shards():
            with pytest.raises(ValueError, match=r"is sparse.*sparse_as_dense=True"):
                table(torch.tensor([1])).sum().backward()
            break
