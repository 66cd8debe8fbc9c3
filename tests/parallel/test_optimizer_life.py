"""DistributedOptimizer as an object: in the place of the one it wraps, made again, dropped, and what it refuses."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from functools import partial
from typing import Any

import pytest
import torch
from failed_cells import interrupted_cell
from overlap import tower
from serial import (
    MAKES,
    Net,
    assert_equal,
    batches,
    closure_of,
    distributed,
    goes_on,
    mse,
    one_step,
    part,
    step_alike,
    train_alike,
    twins,
)
from thorough import diagonal, once_more, quick
from torch import nn

import workbench.torch as hvd
from workbench import fingerprint
from workbench.errors import MismatchError
from workbench.torch.elastic import TorchState

TOPK = hvd.Compression.topk(0.5)

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


@pytest.mark.parametrize("make", quick(MAKES, "Adam"))
def test_state_dict_round_trip(make: str, n: int) -> None:
    """A checkpoint is the plain optimizer's; training goes on from it as if it had never stopped."""
    model, serial = twins()
    optimizer, reference = distributed(model, MAKES[make]), MAKES[make](serial.parameters())
    for step, (x, y) in enumerate(batches(n, 16)):
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
        step_alike(model, optimizer, serial, reference, (x, y))


def test_zero_grad_keeps_the_memory(n: int) -> None:
    """zero_grad(set_to_none=False) fills with zeros in place, through step() as well; True drops the gradients."""
    model, _ = twins()
    optimizer = distributed(model)
    mse(model, *map(part, next(batches(n)))).backward()
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
    mse(model, *map(part, next(batches(n)))).backward()
    optimizer.step()
    assert calls == ["before", "after"]


@pytest.mark.parametrize(
    "again", quick(["model and optimizer", "the optimizer", "the wrapper", "other names"], "the wrapper", "other names")
)
def test_wrapping_the_same_model_again(again: str, n: int) -> None:
    """A second optimizer for a model takes over from the first: the notebook cell that makes it is run again."""
    model, serial = twins()
    for step, (x, y) in enumerate(batches(n, 6)):
        if step == 0:
            optimizer, reference = distributed(model), MAKES["SGD"](serial.parameters())
        elif step % 2 == 0:
            if again == "model and optimizer":
                model, serial = twins()
            if again == "the wrapper":
                optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
            elif again == "other names":
                optimizer = hvd.DistributedOptimizer(MAKES["SGD"](model.parameters()))
            else:
                optimizer = distributed(model)
            reference = MAKES["SGD"](serial.parameters()) if again != "the wrapper" else reference
        step_alike(model, optimizer, serial, reference, (x, y))


def test_wrapping_again_amid_a_step(n: int) -> None:
    """The step of the first optimizer was broken off, gradients on their way: the second begins with its own."""
    model, serial = twins()
    x, y = next(batches(n))
    broken = distributed(model)
    mse(model, part(x), part(y)).backward()
    optimizer, reference = distributed(model), MAKES["SGD"](serial.parameters())
    del broken
    train_alike(model, optimizer, serial, reference, batches(n, 3))


@pytest.mark.parametrize("op", [hvd.Average, hvd.Adasum])
def test_an_optimizer_that_was_replaced_says_so(op: Any, n: int) -> None:
    """It would step with gradients that are another one's: it raises, and the new one works."""
    model, _ = twins()
    old, new = distributed(model, op=op), distributed(model)
    mse(model, *map(part, next(batches(n)))).backward()
    with pytest.raises(RuntimeError, match="has taken over"):
        old.step()
    new.step()
    goes_on(n, model, new)


