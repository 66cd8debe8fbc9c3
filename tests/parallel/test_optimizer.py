"""DistributedOptimizer against the serial run: one model on the whole batch, in float64, after every step.

Every rank trains the serial twin by itself. The loss is a mean over rows and all ranks have the same number of
rows, so the average of the ranks' gradients is the gradient of the whole batch.
"""

from __future__ import annotations

import copy
import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo  # torch does it in the first step, which would take up to 20 s of that test's minute
from torch import nn

import workbench.torch as hvd

ROWS, STEPS = 6, 20

Make = Callable[[Any], torch.optim.Optimizer]
MAKES: dict[str, Make] = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9, weight_decay=0.1),
    "Adam": lambda params: torch.optim.Adam(params, lr=0.01, weight_decay=0.1),
}


class Net(nn.Module):
    """Used twice, shared by two layers, frozen, and never used: what real models have."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.twin, self.frozen, self.unused, self.extra, self.head = (nn.Linear(4, 4) for _ in range(6))
        self.twin.weight = self.body.weight  # tied
        for parameter in self.frozen.parameters():
            parameter.requires_grad_(False)
        self.double()

    def forward(self, x: torch.Tensor, with_extra: torch.Tensor | None = None) -> torch.Tensor:
        x = self.body(x).tanh()
        x = self.twin(self.body(x)).tanh() + self.frozen(x)
        if with_extra is not None and bool(with_extra.any()):
            x = torch.where(with_extra.unsqueeze(1), self.extra(x), x)
        return self.head(x)


def batches(n: int, steps: int = STEPS) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """The whole batch of each step, the same on every rank."""
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        whole = torch.randn(ROWS * n, 8, generator=generator, dtype=torch.float64)
        yield whole[:, :4], whole[:, 4:]


def part(whole: torch.Tensor) -> torch.Tensor:
    """This rank's rows."""
    return whole[hvd.rank() :: hvd.size()]


def twins(make: Callable[[], nn.Module] = Net) -> tuple[nn.Module, nn.Module]:
    """(this rank's model, the serial one): initialised from the rank's own seed, then the same everywhere."""
    torch.manual_seed(1000 + hvd.rank())
    model = make()
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    return model, copy.deepcopy(model)


def mse(model: nn.Module, x: torch.Tensor, y: torch.Tensor, **options: Any) -> torch.Tensor:
    """Mean over rows and outputs."""
    return (model(x, **options) - y).square().mean()


def assert_equal(model: nn.Module, serial: nn.Module, tolerance: float = 1e-12) -> None:
    """All parameters are the serial run's; where it has no gradient, there is none here."""
    for (name, mine), its in zip(model.named_parameters(), serial.parameters(), strict=True):
        difference = (mine.detach() - its.detach()).abs().max().item()
        assert difference <= tolerance, f"{name} is off by {difference:g}"
        assert (mine.grad is None) == (its.grad is None), name


def distributed(model: nn.Module, make: Make = MAKES["SGD"], **options: Any) -> hvd.DistributedOptimizer:
    """The usual way to wrap."""
    return hvd.DistributedOptimizer(make(model.parameters()), named_parameters=model.named_parameters(), **options)


def run(
    n: int,
    make: Make = MAKES["SGD"],
    model_of: Callable[[], nn.Module] = Net,
    steps: int = STEPS,
    set_to_none: bool = True,
    tolerance: float = 1e-12,
    **options: Any,
) -> None:
    """Train both and compare after each step. ``groups`` in the options may be a function of the model."""
    model, serial = twins(model_of)
    if callable(options.get("groups")):
        options["groups"] = options["groups"](model)
    optimizer, reference = distributed(model, make, **options), make(serial.parameters())
    before = copy.deepcopy(serial.state_dict())
    for x, y in batches(n, steps):
        optimizer.zero_grad(set_to_none=set_to_none)
        reference.zero_grad(set_to_none=set_to_none)
        mse(model, part(x), part(y)).backward()
        optimizer.step()
        mse(serial, x, y).backward()
        reference.step()
        assert_equal(model, serial, tolerance)
    changed = [name for name, value in serial.state_dict().items() if not torch.equal(value, before[name])]
    assert len(changed) >= 2, "the test trains nothing"


