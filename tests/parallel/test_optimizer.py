"""DistributedOptimizer against the serial run: one model on the whole batch, in float64, after every step."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from serial import (
    MAKES,
    ROWS,
    STEPS,
    assert_equal,
    batches,
    closure_of,
    distributed,
    mse,
    part,
    run,
    step_alike,
    train_alike,
    twins,
)
from thorough import diagonal, quick
from torch import nn

import workbench.torch as hvd

# --- equal to the serial run --------------------------------------------------------------------------


OPTIONS = pytest.mark.parametrize("options", [{}, {"compression": hvd.Compression.topk(1.0)}], ids=["plain", "topk"])


@pytest.mark.parametrize(
    ("make", "set_to_none", "options"), diagonal(MAKES, [True, False], [{}, {"compression": hvd.Compression.topk(1.0)}])
)
def test_equals_the_serial_run(make: str, set_to_none: bool, options: dict[str, Any], n: int) -> None:
    """Tied, frozen and unused parameters included, after each of 10 steps; weight decay leaves the unused alone."""
    run(n, MAKES[make], set_to_none=set_to_none, **options)


@pytest.mark.parametrize("factor", [3.0, "n"])
def test_gradient_predivide_factor(factor: float | str, n: int) -> None:
    """Dividing before and multiplying after the sum changes nothing but rounding."""
    run(n, gradient_predivide_factor=float(n if factor == "n" else factor))


# More groups than parameters are as many as parameters; parameters in no list travel alone.
GROUPS: dict[str, dict[str, Any]] = {
    **{str(number): {"num_groups": number} for number in (1, 2, 100)},
    "Horovod's other name for their number": {"groups": 2},
    "an unused parameter": {
        "groups": lambda m: [[m.head.weight, m.body.weight], [m.unused.weight, m.head.bias], [m.body.bias]]
    },
    "a frozen parameter": {"groups": lambda m: [[m.head.weight, m.frozen.weight, m.frozen.bias], []]},
}


@pytest.mark.parametrize("groups", quick(GROUPS, "2", *list(GROUPS)[3:]))
def test_groups(groups: str, n: int) -> None:
    """Gradients that travel in groups give the same result; the others do not wait for what is unused or frozen."""
    run(n, **GROUPS[groups])


def test_op_sum(n: int) -> None:
    """With op=Sum and the loss divided by n, the result is the same."""
    model, serial = twins()
    optimizer, reference = distributed(model, op=hvd.Sum), MAKES["SGD"](serial.parameters())
    for batch in batches(n, 5):
        step_alike(model, optimizer, serial, reference, batch, factor=1 / n)


def test_without_names(n: int) -> None:
    """named_parameters is optional."""
    model, serial = twins()
    optimizer, reference = hvd.DistributedOptimizer(MAKES["SGD"](model.parameters())), MAKES["SGD"](serial.parameters())
    train_alike(model, optimizer, serial, reference, batches(n, 5))


class Scaled(nn.Module):
    """Parameters of no dimension and of no elements."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.nothing = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.ones(0, 4))
        self.out = nn.Linear(4, 4)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self.out(x) + self.nothing.sum()


@OPTIONS
def test_scalars_and_empty_parameters(options: dict[str, Any], n: int) -> None:
    """A parameter of no dimension is trained, and one without elements does no harm."""
    run(n, model_of=Scaled, **options)


def conv() -> nn.Module:
    """A convolution in channels_last: gradients whose memory is not in the order of their shape."""
    model = nn.Sequential(nn.Unflatten(1, (4, 1, 1)), nn.ConvTranspose2d(4, 3, 2), nn.Conv2d(3, 4, 2), nn.Flatten())
    return model.double().to(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("make", "options"),
    diagonal(
        [*MAKES.values(), lambda params: torch.optim.Adam(params, fused=True)],
        [{}, {"compression": hvd.Compression.topk(1.0)}],
    ),
)
def test_channels_last(make: Any, options: dict[str, Any], n: int) -> None:
    """A model in channels_last equals the serial run."""
    run(n, make, conv, **options)


@pytest.mark.parametrize(("make", "where"), diagonal(MAKES, ["last rank", "first rank", "alternating"]))
def test_a_parameter_that_one_rank_uses(make: str, where: str, n: int) -> None:
    """Only some rows use a layer, so on most ranks it has no gradient: they contribute zeros."""
    model, serial = twins()
    optimizer, reference = distributed(model, MAKES[make]), MAKES[make](serial.parameters())
    for step, batch in enumerate(batches(n)):
        user = {"last rank": n - 1, "first rank": 0, "alternating": step % (n + 1)}[where]  # rank n: nobody
        step_alike(model, optimizer, serial, reference, batch, uses=torch.arange(ROWS * n) % n == user)


