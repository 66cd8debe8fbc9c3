"""A cell fails amid a training step; the next cell trains, and every gradient is the ranks' average.

Two real MPI engines behind ipyparallel, as a notebook has them.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import pytest
from cells import START, collect, send
from installed import needs

from workbench import cluster

needs("torch")
pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(180)]

SET_UP = """
import torch, workbench.torch as ht
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
inner = torch.optim.SGD(model.parameters(), lr=0.1)
opt = ht.DistributedOptimizer(inner, model.named_parameters(), backward_passes_per_step={passes})
ht.broadcast_parameters(model.state_dict(), 0)
data = torch.randn(8, 8) + rank
def backward():
    for _ in range({passes}):
        model(data).square().mean().backward()
def step():
    opt.zero_grad()
    backward()
    opt.step()
def check():
    '''The parameters whose gradient is not the average of what each rank computes alone.'''
    alone = [{passes} * each for each in torch.autograd.grad(model(data).square().mean(), list(model.parameters()))]
    opt.zero_grad()
    backward()
    opt.synchronize()
    means = [ht.allreduce(each, name=f"mean{{i}}") for i, each in enumerate(alone)]
    pairs = zip(model.named_parameters(), means, strict=True)
    bad = [name for (name, p), mean in pairs if not torch.allclose(p.grad, mean, atol=1e-6)]
    with opt.skip_synchronize():
        opt.step()
    return bad
for _ in range({warm}):
    step()
"""
MISTAKES = {
    "before backward": "opt.zero_grad()\nif rank == 1:\n    1 / 0\nbackward()\nopt.step()",
    "between backward and step": "opt.zero_grad()\nbackward()\nif rank == 1:\n    1 / 0\nopt.step()",
    "no step on the other": "opt.zero_grad()\nif rank == 1:\n    1 / 0\nbackward()",
    "between two passes": "opt.zero_grad()\nmodel(data).square().mean().backward()\nif rank == 1:\n    1 / 0\nstep()",
    "a step more": "for _ in range(2 + rank):\n    step()",
    "later": "for i in range(3):\n    opt.zero_grad()\n    backward()\n    1 / (1 - rank * i)\n    opt.step()",
}


@pytest.fixture(scope="module")
def engines() -> Iterator[cluster.Cluster]:
    """Two engines that have called init()."""
    with cluster.up(2, quiet=True) as up:
        assert run(up, START) == {}
        up.client[:].execute("import workbench.torch", block=True)  # takes its time on a busy machine
        yield up


def run(up: cluster.Cluster, code: str, interrupt_after_s: float | None = None) -> dict[int, tuple[str, str]]:
    """Run a cell on both engines; its exceptions by rank."""
    results = send(up, code)
    if interrupt_after_s is not None:
        time.sleep(interrupt_after_s)
        up.client.send_signal(signal.SIGINT, block=True)
    return collect(results)


def trains(up: cluster.Cluster) -> None:
    """The next cells train, with the right gradients; before, it is said once if a rank has made more of a step."""
    assert run(up, "weights = [p.detach().numpy().tobytes() for p in model.parameters()]") == {}
    first, second = up.client[:].pull("weights", block=True)
    errors = run(up, "bad = check()")
    if first != second or errors:
        assert set(errors) == {0, 1}, "the weights differ"
        for kind, text in errors.values():
            assert kind == "MismatchError"
            assert "Mismatched steps: In a cell that failed" in text
            assert "fingerprint(model)" in text
            assert first != second or "halfway" in text
        assert run(up, "ht.broadcast_parameters(model.state_dict(), 0)") == {}
    for _ in range(3):
        assert run(up, "bad = check()") == {}
        assert up.client[:].pull("bad", block=True) == [[], []]


@pytest.mark.parametrize("warm", [0, 3], ids=["first step", "with buckets"])
@pytest.mark.parametrize("passes", [1, 2])
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_next_cell_trains(engines: cluster.Cluster, mistake: str, passes: int, warm: int) -> None:
    """Wherever in a step one rank raised, no gradient of the failed cell is in a later sum, and none is refused."""
    assert run(engines, SET_UP.format(passes=passes, warm=warm)) == {}
    assert run(engines, MISTAKES[mistake])
    trains(engines)


def test_the_next_cell_trains_after_an_interrupt(engines: cluster.Cluster) -> None:
    """The stop button, at any moment of a training loop."""
    assert run(engines, SET_UP.format(passes=1, warm=0)) == {}
    for k in range(6):
        assert run(engines, "while True:\n    step()", interrupt_after_s=0.3 + 0.037 * k)
        trains(engines)


def test_it_is_said_that_a_rank_has_made_a_step_more(engines: cluster.Cluster) -> None:
    """Until the weights are broadcast, loaded, or the user runs the cell again; a new optimizer knows of it, too."""
    assert run(engines, SET_UP.format(passes=1, warm=3)) == {}
    one_more = "opt.zero_grad()\nbackward()\nopt.synchronize()\nif rank == 1:\n    raise KeyboardInterrupt\n"
    one_more += "with opt.skip_synchronize():\n    opt.step()"
    assert set(run(engines, one_more)) == {1}
    assert run(engines, "opt = ht.DistributedOptimizer(inner, model.named_parameters())") == {}
    errors = run(engines, "step()")
    for rank in range(2):
        assert errors[rank][0] == "MismatchError"
        assert "rank 0: 4 steps\n  rank 1: 3 steps" in errors[rank][1]
    assert run(engines, "step()") == {}
    assert set(run(engines, one_more)) == {1}
    assert run(engines, "ht.broadcast_parameters(model.state_dict(), 0)\nstep()") == {}