# --- equal to the serial run --------------------------------------------------------------------------


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("make", MAKES)
def test_equals_the_serial_run(make: str, set_to_none: bool, n: int) -> None:
    """Tied, frozen and unused parameters included, after each of 20 steps; weight decay leaves the unused alone."""
    run(n, MAKES[make], set_to_none=set_to_none)


@pytest.mark.parametrize("factor", [0.5, 2.0, 3.0, "n"])
def test_gradient_predivide_factor(factor: float | str, n: int) -> None:
    """Dividing before and multiplying after the sum changes nothing but rounding."""
    run(n, gradient_predivide_factor=float(n if factor == "n" else factor))


@pytest.mark.parametrize("num_groups", [1, 2, 3, 100])
def test_num_groups(num_groups: int, n: int) -> None:
    """Gradients that travel in groups give the same result; more groups than parameters are as many as parameters."""
    run(n, num_groups=num_groups)


def test_groups(n: int) -> None:
    """Groups given as lists of parameters; those in no list travel alone, the unused one's group is no trap."""
    run(n, groups=lambda m: [[m.head.weight, m.body.weight], [m.unused.weight, m.head.bias], [m.body.bias]])


def test_groups_with_a_frozen_parameter(n: int) -> None:
    """A frozen parameter in a group does not make the others wait for it."""
    run(n, groups=lambda m: [[m.head.weight, m.frozen.weight, m.frozen.bias], [m.frozen.bias][:0]])


def test_groups_as_a_number(n: int) -> None:
    """Horovod takes a number for ``groups`` as well: it is the number of groups."""
    run(n, groups=2)


def test_op_sum(n: int) -> None:
    """With op=Sum and the loss divided by n, the result is the same."""
    model, serial = twins()
    optimizer, reference = distributed(model, op=hvd.Sum), MAKES["SGD"](serial.parameters())
    for x, y in batches(n, 5):
        optimizer.zero_grad()
        reference.zero_grad()
        (mse(model, part(x), part(y)) / n).backward()
        optimizer.step()
        mse(serial, x, y).backward()
        reference.step()
        assert_equal(model, serial)


def test_without_names(n: int) -> None:
    """named_parameters is optional."""
    model, serial = twins()
    optimizer, reference = hvd.DistributedOptimizer(MAKES["SGD"](model.parameters())), MAKES["SGD"](serial.parameters())
    for x, y in batches(n, 5):
        optimizer.zero_grad()
        reference.zero_grad()
        mse(model, part(x), part(y)).backward()
        optimizer.step()
        mse(serial, x, y).backward()
        reference.step()
        assert_equal(model, serial)


def conv() -> nn.Module:
    """A convolution in channels_last: gradients whose memory is not in the order of their shape."""
    model = nn.Sequential(nn.Unflatten(1, (4, 1, 1)), nn.ConvTranspose2d(4, 3, 2), nn.Conv2d(3, 4, 2), nn.Flatten())
    return model.double().to(memory_format=torch.channels_last)


@pytest.mark.parametrize("make", MAKES)
def test_channels_last(make: str, n: int) -> None:
    """A model in channels_last equals the serial run."""
    run(n, MAKES[make], conv)