def test_two_models_at_once(n: int) -> None:
    """Two models with their own optimizers and the same parameter names, as in a GAN, train side by side."""
    pairs = [twins() for _ in range(2)]
    optimizers = [distributed(model) for model, _ in pairs]
    references = [MAKES["SGD"](serial.parameters()) for _, serial in pairs]
    for x, y in batches(n, 4):
        for (model, serial), optimizer, reference in zip(pairs, optimizers, references, strict=True):
            step_alike(model, optimizer, serial, reference, (x, y))


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("first", "options"),
    diagonal(
        [0, 3],
        [{}, {"compression": hvd.Compression.fp16}, {"sharded": True}, {"op": hvd.Adasum}, {"compression": TOPK}],
    ),
)
def test_two_models_in_unlike_order_are_not_mixed(options: dict[str, Any], first: int, rank: int, n: int) -> None:
    """Names and shapes are the same, so one's gradients would be added to the other's: all ranks get an error."""
    models = [twins()[0] for _ in range(2)]
    optimizers = [distributed(model, **options) for model in models]

    def train() -> None:
        for step, batch in enumerate(batches(n, 5)):
            swapped = step >= first and rank == 0
            for model, optimizer in list(zip(models, optimizers, strict=True))[:: -1 if swapped else 1]:
                one_step(model, optimizer, batch)

    with pytest.raises(MismatchError, match=r"(?s)Two optimizers have parameters of this name.*in the same order"):
        train()


@pytest.mark.ranks(2)
def test_groups_that_differ_are_an_error_in_each_step(rank: int, n: int) -> None:
    """A parameter is frozen on one rank alone, so its group is another one there. Who catches that may go on."""
    model, _ = twins()
    model.head.bias.requires_grad_(rank != 1)
    optimizer = distributed(model, num_groups=1)
    for x, y in batches(n, 3):
        mse(model, part(x), part(y)).backward()
        with pytest.raises(MismatchError, match=r"(?s)Mismatched groups.*ranks? 0.*: .*rank 1: "):
            optimizer.step()
        optimizer.zero_grad()


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    "options",
    [{}, {"num_groups": 1}, {"op": hvd.Adasum}, {"compression": TOPK}],
    ids=["alone", "in groups", "adasum", "top-k"],
)
def test_a_trial_that_is_left_keeps_no_name_from_the_next(options: dict[str, Any], rank: int, n: int) -> None:
    """Trials of one loop end between ``backward()`` and ``step()``, or after ``synchronize()``."""
    x, y = next(iter(batches(n, 1)))
    for trial in range(5):
        model, _ = twins()
        optimizer = distributed(model, **options)
        mse(model, part(x), part(y)).backward()
        if trial % 2:
            optimizer.synchronize()
    model, before = twins()
    optimizer = distributed(model, **options)
    mse(model, part(x), part(y)).backward()
    optimizer.step()
    assert not torch.equal(model.head.weight, before.head.weight)
    assert fingerprint(model).agree