@pytest.mark.parametrize(
    ("passes", "options"), diagonal([2, 3], [{}, {"gradient_predivide_factor": 3.0}, {"groups": 2}, {"num_groups": 3}])
)
def test_backward_passes_per_step(passes: int, options: dict[str, Any], n: int) -> None:
    """Gradients of several passes are added up, not averaged, and travel once, with a factor and in groups as well."""
    model, serial = twins()
    optimizer = distributed(model, backward_passes_per_step=passes, **options)
    reference = MAKES["SGD"](serial.parameters())
    data = list(batches(n, STEPS * passes // 2))
    for start in range(0, len(data), passes):  # the last step may have fewer passes
        step_alike(model, optimizer, serial, reference, *data[start : start + passes])


def test_backward_passes_changed_between_steps(n: int) -> None:
    """set_backward_passes_per_step holds from the next step on."""
    model, serial = twins()
    optimizer, reference = distributed(model), MAKES["SGD"](serial.parameters())
    data = batches(n)
    for passes in (1, 3, 2, 1):
        optimizer.set_backward_passes_per_step(passes)
        step_alike(model, optimizer, serial, reference, *itertools.islice(data, passes))


def test_add_param_group_and_unfreeze(n: int) -> None:
    """Layers that are added to the optimizer or unfrozen amid training take part from then on; frozen ones stop."""
    model, serial = twins()
    optimizer = hvd.DistributedOptimizer(MAKES["SGD"](model.body.parameters()))
    reference = MAKES["SGD"](serial.body.parameters())
    for step, batch in enumerate(batches(n, 16)):
        for net, its in ((model, optimizer), (serial, reference)):
            if step == 3:
                its.add_param_group({"params": net.head.parameters(), "lr": 0.2})
            if step == 6:
                net.frozen.requires_grad_(True)
                its.add_param_group({"params": net.frozen.parameters()})
            if step == 10:
                net.head.requires_grad_(False)
            if step == 14:
                net.head.requires_grad_(True)
        step_alike(model, optimizer, serial, reference, batch)


def test_unfreeze_a_parameter_of_the_optimizer(n: int) -> None:
    """All parameters are given to the optimizer at once; some are unfrozen later (fine-tuning)."""
    model, serial = twins()
    optimizer, reference = distributed(model), MAKES["SGD"](serial.parameters())
    for step, batch in enumerate(batches(n)):
        if step == 5:
            model.frozen.requires_grad_(True)
            serial.frozen.requires_grad_(True)
        step_alike(model, optimizer, serial, reference, batch)


def test_clipping(n: int) -> None:
    """synchronize(), clip, and step() without a second synchronize: the norm is that of the whole batch."""
    model, serial = twins()
    optimizer, reference = distributed(model), MAKES["SGD"](serial.parameters())
    for x, y in batches(n):
        optimizer.zero_grad()
        reference.zero_grad()
        (100 * mse(model, part(x), part(y))).backward()
        (100 * mse(serial, x, y)).backward()
        optimizer.synchronize()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        assert torch.allclose(norm, nn.utils.clip_grad_norm_(serial.parameters(), 1.0), rtol=1e-10)
        assert norm > 1
        with optimizer.skip_synchronize():
            optimizer.step()
        reference.step()
        assert_equal(model, serial)


def test_closure(n: int) -> None:
    """step(closure) reduces what the closure computed and returns the loss over all ranks."""
    model, serial = twins()
    optimizer, reference = distributed(model), MAKES["SGD"](serial.parameters())
    for x, y in batches(n):
        loss = optimizer.step(closure_of(model, optimizer, part(x), part(y)))
        wanted = reference.step(closure_of(serial, reference, x, y))
        assert abs(loss.item() - wanted.item()) <= 1e-12
        assert_equal(model, serial)


@pytest.mark.parametrize("op", [hvd.Average, hvd.Sum], ids=lambda op: op.value)
def test_closure_called_many_times(op: Any, n: int) -> None:
    """LBFGS calls its closure many times a step, as often as the losses ask for: on all ranks alike.

    The loss that it decides by is the one whose gradient it has: with op=Sum, the sum over the ranks.
    """

    def make(params: Any) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(params, max_iter=6, line_search_fn="strong_wolfe")

    model, serial = twins(lambda: nn.Linear(4, 4).double())
    optimizer, reference = distributed(model, make, op=op), make(serial.parameters())
    for x, y in batches(n, 3):
        optimizer.step(closure_of(model, optimizer, part(x), part(y)))
        reference.step(closure_of(serial, reference, x, y, n if op is hvd.Sum else 1))
        assert_equal(model, serial, 1e-9)


@pytest.mark.parametrize(
    ("make", "scheduled"), diagonal(MAKES, ["the wrapped optimizer", "the optimizer, before it is wrapped"])
)
def test_learning_rate_scheduler(make: str, scheduled: str, n: int) -> None:
    """A scheduler works on either side of the wrapping, without a warning, and the gradients are still reduced."""

    def schedule(optimizer: Any) -> Any:
        return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda epoch: 0.8**epoch)

    model, serial = twins()
    inner = MAKES[make](model.parameters())
    if scheduled == "the wrapped optimizer":
        optimizer = hvd.DistributedOptimizer(inner, named_parameters=model.named_parameters())
        scheduler = schedule(optimizer)
    else:
        scheduler = schedule(inner)
        optimizer = hvd.DistributedOptimizer(inner, named_parameters=model.named_parameters())
    reference = MAKES[make](serial.parameters())
    its_scheduler = schedule(reference)
    for batch in batches(n, 6):
        step_alike(model, optimizer, serial, reference, batch)
        scheduler.step()
        its_scheduler.step()
        assert optimizer.param_groups[0]["lr"] == reference.param_groups[0]["lr"] == scheduler.get_last_lr()[0]


def test_reduce_on_plateau(n: int) -> None:
    """A scheduler that looks at a metric changes the wrapped optimizer's learning rate."""
    model, _ = twins()
    optimizer = distributed(model)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0)
    for metric in (1.0, 1.0, 1.0):
        scheduler.step(metric)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05 * 0.01)


