"""overlap_forward=True against the serial run: whoever looks at a parameter, whenever, sees its update."""

from __future__ import annotations

import copy
import io
import itertools
import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from bag import MAKES, STEPS, ZEROS, Pair
from thorough import diagonal, quick
from torch import nn

import workbench.torch as hvd
from workbench.torch.optimizer.deferred import Deferred

SMALL = {"BUCKET_BYTES": 500, "PIECE_BYTES": 80, "EAGER_BYTES": 0}  # several buckets, most in several pieces
TINY = {"BUCKET_BYTES": 1, "PIECE_BYTES": 8, "EAGER_BYTES": 0}  # a bucket for each gradient, a piece for each element


def later(module: nn.Module) -> list[str]:
    """Names of the parameters whose update is still to come."""
    return [name for name, param in module.named_parameters() if type(param) is Deferred]


def train(pair: Pair, steps: int = STEPS, zero: str = "optimizer, to None", passes: int = 1) -> None:
    """So many steps, and nobody looks in between but the next forward pass."""
    for step in range(steps):
        pair.zero_grad(zero)
        pair.backward(step, passes)
        pair.both_step()


@pytest.mark.parametrize(("make", "zero", "passes", "settings"), diagonal(MAKES, ZEROS, [1, 3], [SMALL, TINY], most=2))
def test_nobody_looks_but_the_forward_pass(
    make: str, zero: str, passes: int, settings: dict[str, int], n: int, job_with: Callable[..., None]
) -> None:
    """As above at the end of the training; each bucket is updated in the middle of a forward pass, or at its end."""
    job_with(**settings)
    pair = Pair(n, MAKES[make], overlap_forward=True, backward_passes_per_step=passes)
    train(pair, STEPS, zero, passes)
    assert (n > 1) == bool(later(pair.bag))
    pair.check(STEPS)
    pair.check_state()


@pytest.mark.parametrize(("name", "zero", "passes"), diagonal(["fp16", "bf16"], ZEROS, [1, 3], most=1))
def test_gradients_of_16_bits(name: str, zero: str, passes: int, n: int, job_with: Callable[..., None]) -> None:
    """They are cast in whole buckets, and the weights are those of a training that casts and waits in step()."""
    job_with(**SMALL)
    compression = getattr(hvd.Compression, name)
    late, prompt = (
        Pair(n, compression=compression, overlap_forward=defer, backward_passes_per_step=passes)
        for defer in (True, False)
    )
    for pair in (late, prompt):
        train(pair, STEPS, zero, passes)
    assert (n > 1) == bool(later(late.bag))
    if n > 1:
        buckets = late.optimizer._distributed.grads.buckets.values()
        assert {bucket.array.itemsize for bucket in buckets} == {2}
    rounding = 0.0 if n == 2 else 0.02  # two terms have one order; more are added in the order of the pieces
    for (which, mine), its in zip(late.bag.named_parameters(), prompt.bag.parameters(), strict=True):
        assert torch.allclose(mine, its, rtol=0, atol=rounding), which


LOOKS: dict[str, Callable[[nn.Module], Any]] = {
    "a print": lambda bag: repr(bag.get_parameter("always")),
    "a copy": lambda bag: copy.deepcopy(bag),
    "a pickle": lambda bag: pickle.loads(pickle.dumps(bag.get_parameter("always"))),
    "a checkpoint": lambda bag: torch.save(bag.state_dict(), io.BytesIO()),
    "a norm": lambda bag: nn.utils.get_total_norm(list(bag.parameters())),
    "its data": lambda bag: bag.get_parameter("always").data.numpy().copy(),
    "its gradient": lambda bag: bag.get_parameter("always").grad,
    "a change": lambda bag: bag.get_parameter("always").data.mul_(1.0),
    "a move": lambda bag: bag.to(torch.float64),
    "a broadcast": lambda bag: hvd.broadcast_parameters(bag.state_dict(), 0),
}


def test_whoever_looks_sees_the_update(n: int) -> None:
    """Between step() and the next forward pass, and within no_grad() and inference_mode(), too."""
    pair = Pair(n, overlap_forward=True)
    for step, look in enumerate([*LOOKS, *LOOKS]):  # each in two of the modes
        pair.zero_grad()
        pair.backward(step)
        for bag, optimizer, _ in pair.both():
            optimizer.step()
            with torch.inference_mode(step % 3 == 1), torch.set_grad_enabled(step % 3 == 0):
                LOOKS[look](bag)
        pair.check(step)


def in_a_thread(function: Callable[[], Any]) -> Any:
    """What it returns there, or the exception that it raises."""
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(function)
        return done.exception() or done.result()