@pytest.mark.ranks(2)
@pytest.mark.parametrize("options", [{}, {"op": hvd.Adasum}, {"compression": TOPK}], ids=",".join)
def test_a_step_more_than_another_rank_is_named_once(
    options: dict[str, Any], rank: int, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupt comes to one rank when it has the results, and to the other after its step."""
    model, _ = twins()
    optimizer = distributed(model, **options)
    step = partial(one_step, model, optimizer, next(batches(n)))
    for _ in range(3):
        step()
    with monkeypatch.context() as patch:
        if rank == 1:
            patch.setattr(optimizer._distributed.steps, "step", stop)
        interrupted_cell(step)
    with pytest.raises(MismatchError, match=r"(?s)Mismatched steps: .*ranks? 0.*: 4 steps\n  rank 1: 3 steps\n"):
        step()
    step()


def stop(*_: object) -> Any:
    """As Ctrl-C, in place of any function."""
    raise KeyboardInterrupt


@pytest.mark.ranks(2)
def test_an_update_that_all_ranks_broke_off(rank: int, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What each rank has updated is not known: the next step names it for all ranks, and the one after is made."""
    model, _ = twins()
    optimizer = distributed(model)
    x, y = next(batches(n))

    def code() -> None:
        hvd.barrier()
        with suppress(KeyboardInterrupt) if rank else nullcontext():  # one failure is enough for the cell
            optimizer.step(closure_of(model, optimizer, part(x), part(y)))

    with monkeypatch.context() as patch:
        patch.setattr(optimizer._distributed.optimizer, "step", stop)
        interrupted_cell(code)
    with pytest.raises(MismatchError, match="one that was interrupted halfway"):
        optimizer.step(closure_of(model, optimizer, part(x), part(y)))
    optimizer.step(closure_of(model, optimizer, part(x), part(y)))


@pytest.mark.ranks(2)
def test_a_closure_after_a_cell_that_failed(rank: int, n: int) -> None:
    """Its gradients are sent while its step goes on, which is no step that was interrupted."""
    model, serial = twins()
    optimizer, reference = distributed(model), MAKES["SGD"](serial.parameters())

    def code() -> None:
        hvd.barrier()
        if rank == 1:
            raise KeyboardInterrupt

    interrupted_cell(code)
    for x, y in batches(n, 3):
        optimizer.step(closure_of(model, optimizer, part(x), part(y)))
        reference.step(closure_of(serial, reference, x, y))
        assert_equal(model, serial)


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Only what nobody refers to is freed: no cycle is looked for."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("compression", ["none", "fp16"])
@pytest.mark.usefixtures("no_collector")
def test_a_dropped_model_is_freed(compression: str, n: int) -> None:
    """Model and optimizer are gone as soon as nobody refers to them, without the garbage collector."""
    model, _ = twins()
    optimizer = distributed(model, compression=getattr(hvd.Compression, compression), num_groups=2)
    for batch in batches(n, 3):
        one_step(model, optimizer, batch)
    momentum = optimizer.state[model.head.weight]["momentum_buffer"]
    gone = [weakref.ref(each) for each in (model, model.head.weight, momentum, optimizer)]
    del momentum, model, optimizer
    assert [each() for each in gone] == [None] * 4


@pytest.mark.usefixtures("no_collector")
def test_a_dropped_optimizer_leaves_the_model_alone(n: int) -> None:
    """When the wrapped optimizer is dropped and the model trains on with a plain one, gradients stay the rank's own."""
    model, _ = twins()
    optimizer = distributed(model)
    gone = weakref.ref(optimizer)
    del optimizer
    assert gone() is None
    plain = MAKES["SGD"](model.parameters())
    alone = copy.deepcopy(model)
    its = MAKES["SGD"](alone.parameters())
    for batch in batches(n, 3):
        for net, one in ((model, plain), (alone, its)):
            one_step(net, one, batch)
    assert_equal(model, alone, 0.0)


# --- what is refused ----------------------------------------------------------------------------------


MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "overlap": {"overlap_forward": True},
    "top-k": {"compression": hvd.Compression.topk(1.0)},
    "Adasum": {"op": hvd.Adasum},
    **{str(stage): {"sharded": stage} for stage in (True, "gradients", "parameters")},
}


@pytest.mark.processes("warnings are the whole process's")
@pytest.mark.parametrize(("first", "mode"), diagonal([0, 2], MODES, most=2))
def test_parameters_that_are_the_model_s_no_longer(first: int, mode: str, n: int) -> None:
    """A step after load_state_dict(assign=True) has nothing to train: it warns. A step before, or without data, not."""
    model, other = twins(tower)
    if mode == "parameters":
        hvd.shard_parameters(model)
    # Adasum takes a power of two ranks.
    optimizer = distributed(model, **({} if mode == "Adasum" and n & (n - 1) else MODES[mode]))
    step = partial(one_step, model, optimizer, next(batches(n)))
    for _ in range(first):
        step()
    if mode not in ("gradients", "parameters"):  # there all ranks make equally many passes
        optimizer.zero_grad()
        optimizer.step()
    model.load_state_dict(other.state_dict(), assign=True)
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"none of the \d+ parameters .* has got a gradient on this rank"):
            step()


@pytest.mark.parametrize(
    ("kept", "mode"),
    diagonal([False, True], [mode for mode in MODES if mode not in ("Adasum", "gradients", "parameters")]),
)
def test_skip_synchronize_before_synchronize(kept: bool, mode: str, n: int) -> None:
    """step() refuses gradients of this rank alone, also those kept by no_sync(); after synchronize() it is right."""
    model, serial = twins(tower)
    optimizer, reference = distributed(model, **MODES[mode]), MAKES["SGD"](serial.parameters())
    for x, y in batches(n, 4):
        optimizer.zero_grad()
        reference.zero_grad()
        with optimizer.no_sync() if kept else nullcontext():
            mse(model, part(x), part(y)).backward()
        mse(serial, x, y).backward()
        if n > 1:
            assert optimizer.in_flight
            with optimizer.skip_synchronize(), pytest.raises(RuntimeError, match=r"Call optimizer\.synchronize\(\)"):
                optimizer.step()
            with optimizer.skip_synchronize(), pytest.raises(RuntimeError, match=r"Call optimizer\.synchronize\(\)"):
                optimizer.step(lambda: None)
        optimizer.synchronize()
        assert not optimizer.in_flight
        with optimizer.skip_synchronize():
            optimizer.step()
        reference.step()
        assert_equal(model, serial)