@pytest.mark.parametrize("compression", quick(["fp16", "bf16"], "fp16"))
def test_compression(compression: str, n: int) -> None:
    """Gradients that are exact in the short dtype give the exact step; the parameters keep their own dtype."""
    for dtype in (torch.float32, torch.float64):
        model = nn.Linear(3, 2).to(dtype)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        optimizer = distributed(
            model, lambda params: torch.optim.SGD(params, lr=0.5), compression=getattr(hvd.Compression, compression)
        )
        x = torch.tensor([[1.0, 2.0, -3.0]], dtype=dtype) * (hvd.rank() + 1)
        for _ in range(2):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
        mean = (n + 1) / 2
        assert model.weight.dtype is dtype
        assert model.weight.grad.dtype is dtype
        assert model.weight.tolist() == [[-mean, -2 * mean, 3 * mean]] * 2
        assert model.bias.tolist() == [-1.0, -1.0]


@pytest.mark.parametrize("compression", quick(["fp16", "bf16"], "fp16"))
def test_compression_with_an_unused_parameter(compression: str, n: int) -> None:
    """Compression, and parameters that some ranks do not use: near the serial run, and None stays None."""
    coarse = 20 * {"fp16": 2**-10, "bf16": 2**-7}[compression]
    run(n, tolerance=coarse, compression=getattr(hvd.Compression, compression))
    model, _ = twins()
    optimizer = distributed(model, compression=getattr(hvd.Compression, compression))
    x, y = next(batches(n))
    mse(model, part(x), part(y), with_extra=torch.full((ROWS,), hvd.rank() == 0)).backward()
    optimizer.step()
    assert model.extra.weight.grad is not None
    assert model.extra.weight.grad.dtype is torch.float64
    assert model.unused.weight.grad is None


def test_bfloat16_model(n: int) -> None:
    """A model in bfloat16 trains: whole-numbered gradients are exact."""
    model = nn.Linear(3, 2, bias=False).to(torch.bfloat16)
    nn.init.zeros_(model.weight)
    optimizer = distributed(model, lambda params: torch.optim.SGD(params, lr=1.0))
    model(torch.full((1, 3), float(hvd.rank() + 1), dtype=torch.bfloat16)).sum().backward()
    optimizer.step()
    assert model.weight.tolist() == [[-(n + 1) / 2] * 3] * 2


def test_no_warning_in_a_normal_run(n: int) -> None:
    """A plain training loop is silent."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(n, steps=3)
