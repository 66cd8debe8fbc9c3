"""ZeRO 2 and 3 in a notebook: a cell fails amid backward and is run again; a rank dies and is replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
from cells import run

from workbench import cluster

N = 2
pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.slow, pytest.mark.timeout(180)]

DEFINE = """
import copy, os
import torch
import workbench.torch as hvd

STAGES = ["gradients", "parameters"]

def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(7, 6), torch.nn.Tanh(), torch.nn.Linear(6, 5)).double()

def build(stage, weights=None, state=None):
    model = network()
    if stage == "parameters":
        hvd.shard_parameters(model)
    adam = torch.optim.Adam(model.parameters(), lr=0.05)
    optimizer = hvd.DistributedOptimizer(adam, model.named_parameters(), sharded=stage)
    if weights is not None:
        hvd.load_full_state_dict(model, weights)
        optimizer.load_state_dict(copy.deepcopy(state))
    return model, optimizer

def batch(step):
    return torch.randn(2, 3, 7, generator=torch.Generator().manual_seed(step)).double()

def step(model, optimizer, number):  # no zero_grad(): step() uses gradients up
    model(batch(number)[hvd.rank()]).square().mean().backward()
    optimizer.step()

def error(models):
    twin = network()
    adam = torch.optim.Adam(twin.parameters(), lr=0.05)
    for number in range(4):
        adam.zero_grad()
        twin(batch(number).flatten(0, 1)).square().mean().backward()
        adam.step()
    expected = twin.state_dict()
    return max((value - expected[key]).abs().max().item()
               for model, _ in models.values() for key, value in hvd.full_state_dict(model).items())

hvd.init()
"""
BEGIN = """
models = {stage: build(stage) for stage in STAGES}
for model, optimizer in models.values():
    step(model, optimizer, 0)
"""
FAILS = """
model, optimizer = models[STAGE]
def stop(_):
    raise ArithmeticError("on purpose")
handle = model[0].weight.register_hook(stop) if hvd.rank() == 1 else None
try:
    step(model, optimizer, 1)
finally:
    if handle:
        handle.remove()
"""
GO_ON = "step(*models[STAGE], 1)"
SAVE = """
saved = {stage: (hvd.full_state_dict(model), optimizer.state_dict()) for stage, (model, optimizer) in models.items()}
if hvd.rank() == 0:
    torch.save(saved, FILE)
hvd.barrier()
"""
DIES = """
model, optimizer = models["parameters"]
if hvd.rank() == 1:
    model[0].register_forward_hook(lambda *_: os.kill(os.getpid(), 9))
step(model, optimizer, 2)
"""
RESUME = """
saved = torch.load(FILE)
models = {stage: build(stage, *saved[stage]) for stage in STAGES}
for number in (2, 3):
    for model, optimizer in models.values():
        step(model, optimizer, number)
found = error(models)
"""


@pytest.mark.filterwarnings("ignore")  # of ipyparallel, about an engine that has died
def test_cells_that_fail_and_a_rank_that_dies(tmp_path: Path) -> None:
    """A failed cell is run again as it is; after rescue() a checkpoint goes on, to where no failure would have led."""
    with cluster.up(N, quiet=True) as up:
        assert run(up, DEFINE) == {}
        assert run(up, BEGIN) == {}
        for stage in ("gradients", "parameters"):
            failed = run(up, FAILS.replace("STAGE", repr(stage)))
            assert failed[1] == ("ArithmeticError", "on purpose")
            assert "ArithmeticError: on purpose" in failed[0][1]
            assert run(up, GO_ON.replace("STAGE", repr(stage))) == {}
        file = repr(str(tmp_path / "saved.pt"))
        assert run(up, SAVE.replace("FILE", file)) == {}
        assert set(run(up, DIES)) == {0, 1}
        up.rescue()
        assert run(up, DEFINE) == {}
        assert run(up, RESUME.replace("FILE", file)) == {}
        assert max(up.client[:].pull("found", block=True)) < 1e-12