@pytest.mark.parametrize("zero", quick(ZEROS, *list(ZEROS)[:1]))
def test_a_thread_that_only_reads(zero: str, n: int, job_with: Callable[..., None]) -> None:
    """A checkpoint that copies the weights again and again while the model trains: the training is the serial one."""
    job_with(**SMALL)
    pair = Pair(n, MAKES["Adam"], overlap_forward=True)
    ended = threading.Event()

    def read() -> int:
        for copies in itertools.count():
            if ended.is_set():
                return copies
            copy.deepcopy(pair.bag.state_dict())

    with ThreadPoolExecutor(1) as pool:
        copies = pool.submit(read)
        try:
            train(pair, STEPS, zero)
        finally:
            ended.set()
        assert copies.result() > 0
    pair.check(STEPS)
    pair.check_state()


@pytest.mark.ranks(2)
def test_a_thread_that_comes_late(n: int) -> None:
    """It looked at a parameter before an update, and has its turn when the next update is still to come: not twice."""
    pair = Pair(n, overlap_forward=True)
    train(pair, 3)
    update = pair.bag.get_parameter("always").update
    train(pair, 3)
    assert later(pair.bag)
    assert in_a_thread(update.finish) is None
    assert later(pair.bag)
    train(pair, 3)
    pair.check(STEPS)


@pytest.mark.ranks(2)
def test_an_update_that_fails_in_a_thread(n: int) -> None:
    """The thread has the error, and so has the next step of the thread that trains: no rank goes on without it."""
    pair = Pair(n, overlap_forward=True)
    train(pair, 3)
    always = pair.bag.get_parameter("always")
    pair.optimizer.zero_grad()
    pair.backward(3)
    grad = always.grad
    pair.optimizer.step()
    grad.add_(1)
    assert "was changed while it was being sent" in str(in_a_thread(always.sum))
    with pytest.raises(RuntimeError, match="was changed while it was being sent"):
        pair.optimizer.step()


def test_a_copy_is_a_plain_parameter(n: int) -> None:
    """Neither a copy nor what was pickled waits for anything, and both have the update."""
    param = nn.Parameter(torch.zeros(3))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD([param], lr=1.0), [("p", param)], overlap_forward=True)
    for make in (copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))):
        before = param.detach().clone()
        for step in range(3):
            optimizer.zero_grad()
            param.sum().backward()
            optimizer.step()
            assert (type(param) is Deferred) == (n > 1 and (step > 0 or before[0] < 0))
        found = make(param)
        assert type(found) is nn.Parameter
        assert found.tolist() == (before - 3).tolist() == param.tolist()


@pytest.mark.parametrize("make", quick(MAKES, "Adam"))
def test_clipping_and_closures(make: str, n: int) -> None:
    """synchronize() waits, so its step does, and so does a step with a closure; the others do not."""
    pair = Pair(n, MAKES[make], overlap_forward=True)
    for step in range(STEPS):
        if step % 3 == 2:

            def closure(bag: Any, optimizer: Any, ranks: Any, step: int) -> Any:
                optimizer.zero_grad()
                loss = bag.loss(ranks, step, n)
                loss.backward()
                return loss

            for bag, optimizer, ranks in pair.both():
                bag.freeze(step)
                optimizer.step(lambda now=(bag, optimizer, ranks, step): closure(*now))
            continue
        pair.zero_grad()
        pair.backward(step)
        if step % 3 == 1:
            pair.optimizer.synchronize()
            for bag, _, _ in pair.both():
                nn.utils.clip_grad_norm_(bag.parameters(), 0.5)
            with pair.optimizer.skip_synchronize():
                pair.optimizer.step()
        else:
            pair.optimizer.step()
        pair.reference.step()
    pair.check(STEPS)
    pair.check_state()


@pytest.mark.processes("shutdown() and init() are of the whole process")
def test_the_job_ends_before_the_update(n: int, job_with: Callable[..., None]) -> None:
    """What was reduced is not lost by shutdown(), and training goes on in the next job."""
    job_with(**SMALL)
    pair = Pair(n, overlap_forward=True)
    train(pair)
    hvd.shutdown()
    pair.check(STEPS)
    hvd.init()
    train(pair)
    pair.check(STEPS)
    pair.check_state()


def test_wrapped_again(n: int) -> None:
    """A cell that makes the optimizer is run again between step() and the next forward pass."""
    pair = Pair(n, overlap_forward=True)
    train(pair, 3)
    pair.wrap()
    pair.reference = pair.make(pair.groups(pair.twin))
    train(pair, 3)
    pair.check(3)


