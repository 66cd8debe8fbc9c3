"""Compression.powersgd on real ranks, against closed forms and plain averaging. Alone, nothing is compressed."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch
from counted import bytes_sent
from serial import batches, distributed, mse, part, run, twins
from torch import nn

import workbench.torch as hvd
from workbench.torch.low_communication.powersgd import PowerSGDCompression

M, N = 12, 9


def gradient(step: int, rank: int, columns: int | None = None) -> torch.Tensor:
    """A rank's, random; with ``columns``, of that rank, in one and the same column space on all ranks."""
    own = torch.Generator().manual_seed(100 * step + rank)
    if columns is None:
        return torch.randn(M, N, generator=own, dtype=torch.float64)
    common = torch.Generator().manual_seed(step)
    return torch.randn(M, columns, generator=common, dtype=torch.float64) @ torch.randn(
        columns, N, generator=own, dtype=torch.float64
    )


class Sent:
    """An optimizer whose weight is the negative sum of all that was applied: SGD with lr 1, from zeros."""

    def __init__(self, *shape: int, **options: Any) -> None:
        self.low = hvd.Compression.powersgd(options.pop("rank", 2), options.pop("start_step", 0))
        self.weight = nn.Parameter(torch.zeros(*(shape or (M, N)), dtype=torch.float64))
        self.optimizer = hvd.DistributedOptimizer(
            torch.optim.SGD([self.weight], lr=1.0), [("weight", self.weight)], compression=self.low, **options
        )

    def step(self, grad: torch.Tensor | None) -> torch.Tensor:
        """What came of this rank's gradient."""
        before = self.weight.detach().clone()
        self.optimizer.zero_grad()
        if grad is not None:
            (self.weight * grad).sum().backward()
        self.optimizer.step()
        return before - self.weight.detach()

    def left_out(self) -> torch.Tensor:
        """The ranks' average of what they keep."""
        mine = self.low.state_dict()["error"].get("weight", torch.zeros_like(self.weight))
        return hvd.allreduce(mine.reshape(self.weight.shape), name="left out")


def mean(step: int, n: int, columns: int | None = None) -> torch.Tensor:
    """The average over all ranks, computed on each."""
    return torch.stack([gradient(step, rank, columns) for rank in range(n)]).mean(0)


@pytest.mark.parametrize("rank", [9, 12, 100])
def test_a_rank_that_is_large_enough_is_plain_averaging(rank: int, n: int) -> None:
    """With r ≥ min(m, n) the result is the average, for factors would be no smaller than the matrix."""
    sent = Sent(rank=rank)
    for step in range(3):
        assert (sent.step(gradient(step, hvd.rank())) - mean(step, n)).abs().max() < 1e-10


def test_gradients_of_low_rank_come_through_exactly(n: int) -> None:
    """What has rank r is sent whole in one step, with any Q, and nothing is left out."""
    sent = Sent(rank=2)
    for step in range(3):
        assert (sent.step(gradient(step, hvd.rank(), columns=2)) - mean(step, n, columns=2)).abs().max() < 1e-10
        assert sent.left_out().abs().max() < 1e-10


@pytest.mark.parametrize("options", [{}, {"gradient_predivide_factor": 2.0}, {"op": hvd.Sum}], ids=str)
def test_nothing_is_lost(options: dict[str, Any], n: int) -> None:
    """After each step, what was applied plus what the ranks keep is the sum of all gradients."""
    sent, total = Sent(rank=1, **options), torch.zeros(M, N, dtype=torch.float64)
    factor = n if "op" in options else 1
    for step in range(10):
        sent.step(gradient(step, hvd.rank()))
        total += mean(step, n)
        assert (-sent.weight.detach() + factor * sent.left_out() - factor * total).abs().max() < 1e-10
    if n > 1:
        assert sent.left_out().abs().max() > 0.1  # and there is something that is kept


