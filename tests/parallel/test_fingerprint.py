"""``fingerprint`` on real ranks: true exactly where the states are the same bits, else which differ and by how much."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import workbench.torch as hvd
from workbench import fingerprint
from workbench.observe.values.fingerprint import Fingerprint

Change = Callable[[nn.Module], None]


@pytest.fixture(autouse=True)
def seeded() -> None:
    """All random states begin alike on all ranks."""
    torch.manual_seed(1)
    np.random.seed(1)
    random.seed(1)


def replica() -> nn.Sequential:
    """The same model on every rank, with an integer buffer and parameters in bfloat16."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2).to(torch.bfloat16))


def trained(model: nn.Module) -> torch.optim.Optimizer:
    """An optimizer with a state, after one step with the same gradients everywhere."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return optimizer


def same_everywhere(found: Fingerprint) -> bool:
    """Has every rank got the same report?"""
    said = hvd.allgather_object((str(found), dict(found.agreement), found.first, found.largest))
    return all(each == said[0] for each in said)


def test_replicas_agree(n: int) -> None:
    """The same seed and the same step everywhere: true, each column agrees, a line for each rank, no difference."""
    model = replica()
    found = fingerprint(model, trained(model))
    assert found
    assert found.agree
    assert all(found.agreement.values())
    assert {"weights", "optimizer", "torch seed", "torch RNG", "numpy RNG", "random"} == set(found.agreement)
    assert (found.first, found.largest) == ("", (0.0,) * n)
    assert found.table.column("rank") == [str(rank) for rank in range(n)]
    assert found.table.column("torch seed") == ["1"] * n
    assert same_everywhere(found)


@pytest.mark.ranks(2)
@pytest.mark.parametrize(("path", "by"), [("0.weight", 0.5), ("1.num_batches_tracked", 3.0), ("2.bias", 0.25)])
def test_one_number_off_on_the_last_rank_is_found(path: str, by: float, rank: int, n: int) -> None:
    """A single number that is off: false, with the tensor's path, and the size of the difference on that rank alone."""
    model = replica()
    tensor = model.state_dict()[path].zero_()
    if rank == n - 1:
        tensor.reshape(-1)[0] = by
    found = fingerprint(model)
    assert not found
    assert not found.agreement["weights"]
    assert all(agree for column, agree in found.agreement.items() if column != "weights")
    assert found.first == path
    assert found.largest == (0.0,) * (n - 1) + (by,)
    assert found.table.column("largest difference")[-1] == f"{by:g}"
    assert f"weights: {path!r} is the first that differs, on rank {n - 1} from rank 0" in str(found)
    assert same_everywhere(found)


@pytest.mark.ranks(3)
def test_the_odd_rank_is_compared_with_the_others(rank: int, n: int) -> None:
    """Where rank 0 alone has other weights, it is rank 0 that has the difference."""
    found = fingerprint({"w": np.full(3, 1.0 if rank else -1.0)})
    assert found.largest == (2.0,) + (0.0,) * (n - 1)
    assert "on rank 0 from rank 1" in str(found)


@pytest.mark.ranks(2)
def test_the_first_of_several_in_the_model_s_order(rank: int) -> None:
    """Everything differs: the first parameter of the model is named, and the largest difference is of all of them."""
    found = fingerprint({"z": np.array([rank * 1.0]), "a": np.array([rank * 4.0])})
    assert found.first == "z"
    assert found.largest[1] == pytest.approx(4.0)


@pytest.mark.ranks(2)
def test_shapes_and_names_that_differ(rank: int, n: int) -> None:
    """Other shapes, dtypes and missing parameters are told, and no rank waits for a tensor that another has not."""
    found = fingerprint({"w": np.zeros(3 + rank // (n - 1), np.float32), **({"extra": np.ones(1)} if rank else {})})
    assert not found
    assert found.first in ("w", "extra")
    shapes = fingerprint({"w": np.zeros(3 + rank // (n - 1), np.float32)})
    assert "float32 (3,) on rank 0" in str(shapes)
    assert f"float32 (4,) on rank {n - 1}" in str(shapes)
    assert shapes.largest == (0.0,) * n
    assert same_everywhere(found)


@pytest.mark.ranks(2)
def test_optimizer_state_and_learning_rate(rank: int, n: int) -> None:
    """Equal weights with another learning rate on one rank are no agreement; a missing optimizer is none either."""
    model = replica()
    optimizer = trained(model)
    optimizer.param_groups[0]["lr"] = 0.1 * (1 + rank // (n - 1))
    found = fingerprint(model, optimizer)
    assert not found
    assert found.agreement["weights"]
    assert not found.agreement["optimizer"]
    assert "'param_groups.0.lr'" in str(found)
    missing = fingerprint(model, None if rank else optimizer)
    assert not missing
    assert missing.table.column("optimizer")[1] == "-"
    assert same_everywhere(missing)


@pytest.mark.processes("states of the process: random numbers")
@pytest.mark.ranks(2)
@pytest.mark.parametrize("column", ["torch RNG", "numpy RNG", "random"])
def test_random_states_are_told_and_are_no_failure(column: str, rank: int) -> None:
    """A generator that has drawn more on one rank is named in its column; the replicas are replicas nevertheless."""
    draw: dict[str, Callable[[], Any]] = {
        "torch RNG": lambda: torch.rand(1),
        "numpy RNG": lambda: np.random.rand(),
        "random": random.random,
    }
    if rank:
        draw[column]()
    found = fingerprint({"w": np.ones(2)})
    assert found
    assert [name for name, agree in found.agreement.items() if not agree] == [column]


@pytest.mark.processes("states of the process: random numbers")
def test_looking_changes_nothing(rank: int) -> None:
    """Weights, optimizer state and random states are the same bits before and after."""
    model = replica()
    optimizer = trained(model)
    before = [fingerprint(model, optimizer).table.rows for _ in range(2)]
    assert before[0] == before[1]
    expected = torch.Generator().manual_seed(5)
    torch.manual_seed(5)
    fingerprint(model, optimizer)
    assert torch.equal(torch.rand(3), torch.rand(3, generator=expected))


@pytest.mark.ranks(2)
def test_before_and_after_the_broadcast(rank: int) -> None:
    """A model drawn by each rank for itself does not agree; after the broadcast, and after training, it does."""
    torch.manual_seed(rank)
    model = nn.Linear(3, 2)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    assert not fingerprint(model, optimizer)
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).square().sum().backward()
        optimizer.step()
    assert fingerprint(model, optimizer)


@pytest.mark.ranks(2)
def test_nan_and_infinity(rank: int, n: int) -> None:
    """NaN on all ranks agrees; NaN on one alone is a difference of NaN, infinity one of infinity."""
    assert fingerprint([np.array([np.nan, np.inf, 1.0])])
    for odd in (np.nan, np.inf):
        found = fingerprint([np.array([odd if rank else 1.0, np.nan]), np.array([float(rank)])])
        assert found.largest == pytest.approx((0.0, *[odd] * (n - 1)), nan_ok=True)


def test_what_has_no_state_is_refused() -> None:
    """A number is no model; the text says what to give."""
    with pytest.raises(TypeError, match="no state_dict"):
        fingerprint(3)
