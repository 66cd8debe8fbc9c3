"""SyncBatchNorm over ranks against torch.nn.BatchNorm on all ranks' batches in one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch._dynamo  # torch does it with the first optimizer, which would take up to 20 s of that test's minute
from thorough import diagonal

import workbench.torch as hvd
from workbench.errors import MismatchError
from workbench.torch.sync_batch_norm import SyncBatchNorm

CHANNELS = 3
SHAPES = {"1d": (), "1d-long": (5,), "2d": (4, 3), "3d": (2, 3, 2)}
PLAIN: dict[str, type[torch.nn.modules.batchnorm._BatchNorm]] = {
    "1d": torch.nn.BatchNorm1d,
    "1d-long": torch.nn.BatchNorm1d,
    "2d": torch.nn.BatchNorm2d,
    "3d": torch.nn.BatchNorm3d,
}


def counts(how: str, n: int) -> list[int]:
    """How many samples each rank has: as many, ever more, one each (but two on the last), or none on rank 0."""
    return {
        "even": [4] * n,
        "uneven": [2 * r + 1 + (n == 1) for r in range(n)],
        "one each": [1] * (n - 1) + [2],
        "none on rank 0": [0] * (n > 1) + [3] * max(n - 1, 1),
    }[how]


def close(found: Any, wanted: Any, tolerance: float = 1e-12) -> None:
    """Equal in float64, up to the order of summation."""
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


def pair(which: str, **options: Any) -> tuple[SyncBatchNorm, torch.nn.modules.batchnorm._BatchNorm]:
    """Ours and torch's, with the same parameters, in float64."""
    ours = SyncBatchNorm(CHANNELS, **options).double()
    plain = PLAIN[which](CHANNELS, dtype=torch.float64, **options)
    random = torch.Generator().manual_seed(5)
    if plain.affine:
        with torch.no_grad():
            plain.weight.copy_(torch.randn(CHANNELS, generator=random))
            plain.bias.copy_(torch.randn(CHANNELS, generator=random))
    ours.load_state_dict(plain.state_dict())
    return ours, plain


def batch(which: str, sizes: list[int], step: int = 0, mean: float = 0.0) -> tuple[torch.Tensor, slice]:
    """All ranks' samples, the same on every rank, and which are this rank's."""
    random = torch.Generator().manual_seed(step)
    whole = torch.randn(sum(sizes), CHANNELS, *SHAPES[which], generator=random, dtype=torch.float64)
    start = sum(sizes[: hvd.rank()])
    scale = torch.arange(1.0, CHANNELS + 1, dtype=torch.float64).view(1, -1, *[1] * len(SHAPES[which]))
    return whole * scale + mean, slice(start, start + sizes[hvd.rank()])