def test_a_constant_gradient_is_found(n: int) -> None:
    """Warm start: of one and the same gradient the factors become its largest directions, and its error stays bounded.

    The best approximation of rank r leaves the other singular values out. Here the first two are 100 and 90, the others
    below 1.
    """
    values = torch.cat([torch.tensor([100.0, 90.0]), torch.full((N - 2,), 0.5)]).double()
    left = torch.linalg.qr(gradient(0, 77)).Q
    right = torch.linalg.qr(gradient(1, 77)[:N]).Q
    same, sent = left @ torch.diag(values) @ right.T, Sent(rank=2)
    for _ in range(5):
        got = sent.step(same)
    assert torch.linalg.matrix_norm(got - same, 2) < 5


def test_bytes(n: int) -> None:
    """A step sends r (m + n) numbers for each matrix, and the others as they are."""
    if n == 1:
        pytest.skip("alone nothing is sent")
    model = nn.Sequential(nn.Linear(40, 30), nn.Linear(30, 20), nn.Conv1d(1, 8, 4)).double()
    optimizer = distributed(model, compression=hvd.Compression.powersgd(3))
    matrices, vectors = [(30, 40), (20, 30)], [30, 20, 8, 8 * 4]  # 8 x 4 as two factors would not be smaller

    def step() -> None:
        optimizer.zero_grad()
        model(torch.ones(1, 40, dtype=torch.float64)).sum().backward()
        optimizer.step()

    step()
    assert bytes_sent(step) == 8 * (3 * sum(a + b for a, b in matrices) + sum(vectors))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_all_ranks_have_the_same_bits(dtype: torch.dtype, n: int) -> None:
    """Every rank has its own gradients, and the weights and Qs are equal bit by bit after 20 steps."""
    torch.manual_seed(0)
    model, low = nn.Sequential(nn.Linear(30, 50), nn.Tanh(), nn.Linear(50, 20)).to(dtype), hvd.Compression.powersgd(2)
    optimizer = distributed(model, compression=low)
    own = torch.Generator().manual_seed(hvd.rank())
    for _ in range(20):
        optimizer.zero_grad()
        model(torch.randn(8, 30, generator=own, dtype=dtype)).square().mean().backward()
        optimizer.step()
    kept = [param.detach() for param in model.parameters()] + list(low.state_dict()["q"].values())
    for i, tensor in enumerate(kept):
        everyone = hvd.allgather(tensor.reshape(1, -1), name=f"bits {i}")
        assert bool((everyone == everyone[0]).all()), i