@pytest.mark.parametrize("where", ["last rank", "first rank", "alternating"])
@pytest.mark.parametrize("make", MAKES)
def test_a_parameter_that_one_rank_uses(make: str, where: str, n: int) -> None:
    """Only some rows use a layer, so on most ranks it has no gradient: they contribute zeros."""
    model, serial = twins()
    optimizer, reference = distributed(model, MAKES[make]), MAKES[make](serial.parameters())
    for step, (x, y) in enumerate(batches(n)):
        user = {"last rank": n - 1, "first rank": 0, "alternating": step % (n + 1)}[where]  # rank n: nobody
        uses = torch.arange(len(x)) % n == user
        optimizer.zero_grad()
        reference.zero_grad()
        mse(model, part(x), part(y), with_extra=part(uses)).backward()
        optimizer.step()
        mse(serial, x, y, with_extra=uses).backward()
        reference.step()
        assert_equal(model, serial)


@pytest.mark.parametrize("passes", [2, 3])
def test_backward_passes_per_step(passes: int, n: int) -> None:
    """Gradients of several passes are added up, not averaged, and travel once."""
    model, serial = twins()
    optimizer = distributed(model, backward_passes_per_step=passes)
    reference = MAKES["SGD"](serial.parameters())
    data = list(batches(n, STEPS * passes // 2))
    for start in range(0, len(data), passes):
        optimizer.zero_grad()
        reference.zero_grad()
        for x, y in data[start : start + passes]:  # the last step may have fewer passes
            mse(model, part(x), part(y)).backward()
            mse(serial, x, y).backward()
        optimizer.step()
        reference.step()
        assert_equal(model, serial)


def test_backward_passes_changed_between_steps(n: int) -> None:
    """set_backward_passes_per_step holds from the next step on."""
    model, serial = twins()
    optimizer, reference = distributed(model), MAKES["SGD"](serial.parameters())
    data = batches(n)
    for passes in (1, 3, 2, 1):
        optimizer.set_backward_passes_per_step(passes)
        optimizer.zero_grad()
        reference.zero_grad()
        for _ in range(passes):
            x, y = next(data)
            mse(model, part(x), part(y)).backward()
            mse(serial, x, y).backward()
        optimizer.step()
        reference.step()
        assert_equal(model, serial)


def test_add_param_group_and_unfreeze(n: int) -> None:
    """Layers that are added to the optimizer or unfrozen amid training take part from then on; frozen ones stop."""
    model, serial = twins()
    optimizer = hvd.DistributedOptimizer(MAKES["SGD"](model.body.parameters()))
    reference = MAKES["SGD"](serial.body.parameters())
    for step, (x, y) in enumerate(batches(n)):
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
        optimizer.zero_grad()
        reference.zero_grad()
        mse(model, part(x), part(y)).backward()
        optimizer.step()
        mse(serial, x, y).backward()
        reference.step()
        for name in ("body.weight", "body.bias", "head.weight", "head.bias", "frozen.weight", "frozen.bias"):
            mine, its = model.get_parameter(name), serial.get_parameter(name)
            assert torch.allclose(mine, its, rtol=0, atol=1e-12), (step, name)


def test_unfreeze_a_parameter_of_the_optimizer(n: int) -> None:
    """All parameters are given to the optimizer at once; some are unfrozen later (fine-tuning)."""
    model, serial = twins()
    optimizer, reference = distributed(model), MAKES["SGD"](serial.parameters())
    for step, (x, y) in enumerate(batches(n)):
        if step == 5:
            model.frozen.requires_grad_(True)
            serial.frozen.requires_grad_(True)
        optimizer.zero_grad()
        reference.zero_grad()
        mse(model, part(x), part(y)).backward()
        optimizer.step()
        mse(serial, x, y).backward()
        reference.step()
        assert_equal(model, serial)


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


def closure_of(net: nn.Module, optimizer: Any, x: torch.Tensor, y: torch.Tensor) -> Callable[[], torch.Tensor]:
    """What step() calls, as often as it likes."""

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = mse(net, x, y)
        loss.backward()
        return loss

    return closure


def test_closure(n: int) -> None:
    """step(closure) reduces what the closure computed and returns the loss over all ranks."""
    model, serial = twins()
    optimizer, reference = distributed(model), MAKES["SGD"](serial.parameters())
    for x, y in batches(n):
        loss = optimizer.step(closure_of(model, optimizer, part(x), part(y)))
        wanted = reference.step(closure_of(serial, reference, x, y))
        assert abs(loss.item() - wanted.item()) <= 1e-12
        assert_equal(model, serial)


def test_closure_called_many_times(n: int) -> None:
    """LBFGS calls its closure many times a step, as often as the losses ask for: on all ranks alike."""

    def make(params: Any) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(params, max_iter=6, line_search_fn="strong_wolfe")

    model, serial = twins(lambda: nn.Linear(4, 4).double())
    optimizer, reference = distributed(model, make), make(serial.parameters())
    for x, y in batches(n, 3):
        optimizer.step(closure_of(model, optimizer, part(x), part(y)))
        reference.step(closure_of(serial, reference, x, y))
        assert_equal(model, serial, 1e-9)


@pytest.mark.parametrize("scheduled", ["the wrapped optimizer", "the optimizer, before it is wrapped"])
@pytest.mark.parametrize("make", MAKES)
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
    for x, y in batches(n, 6):
        optimizer.zero_grad()
        reference.zero_grad()
        mse(model, part(x), part(y)).backward()
        optimizer.step()
        scheduler.step()
        mse(serial, x, y).backward()
        reference.step()
        its_scheduler.step()
        assert_equal(model, serial)
        assert optimizer.param_groups[0]["lr"] == reference.param_groups[0]["lr"] == scheduler.get_last_lr()[0]


def test_reduce_on_plateau(n: int) -> None:
    """A scheduler that looks at a metric changes the wrapped optimizer's learning rate."""
    model, _ = twins()
    optimizer = distributed(model)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0)
    for metric in (1.0, 1.0, 1.0):
        scheduler.step(metric)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.05 * 0.01)