def layers() -> nn.Sequential:
    """Three layers, the last one large, with the same weights on all ranks."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 500)).double()


@pytest.mark.ranks(2)
def test_only_what_is_looked_at_is_waited_for(job_with: Callable[..., None]) -> None:
    """The first layer runs while the updates of the later ones are still to come; then the next one."""
    job_with(**{**SMALL, "PIECE_BYTES": 4000})
    net = layers()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), overlap_forward=True)
    for _ in range(3):
        optimizer.zero_grad()
        net(torch.ones(1, 8, dtype=torch.float64)).sum().backward()
        optimizer.step()
    assert later(net) == [name for name, _ in net.named_parameters()]
    x = net[0](torch.ones(1, 8, dtype=torch.float64))
    assert set(later(net)) == {"2.weight", "2.bias", "4.weight", "4.bias"}
    net[2](net[1](x))
    assert set(later(net)) == {"4.weight", "4.bias"}
    optimizer.state_dict()  # looks at all
    assert not later(net)


@pytest.mark.ranks(2)
def test_the_order_of_the_forward_pass_is_learnt(job_with: Callable[..., None]) -> None:
    """A model whose layers are used in another order than they are registered in."""
    job_with(**SMALL)
    net = nn.ModuleDict({"used last": nn.Linear(8, 8), "used first": nn.Linear(8, 8)}).double()
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), overlap_forward=True)

    def priorities() -> list[int]:
        buckets = optimizer._distributed.grads.buckets
        return [buckets[optimizer._distributed.names[net[layer].weight]].about["priority"] for layer in net]

    for step in range(4):
        optimizer.zero_grad()
        net["used last"](net["used first"](torch.ones(1, 8, dtype=torch.float64))).sum().backward()
        optimizer.step()
        if step:
            last, first = priorities()
            assert (first > last) == (step > 1)


@pytest.mark.thorough
@pytest.mark.processes("torch compiles for one thread at a time, and says so to the whole process")
def test_a_compiled_model_is_right(n: int) -> None:
    """Where torch.compile meets a parameter whose update is to come, the model runs as it is written."""
    net, twin = layers(), layers()
    torch.compiler.reset()
    compiled = torch.compile(net, backend="eager")
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), overlap_forward=True)
    reference = torch.optim.SGD(twin.parameters(), lr=0.1)
    for step in range(6):
        x = torch.randn(n, 8, generator=torch.Generator().manual_seed(step), dtype=torch.float64)
        optimizer.zero_grad()
        compiled(x[hvd.rank()]).square().sum().backward()
        optimizer.step()
        reference.zero_grad()
        (twin(x).square().sum() / n).backward()
        reference.step()
    torch.compiler.reset()
    for mine, its in zip(net.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(mine, its, rtol=0, atol=1e-12)


@pytest.mark.processes("what runs in C++ is seen where a function mode is")
@pytest.mark.ranks(2)
@pytest.mark.filterwarnings("ignore:.*torch.jit.script")
def test_a_use_that_torch_does_not_see_is_refused() -> None:
    """A scripted module takes its parameters in C++: its gradient would be that of old weights."""
    net = nn.Sequential(torch.jit.script(nn.Linear(3, 2)))
    optimizer = hvd.DistributedOptimizer(torch.optim.SGD(net.parameters(), lr=0.1), overlap_forward=True)
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    assert later(net)
    loss = net(torch.ones(1, 3)).sum()
    with pytest.raises(RuntimeError, match=r"was used in a forward pass before its update"):
        loss.backward()
    optimizer.abandon_step()
    assert not later(net)


BAD: dict[str, tuple[Callable[[list[Any]], Any], dict[str, Any], str]] = {
    "sharded": (lambda params: torch.optim.SGD(params, lr=0.1), {"sharded": True}, "without sharded, groups"),
    "groups": (lambda params: torch.optim.SGD(params, lr=0.1), {"num_groups": 1}, "without sharded, groups"),
    "adasum": (lambda params: torch.optim.SGD(params, lr=0.1), {"op": hvd.Adasum}, "op=Average or Sum"),
    "LBFGS": (lambda params: torch.optim.LBFGS(params), {}, "LBFGS may need all at once"),
}


@pytest.mark.parametrize("what", BAD)
def test_what_does_not_go_with_it(what: str) -> None:
    """A clear error, at once."""
    make, options, words = BAD[what]
    params = [nn.Parameter(torch.zeros(3))]
    with pytest.raises(ValueError, match=words):
        hvd.DistributedOptimizer(make(params), [("p", params[0])], overlap_forward=True, **options)