def test_it_converges_where_plain_averaging_does(n: int) -> None:
    """Linear regression with a known solution: both come to it."""
    truth = torch.randn(M, N, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    own = torch.Generator().manual_seed(10 + hvd.rank())
    x = (
        60**0.5 * torch.linalg.qr(torch.randn(60, N, generator=own, dtype=torch.float64)).Q
    )  # all directions count alike

    def distance(low: Any) -> float:
        model = nn.Linear(N, M, bias=False).double()
        with torch.no_grad():
            model.weight.zero_()
        inner = torch.optim.SGD(model.parameters(), lr=0.3)
        optimizer = hvd.DistributedOptimizer(inner, model.named_parameters(), compression=low)
        for _ in range(100):
            optimizer.zero_grad()
            (0.5 * (model(x) - x @ truth.T).square().sum(1).mean()).backward()
            optimizer.step()
        return float((model.weight.detach() - truth).abs().max())

    assert distance(hvd.Compression.none) < 1e-6
    assert distance(hvd.Compression.powersgd(2)) < 1e-6


def test_the_first_steps_are_plain(n: int) -> None:
    """Up to start_step the result is the average; then it is not, for a gradient of full rank."""
    sent = Sent(rank=1, start_step=3)
    for step in range(5):
        off = (sent.step(gradient(step, hvd.rank())) - mean(step, n)).abs().max()
        assert (off < 1e-12) == (step < 3 or n == 1)


def test_what_is_used_on_some_ranks_only(n: int) -> None:
    """A model with tied, frozen and unused parameters, and one that only some ranks use: None stays None.

    With a rank as large as the matrices it is the serial run.
    """
    run(n, compression=hvd.Compression.powersgd(4))
    model, _ = twins()
    optimizer = distributed(model, compression=hvd.Compression.powersgd(1))
    for x, y in batches(n, 4):
        optimizer.zero_grad()
        mse(model, part(x), part(y), with_extra=torch.full((len(part(x)),), hvd.rank() == 0)).backward()
        optimizer.step()
        assert model.unused.weight.grad is None
        assert model.extra.weight.grad is not None or (n == 1 and hvd.rank() != 0)
    everyone = hvd.allgather(model.extra.weight.detach()[None], name="extra")
    assert bool((everyone == everyone[0]).all())


@pytest.mark.processes("torch tells the whole process that backward() has run")
def test_a_rank_without_a_gradient_keeps_its_error(n: int) -> None:
    """It takes part with what it had left out; where no rank has a gradient, nothing moves and nothing is lost."""
    sent, total = Sent(rank=1), torch.zeros(M, N, dtype=torch.float64)
    for step in range(6):
        kind = step % 3
        sent.step(gradient(step, hvd.rank()) if kind == 0 or (kind == 1 and hvd.rank() == 0) else None)
        total += mean(step, n) if kind == 0 else gradient(step, 0) / n if kind == 1 else 0
        assert (-sent.weight.detach() + sent.left_out() - total).abs().max() < 1e-10


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite(bad: float, n: int) -> None:
    """All ranks see NaN, as with plain averaging, and what is remembered stays as it was."""
    if n == 1:
        pytest.skip("alone nothing is compressed")
    sent = Sent(rank=1)
    sent.step(gradient(0, hvd.rank()))
    q, error = (dict(sent.low.state_dict()[key]) for key in ("q", "error"))
    broken = gradient(1, hvd.rank())
    if hvd.rank() == n - 1:
        broken[3, 4] = bad
    sent.optimizer.zero_grad()
    (sent.weight * broken).sum().backward()
    sent.optimizer.synchronize()
    assert sent.weight.grad is not None
    assert bool(sent.weight.grad.isnan().all())
    after = sent.low.state_dict()
    assert torch.equal(after["q"]["weight"], q["weight"])
    assert torch.equal(after["error"]["weight"], error["weight"])
    sent.optimizer.abandon_step()
    assert bool(sent.step(gradient(2, hvd.rank())).isfinite().all())


def test_a_gradient_of_zeros(n: int) -> None:
    """Nothing is divided by zero, and the next gradient comes as usual."""
    sent = Sent(rank=2)
    assert not sent.step(torch.zeros(M, N, dtype=torch.float64)).any()
    assert (sent.step(gradient(0, hvd.rank(), columns=2)) - mean(0, n, columns=2)).abs().max() < 1e-10


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_small_and_large_gradients(scale: float, n: int) -> None:
    """In float32 squares of these would be 0 or infinite; the factors do not square them."""
    low = hvd.Compression.powersgd(2)
    weight = nn.Parameter(torch.zeros(M, N))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([weight], lr=1.0), [("weight", weight)], compression=low)
    for step in range(3):
        mine = (gradient(step, hvd.rank(), columns=2) * scale).float()
        optimizer.zero_grad()
        (weight * mine).sum().backward()
        optimizer.synchronize()
        optimizer.abandon_step()
        assert weight.grad is not None
        assert (weight.grad / scale - mean(step, n, columns=2)).abs().max() < 1e-4


def test_accumulation(n: int) -> None:
    """With backward_passes_per_step the sum of the passes is what is compressed."""
    sent = Sent(rank=2, backward_passes_per_step=2)
    one, two = (gradient(0, hvd.rank(), columns=2) * factor for factor in (1.0, 3.0))
    sent.optimizer.zero_grad()
    (sent.weight * one).sum().backward()
    (sent.weight * two).sum().backward()
    sent.optimizer.step()
    assert (-sent.weight.detach() - 4 * mean(0, n, columns=2)).abs().max() < 1e-10