@pytest.mark.parametrize("compression", ["fp16", "bf16"])
def test_compression(compression: str, n: int) -> None:
    """Gradients that are exact in the short dtype give the exact step; the parameters keep their own dtype."""
    for dtype in (torch.float32, torch.float64):
        model = nn.Linear(3, 2).to(dtype)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        optimizer = distributed(
            model,
            lambda params: torch.optim.SGD(params, lr=0.5),
            compression=getattr(hvd.Compression, compression),
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


@pytest.mark.parametrize("compression", ["fp16", "bf16"])
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


class Words(nn.Module):
    """An embedding, whose gradient is sparse if asked for."""

    def __init__(self, sparse: bool) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(10, 4, sparse=sparse), nn.Linear(4, 4)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.words((x[:, 0] * 7).long().abs() % 10))


def test_sparse_as_dense(n: int) -> None:
    """A sparse embedding equals the serial run with a dense one, momentum and weight decay included."""
    model, _ = twins(lambda: Words(sparse=True))
    serial = Words(sparse=False)
    serial.load_state_dict(model.state_dict())
    optimizer, reference = distributed(model, sparse_as_dense=True), MAKES["SGD"](serial.parameters())
    for x, y in batches(n):
        optimizer.zero_grad()
        reference.zero_grad()
        mse(model, part(x), part(y)).backward()
        optimizer.step()
        mse(serial, x, y).backward()
        reference.step()
        assert_equal(model, serial)


def test_sparse_gradients(n: int) -> None:
    """Without sparse_as_dense the gradient stays sparse; each rank has its own words; SGD equals the serial run."""
    sparse_run(n, silent=lambda step: False)


def test_sparse_gradients_that_some_ranks_lack(n: int) -> None:
    """In some steps, though not in the first, only the last rank sees any words."""
    sparse_run(n, silent=lambda step: step % 4 == 3)