@pytest.mark.parametrize(
    ("way", "options"),
    diagonal(["restore", "zero_grad"], [{}, {"overlap_forward": True}, {"sharded": True}, {"num_groups": 2}], most=2),
)
def test_passes_that_are_dropped_do_not_count(way: str, options: dict[str, Any], n: int) -> None:
    """After some of backward_passes_per_step passes, restore() and zero_grad() begin the step anew."""
    model, serial = twins(tower)
    optimizer = distributed(model, backward_passes_per_step=3, **options)
    reference, state = MAKES["SGD"](serial.parameters()), TorchState(model, optimizer)
    for left, (x, y) in enumerate(batches(n, 6)):
        for _ in range(left % 3):
            mse(model, part(x), part(y)).backward()
        getattr(state if way == "restore" else optimizer, way)()
        reference.zero_grad()
        for _ in range(3):
            mse(model, part(x), part(y)).backward()
            mse(serial, x, y).backward()
        optimizer.step()
        reference.step()
        assert_equal(model, serial)
        state.commit()
        optimizer.zero_grad()


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
    with pytest.raises(RuntimeError, match="was changed while it was being sent"):
        optimizer.synchronize()  # the second pass has added to what the first had sent
    optimizer.abandon_step()
    optimizer.zero_grad()
    goes_on(n, model, optimizer)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "clip": lambda param: nn.utils.clip_grad_norm_([param], 1e-3),
    "replace": lambda param: setattr(param, "grad", param.grad * 0.5),
    "give other memory": lambda param: setattr(param.grad, "data", param.grad * 0.5),
    "remove": lambda param: setattr(param, "grad", None),
    "change data": lambda param: param.grad.data.mul_(0.5),
}


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    ("change", "before"),
    [
        *(("clip", 0), ("replace", 3), ("give other memory", 3), ("remove", 0), ("change data", 0)),
        *(once_more(*each) for each in (("clip", 3), ("replace", 0), ("give other memory", 0), ("remove", 3))),
    ],
)
def test_gradients_that_are_changed_on_their_way(change: str, before: int, n: int) -> None:
    """A change without synchronize() is an error on every rank, not weights that differ; then training goes on.

    In place or not, by name (before the first step) or in buckets.
    """
    model, _ = twins()
    optimizer = distributed(model)
    *first, last = batches(n, before + 1)
    for batch in first:
        one_step(model, optimizer, batch)
    optimizer.zero_grad()
    mse(model, *map(part, last)).backward()
    for param in model.parameters():
        if param.grad is not None:
            CHANGES[change](param)
    with pytest.raises(RuntimeError, match=r"was changed .* Call optimizer\.synchronize\(\) after backward"):
        optimizer.step()
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


@pytest.mark.parametrize("named", [True, False])
def test_names_by_parameter(named: bool, n: int) -> None:
    """``_parameter_names`` says what every parameter is called, as Horovod's has it; also one that was added later."""
    model, more = nn.Linear(2, 1), nn.Parameter(torch.ones(1))
    inner = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer = hvd.DistributedOptimizer(inner, model.named_parameters() if named else None)
    names = [optimizer._parameter_names[param] for param in model.parameters()]
    assert names == (["weight", "bias"] if named else ["noname.0.0", "noname.0.1"])
    optimizer.add_param_group({"params": [more]})
    more.sum().backward()
    optimizer.step()
    assert optimizer._parameter_names[more] == "noname.1.0"
    assert list(optimizer._parameter_names) == [*model.parameters(), more]