@pytest.mark.parametrize(
    ("which", "affine", "how"), diagonal(SHAPES, [True, False], ["even", "uneven", "one each", "none on rank 0"])
)
def test_equals_batch_norm_on_all_samples(which: str, affine: bool, how: str, n: int) -> None:
    """Output, input gradient, the sum of the parameter gradients, running statistics: over three steps, to 1e-12."""
    ours, plain = pair(which, affine=affine)
    for step in range(3):
        whole, mine = batch(which, counts(how, n), step)
        x, y = whole.clone().requires_grad_(), whole[mine].clone().requires_grad_()
        weight = torch.randn(whole.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
        for layer in (ours, plain):
            layer.zero_grad()
        wanted, found = plain(x), ours(y)
        # The loss of all is the sum of the ranks' losses; it is not linear, so that a wrong output shows here, too.
        (wanted.sin() * weight).sum().backward()
        (found.sin() * weight[mine]).sum().backward()
        close(found, wanted[mine])
        close(y.grad, x.grad[mine])
        if affine:
            close(hvd.allreduce(ours.weight.grad, op=hvd.Sum), plain.weight.grad)
            close(hvd.allreduce(ours.bias.grad, op=hvd.Sum), plain.bias.grad)
        close(dict(ours.named_buffers()), dict(plain.named_buffers()))
    whole, mine = batch(which, counts(how, n))
    close(ours.eval()(whole[mine]), plain.eval()(whole)[mine])


@pytest.mark.parametrize(("track", "momentum"), diagonal([True, False], [0.3, None]))
def test_options(momentum: float | None, track: bool, n: int) -> None:
    """Momentum, cumulative averages, and no running statistics at all: as torch has them."""
    ours, plain = pair("2d", momentum=momentum, track_running_stats=track, eps=0.1)
    for step in range(4):
        whole, mine = batch("2d", counts("uneven", n), step)
        close(ours(whole[mine]), plain(whole)[mine])
        close(ours.state_dict(), plain.state_dict())


def test_a_large_mean_costs_no_digits(n: int) -> None:
    """With a mean a million times the deviation, as precise as torch: nothing is squared before it is centred."""
    ours, plain = pair("1d")
    whole, mine = batch("1d", counts("uneven", n), mean=1e6)
    x, y = whole.clone().requires_grad_(), whole[mine].clone().requires_grad_()
    wanted, found = plain(x), ours(y)
    wanted.pow(3).sum().backward()
    found.pow(3).sum().backward()
    close(found, wanted[mine], 1e-8)  # 1e6 itself has ten digits left for what differs
    close(y.grad, x.grad[mine], 1e-8)
    close(ours.running_var, plain.running_var, 1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_lower_precision(dtype: torch.dtype, n: int) -> None:
    """Output and gradients have the input's dtype, and its precision; parameters and statistics keep float32."""
    ours, plain = pair("2d")
    ours = ours.float()
    whole, mine = batch("2d", counts("uneven", n))
    x, y = whole.clone().requires_grad_(), whole[mine].to(dtype).requires_grad_()
    plain(x).sin().sum().backward()
    found = ours(y)
    found.sin().sum().backward()
    assert found.dtype == y.grad.dtype == dtype
    assert ours.weight.grad.dtype == ours.running_var.dtype == torch.float32
    tolerance = 32 * torch.finfo(dtype).eps
    close(found.double(), plain(whole)[mine], tolerance)
    close(y.grad.double(), x.grad[mine], tolerance)


def test_memory_format_is_kept(n: int) -> None:
    """Channels-last in, channels-last out, forward and backward, with the same values."""
    ours, plain = pair("2d")
    whole, mine = batch("2d", counts("even", n))
    y = whole[mine].to(memory_format=torch.channels_last).requires_grad_()
    x = whole.clone().requires_grad_()
    wanted, found = plain(x), ours(y)
    assert found.is_contiguous(memory_format=torch.channels_last)
    wanted.sin().sum().backward()
    found.sin().sum().backward()
    assert y.grad.is_contiguous(memory_format=torch.channels_last)
    close(found, wanted[mine])
    close(y.grad, x.grad[mine])


@pytest.mark.ranks(2)
def test_eval_needs_nobody(rank: int) -> None:
    """In eval mode a rank may run the layer alone, with running statistics or without."""
    for track in (True, False):
        ours, plain = pair("1d", track_running_stats=track)
        if rank == 0:
            x = torch.randn(4, CHANNELS, dtype=torch.float64)
            close(ours.eval()(x), plain.eval()(x))


def test_too_few_values_are_an_error_on_every_rank(n: int, rank: int) -> None:
    """One value per channel between all ranks has no variance: all of them get the same ValueError."""
    ours, _ = pair("1d")
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training"):
        ours(torch.zeros(int(rank == n - 1), CHANNELS, dtype=torch.float64))


def test_wrong_shapes_are_named() -> None:
    """One dimension, or another number of channels, is an error before anything is sent."""
    ours, _ = pair("1d")
    with pytest.raises(ValueError, match="at least 2D input"):
        ours(torch.zeros(CHANNELS, dtype=torch.float64))
    with pytest.raises(ValueError, match="expected input with 3 channels"):
        ours(torch.zeros(2, CHANNELS + 1, dtype=torch.float64))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("what", ["dtype", "channels"])
def test_ranks_that_differ_get_an_error(what: str, rank: int) -> None:
    """One rank in double precision, or with a channel more: a MismatchError on every rank, in the layer itself."""
    channels = CHANNELS + (what == "channels" and rank == 0)
    x = torch.randn(3, channels, dtype=torch.float64 if what == "dtype" and rank == 0 else torch.float32)
    with pytest.raises(MismatchError, match="different SyncBatchNorm layers") as caught:
        SyncBatchNorm(channels)(x)
    assert len(set(hvd.allgather_object(str(caught.value)))) == 1
    SyncBatchNorm(CHANNELS)(torch.randn(3, CHANNELS))  # the ranks are still in step


def small_net(norm: type[torch.nn.Module]) -> torch.nn.Sequential:
    """Two convolutions and two batch norms, in float64, the same on every rank."""
    torch.manual_seed(3)
    return torch.nn.Sequential(
        torch.nn.Conv2d(CHANNELS, 4, 3, padding=1),
        norm(4),
        torch.nn.ReLU(),
        torch.nn.Conv2d(4, 2, 3, padding=1),
        norm(2),
    ).double()


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum])
def test_training_equals_the_serial_run(op: Any, n: int) -> None:
    """Five steps with DistributedOptimizer and uneven batches: the serial run's weights, for averages and sums."""
    sizes = counts("uneven", n)
    ours, serial = small_net(SyncBatchNorm), small_net(torch.nn.BatchNorm2d)
    sgd = [torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9) for model in (ours, serial)]
    distributed = hvd.DistributedOptimizer(sgd[0], named_parameters=ours.named_parameters(), op=op)
    for step in range(5):
        whole, mine = batch("2d", sizes, step)
        distributed.zero_grad()
        (ours(whole[mine]) - whole[mine][:, :2]).abs().sum().backward()
        distributed.step()
        sgd[1].zero_grad()
        loss = (serial(whole) - whole[:, :2]).abs().sum()
        (loss / n if op is hvd.Average else loss).backward()
        sgd[1].step()
    close(ours.state_dict(), serial.state_dict(), 1e-10)