@pytest.mark.skip(reason="not solved: in its very first step a rank without the gradient cannot know that it is sparse")
def test_sparse_gradients_that_some_ranks_lack_at_first(n: int) -> None:
    """In the very first step only the last rank sees words: the others do not know yet that the gradient is sparse."""
    sparse_run(n, silent=lambda step: step % 4 == 0)


def sparse_run(n: int, silent: Callable[[int], bool]) -> None:
    """Train an embedding and compare after each step; in silent steps all ranks but the last have no rows."""

    def make(params: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(params, lr=0.1)

    model, serial = twins(lambda: Words(sparse=True))
    optimizer, reference = distributed(model, make), make(serial.parameters())
    for step, (x, y) in enumerate(batches(n)):
        optimizer.zero_grad()
        reference.zero_grad()
        if not silent(step):
            mse(model, part(x), part(y)).backward()
            mse(serial, x, y).backward()
        else:
            if hvd.rank() == n - 1:
                mse(model, part(x), part(y)).backward()
            (mse(serial, x[n - 1 :: n], y[n - 1 :: n]) / n).backward()
        optimizer.step()
        reference.step()
        assert_equal(model, serial)
        assert model.words.weight.grad.is_sparse


# --- a drop-in for the optimizer it wraps -------------------------------------------------------------


def test_it_is_the_optimizer_it_wraps(n: int) -> None:
    """isinstance, groups, state and defaults are the wrapped optimizer's own."""
    model, _ = twins()
    inner = MAKES["SGD"](model.parameters())
    optimizer = hvd.DistributedOptimizer(inner, named_parameters=model.named_parameters())
    assert isinstance(optimizer, torch.optim.SGD)
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert isinstance(optimizer, hvd.DistributedOptimizer)
    assert not isinstance(optimizer, torch.optim.Adam)
    assert optimizer.param_groups is inner.param_groups
    assert optimizer.state is inner.state
    assert optimizer.defaults == inner.defaults
    assert "SGD" in repr(optimizer)


@pytest.mark.parametrize("make", MAKES)
def test_state_dict_round_trip(make: str, n: int) -> None:
    """A checkpoint is the plain optimizer's; training goes on from it as if it had never stopped."""
    model, serial = twins()
    optimizer, reference = distributed(model, MAKES[make]), MAKES[make](serial.parameters())
    for step, (x, y) in enumerate(batches(n)):
        if step == 7:  # to a new wrapped optimizer
            saved = copy.deepcopy(optimizer.state_dict())
            assert saved.keys() == reference.state_dict().keys()
            assert saved["state"].keys() == reference.state_dict()["state"].keys()
            model_again = Net()
            model_again.load_state_dict(model.state_dict())
            model, optimizer = model_again, distributed(model_again, MAKES[make])
            optimizer.load_state_dict(saved)
        if step == 14:  # into a plain one, and from there back
            plain = MAKES[make](model.parameters())
            plain.load_state_dict(copy.deepcopy(optimizer.state_dict()))
            optimizer.load_state_dict(copy.deepcopy(plain.state_dict()))
        optimizer.zero_grad()
        reference.zero_grad()
        mse(model, part(x), part(y)).backward()
        optimizer.step()
        mse(serial, x, y).backward()
        reference.step()
        assert_equal(model, serial)


def test_zero_grad_keeps_the_memory(n: int) -> None:
    """zero_grad(set_to_none=False) fills with zeros in place, through step() as well; True drops the gradients."""
    model, _ = twins()
    optimizer = distributed(model)
    x, y = next(batches(n))
    mse(model, part(x), part(y)).backward()
    place = model.head.weight.grad.data_ptr()
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    assert model.head.weight.grad.data_ptr() == place
    assert not model.head.weight.grad.any()
    optimizer.zero_grad(set_to_none=True)
    assert model.head.weight.grad is None
    optimizer.zero_grad()
    optimizer.zero_grad(False)


def test_step_hooks(n: int) -> None:
    """torch's own hooks around step() run once per step."""
    model, _ = twins()
    optimizer = distributed(model)
    calls: list[str] = []
    optimizer.register_step_pre_hook(lambda *_: calls.append("before"))
    optimizer.register_step_post_hook(lambda *_: calls.append("after"))
    x, y = next(batches(n))
    mse(model, part(x), part(y)).backward()
    optimizer.step()
    assert calls == ["before", "after"]


@pytest.mark.skip(reason="not solved: the hooks of the first wrapper stay on the parameters")
def test_wrapping_the_same_model_again(n: int) -> None:
    """A second optimizer for a model takes over from the first: the notebook cell that makes it is run again."""
    model, serial = twins()
    reference = MAKES["SGD"](serial.parameters())
    for step, (x, y) in enumerate(batches(n, 6)):
        if step % 3 == 0:
            optimizer = distributed(model)
            reference = MAKES["SGD"](serial.parameters())
        optimizer.zero_grad()
        reference.zero_grad()
        mse(model, part(x), part(y)).backward()
        optimizer.step()
        mse(serial, x, y).backward()
        reference.step()
        assert_equal(model, serial)


def test_two_models_at_once(n: int) -> None:
    """Two models with their own optimizers and the same parameter names, as in a GAN, train side by side."""
    pairs = [twins() for _ in range(2)]
    optimizers = [distributed(model) for model, _ in pairs]
    references = [MAKES["SGD"](serial.parameters()) for _, serial in pairs]
    for x, y in batches(n, 4):
        for (model, serial), optimizer, reference in zip(pairs, optimizers, references, strict=True):
            optimizer.zero_grad()
            reference.zero_grad()
            mse(model, part(x), part(y)).backward()
            optimizer.step()
            mse(serial, x, y).backward()
            reference.step()
            assert_equal(model, serial)


@pytest.mark.skip(reason="not solved: hooks and wrapper hold each other, so the model waits for the garbage collector")
def test_a_dropped_model_is_freed(n: int) -> None:
    """Wrapping leaves nothing behind that keeps the model's memory when model and optimizer are gone."""
    model, _ = twins()
    optimizer = distributed(model)
    x, y = next(batches(n))
    mse(model, part(x), part(y)).backward()
    optimizer.step()
    gone = weakref.ref(model.head.weight)
    del model, optimizer
    gc.collect()
    assert gone() is None


# --- what is refused ----------------------------------------------------------------------------------


def test_names_are_checked(n: int) -> None:
    """named_parameters must be pairs with unique names for all of the optimizer's parameters."""
    model, _ = twins()

    def wrap(named: Any) -> None:
        hvd.DistributedOptimizer(MAKES["SGD"](model.parameters()), named_parameters=named)

    with pytest.raises(ValueError, match="sequence of tuples"):
        wrap(model.parameters())
    with pytest.raises(ValueError, match=r"[Dd]uplicates.*\bsame\b"):
        wrap([("same", parameter) for parameter in model.parameters()])
    with pytest.raises(ValueError, match="have no name"):
        wrap(list(model.named_parameters())[1:])


def test_options_are_checked(n: int) -> None:
    """Numbers and groups that make no sense are ValueErrors at once."""
    model, _ = twins()
    for wrong, text in (
        ({"num_groups": -1}, "num_groups"),
        ({"backward_passes_per_step": 0}, "backward_passes_per_step"),
        ({"gradient_predivide_factor": 2.0, "op": hvd.Sum}, "gradient_predivide_factor"),
        ({"groups": [[nn.Parameter(torch.ones(1))]]}, "groups"),
        ({"groups": [[model.head.weight], [model.head.weight]]}, "groups"),
        ({"groups": 0}, "groups"),
    ):
        with pytest.raises(ValueError, match=text):
            distributed(model, **wrong)
    with pytest.raises(ValueError, match="backward_passes_per_step"):
        distributed(model).set_backward_passes_per_step(0)


@pytest.mark.ranks(2)
def test_too_many_backward_passes(n: int) -> None:
    """One pass more than announced is an AssertionError on every rank; training goes on with fresh gradients."""
    model, _ = twins()
    optimizer = distributed(model)
    x, y = next(batches(n))
    mse(model, part(x), part(y)).backward()
    with pytest.raises(AssertionError, match="more than backward_passes_per_step times"):
        mse(model, part(x), part(y)).backward()
    optimizer.synchronize()  # the first pass, and what the second has added to it since, are good for nothing
    optimizer.zero_grad()
    with warnings.catch_warnings():  # step() does not know that the gradients are new since synchronize()
        warnings.simplefilter("ignore")
        goes_on(n, model, optimizer)


@pytest.mark.ranks(2)
def test_zero_grad_while_gradients_travel(n: int) -> None:
    """zero_grad() between backward() and step() is an AssertionError; the step can still be taken."""
    model, serial = twins()
    optimizer, reference = distributed(model), MAKES["SGD"](serial.parameters())
    x, y = next(batches(n))
    mse(model, part(x), part(y)).backward()
    with pytest.raises(AssertionError, match=r"zero_grad\(\) was called after loss\.backward\(\)"):
        optimizer.zero_grad()
    optimizer.step()
    mse(serial, x, y).backward()
    reference.step()
    assert_equal(model, serial)
    optimizer.zero_grad()


def test_step_after_synchronize_warns(n: int) -> None:
    """step() after synchronize() without skip_synchronize() warns, and gives the right result."""
    model, serial = twins()
    optimizer, reference = distributed(model), MAKES["SGD"](serial.parameters())
    for x, y in batches(n, 3):
        optimizer.zero_grad()
        reference.zero_grad()
        mse(model, part(x), part(y)).backward()
        optimizer.synchronize()
        with pytest.warns(UserWarning, match="skip_synchronize"):
            optimizer.step()
        mse(serial, x, y).backward()
        reference.step()
        assert_equal(model, serial)


def test_a_second_step_does_not_reduce_again(n: int) -> None:
    """The gradients of one backward are averaged once: step() twice equals the serial optimizer's step() twice."""
    model, serial = twins()
    optimizer, reference = distributed(model), MAKES["SGD"](serial.parameters())
    x, y = next(batches(n))
    mse(model, part(x), part(y)).backward()
    mse(serial, x, y).backward()
    for _ in range(2):
        optimizer.step()
        reference.step()
        assert_equal(model, serial)


def test_an_exception_in_backward_does_not_stick(n: int) -> None:
    """When backward raises on every rank (a check for NaN, say), the steps after the next are right again."""
    model, _ = twins()
    optimizer = distributed(model)

    def refuse(_: torch.Tensor) -> None:
        raise ArithmeticError("on purpose")

    x, y = next(batches(n))
    hook = model.body.weight.register_hook(refuse)
    with pytest.raises(ArithmeticError):
        mse(model, part(x), part(y)).backward()
    hook.remove()
    optimizer.step()  # with the gradients that were ready
    goes_on(n, model, optimizer)


def goes_on(n: int, model: nn.Module, optimizer: hvd.DistributedOptimizer) -> None:
    """From here on training equals a serial run that begins with the same parameters and state, on every rank."""
    states = hvd.allgather_object(model.state_dict())
    assert all(torch.equal(states[0][name], state[name]) for state in states for name in state)
    serial = copy.deepcopy(model)
    reference = MAKES["SGD"](serial.parameters())
    reference.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for x, y in batches(n, 3):
        optimizer.zero_grad()
        reference.zero_grad()
        mse(model, part(x), part(y)).backward()
        optimizer.step()
        mse(serial, x, y).backward()
        reference.step()
        assert_equal(model, serial)


def test_no_warning_in_a_normal_run(n: int) -> None:
    """A plain training loop is silent."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(n, steps=3)