def test_state_is_saved(n: int) -> None:
    """A training that is loaded from both states goes on as the one that was not broken off."""
    one, other = Sent(rank=1), Sent(rank=1)
    for step in range(3):
        one.step(gradient(step, hvd.rank()))
    with torch.no_grad():
        other.weight.copy_(one.weight)
    other.low.load_state_dict(one.low.state_dict())
    for step in range(3, 6):
        assert torch.equal(one.step(gradient(step, hvd.rank())), other.step(gradient(step, hvd.rank())))


@pytest.mark.processes("shutdown() and init() are of the whole process")
def test_after_a_new_init(n: int) -> None:
    """In a new job all begin with the first Q and with start_step, and what a rank has left out is not lost."""
    sent, total = Sent(rank=1, start_step=1), torch.zeros(M, N, dtype=torch.float64)
    for step in range(6):
        if step == 3:
            hvd.shutdown()
            hvd.init()
            assert (sent.step(gradient(50, hvd.rank())) - mean(50, n)).abs().max() < 1e-10
            total += mean(50, n)
        sent.step(gradient(step, hvd.rank()))
        total += mean(step, n)
    assert (-sent.weight.detach() + sent.left_out() - total).abs().max() < 1e-10


@pytest.mark.parametrize(
    ("option", "words"),
    [
        *(
            ({"op": op}, "powersgd works only with op=Average or Sum")
            for op in (hvd.Adasum, hvd.Min, hvd.Max, hvd.Product)
        ),
        ({"sharded": True}, "sharded=True works only with .*without .*compression"),
        ({"overlap_forward": True}, "overlap_forward=True works only with .*without .*compression"),
    ],
    ids=str,
)
def test_options_that_do_not_go_with_it(option: dict[str, Any], words: str, n: int) -> None:
    """Each is refused at once: factors of sums are no factors of other ops."""
    weight = nn.Parameter(torch.ones(2, 2))
    with pytest.raises(ValueError, match=words):
        hvd.DistributedOptimizer(torch.optim.SGD([weight]), compression=hvd.Compression.powersgd(1), **option)


def test_verbs_refuse_it(n: int) -> None:
    """An allreduce has no second round, and nowhere to keep what is left out."""
    with pytest.raises(ValueError, match="powersgd is for DistributedOptimizer"):
        hvd.allreduce(torch.ones(4, 4), compression=hvd.Compression.powersgd(1))


@pytest.mark.parametrize(("rank", "start_step"), [(0, 0), (-1, 0), (1, -1)])
def test_arguments(rank: int, start_step: int, n: int) -> None:
    """Named, with what is allowed."""
    with pytest.raises(ValueError, match=f"rank={rank}, start_step={start_step}.*rank ≥ 1"):
        PowerSGDCompression(rank, start_step)


def test_one_object_for_two_models(n: int) -> None:
    """Refused while both are there; again for the same model it goes on, and for a later one it begins anew."""
    low = hvd.Compression.powersgd(1)

    def make(model: nn.Module) -> Any:
        inner = torch.optim.SGD(model.parameters(), lr=0.1)
        return hvd.DistributedOptimizer(inner, model.named_parameters(), compression=low)

    model = nn.Linear(N, M)
    optimizer = make(model)
    with pytest.raises(ValueError, match=r"belongs to an optimizer of other parameters.*Make one for each"):
        make(nn.Linear(N, M))
    model(torch.ones(2, N)).square().sum().backward()
    optimizer.step()
    remembered = bool(low.state_dict()["error"])
    assert remembered == (n > 1)
    optimizer = make(model)
    assert bool(low.state_dict()["error"]) == remembered
    del model, optimizer
    gc.collect()
    later = make(nn.Linear(N, M))
    assert not low.state_dict()["error"]
    del later
