"""``DistributedOptimizer(..., plan=)``: what ranks choose together, and what they refuse together."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import workbench
import workbench.torch as hvd
from workbench.errors import CollectiveError, MismatchError, WorkbenchError
from workbench.simulate.measured.fit import Constant, Fit
from workbench.simulate.measured.links import Links
from workbench.simulate.measured.plan import Plan, SendMode
from workbench.simulate.measured.prediction import Measured
from workbench.simulate.steps import Span
from workbench.training.planned import keep

VALUES = 4 * 3 + 3
SLOW = 1e-3  # seconds for a byte: next to them computing takes no time


def found(per_byte_s: float, wire: str = "float32", ranks: int = 2, values: int = VALUES) -> Measured:
    """By a job on one host, with a model of two layers."""
    way = Fit(Constant(0, 0, 0), Constant(per_byte_s, per_byte_s, per_byte_s), doubt=0)
    layers = (Span("front", 0.01, 0.02, values - 3), Span("back", 0.01, 0.02, 3))
    return Measured(Links(1, ranks, way, None, announce_s=0.0, wire=wire), layers)


def make(plan: Any, kind: type[torch.optim.Optimizer] = torch.optim.SGD, **options: Any) -> Any:
    """A model of 15 numbers and its optimizer."""
    model = alike(torch.nn.Linear(4, 3))
    return model, hvd.DistributedOptimizer(
        kind(model.parameters(), lr=0.1), model.named_parameters(), plan=plan, **options
    )


def alike(model: torch.nn.Module) -> torch.nn.Module:
    """The same weights each time; ranks that are threads have one random generator."""
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.linspace(-0.5, 0.5, param.numel()).reshape(param.shape))
    return model


def on_ranks(work: Callable[[], Any], n: int = 2) -> list[Any]:
    """What each says, or raises."""

    def on_a_rank() -> Any:
        try:
            return work()
        except (WorkbenchError, ValueError) as error:
            return error

    return workbench.run_threads(n, on_a_rank)


def test_all_ranks_do_what_rank_0_chooses(caplog: pytest.LogCaptureFixture) -> None:
    """Though they have measured differently; it is logged once, and the training goes on with it."""
    caplog.set_level(logging.INFO, "workbench")

    def work() -> tuple[str, str, list[float]]:
        keep(found(SLOW if hvd.rank() == 0 else 1e-12))
        keep(found(SLOW if hvd.rank() == 0 else 1e-12, "float16"))
        model, optimizer = make("auto, fp16")
        for _ in range(3):
            optimizer.zero_grad()
            model(torch.ones(1, 4) * (1 + hvd.rank())).sum().backward()
            optimizer.step()
        return optimizer.plan.way.compression, optimizer.plan.why, model.weight.detach().flatten().tolist()

    first, second = on_ranks(work)
    assert first == second
    assert first[0] == "fp16"
    assert sum("compression fp16" in record.getMessage() for record in caplog.records) == 1


def test_auto_alone_rounds_nothing() -> None:
    """Also where float16 was measured and would be quicker."""

    def work() -> str:
        keep(found(SLOW))
        keep(found(SLOW, "float16"))
        return str(make("auto")[1].plan.way.compression)

    assert on_ranks(work) == ["none", "none"]


def test_a_plan_is_carried_out() -> None:
    """overlap_forward defers updates, and the weights are the plain run's."""

    def weights(plan: Plan | None) -> tuple[list[float], int]:
        model = alike(torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(4)]))
        optimizer: Any = hvd.DistributedOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters(), plan=plan
        )
        for step in range(4):
            optimizer.zero_grad()
            model(torch.ones(2, 8) * (step + hvd.rank())).square().mean().backward()
            optimizer.step()
        later = len(optimizer._distributed.deferral.updates)
        return torch.cat([param.detach().flatten() for param in model.parameters()]).tolist(), later

    def work() -> list[tuple[list[float], int]]:
        return [weights(plan) for plan in (None, Plan(SendMode(overlap_forward=True), "asked"))]

    for plain, deferred in on_ranks(work):
        assert plain[0] == deferred[0]
        assert (plain[1], deferred[1]) == (0, 1)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"compression": hvd.Compression.bf16}, "compression"),
        ({"overlap_forward": True}, "overlap_forward=True"),
        ({"sharded": True}, "sharded"),
        ({"num_groups": 1}, "groups"),
        ({"op": hvd.Adasum}, "op=adasum"),
    ],
)
def test_an_argument_that_is_given_wins(options: dict[str, Any], says: str) -> None:
    """And the plan says that it does."""

    def work() -> str:
        keep(found(SLOW))
        optimizer = make("auto", **options)[1]
        return str(optimizer.plan.why)

    for why in on_ranks(work):
        assert why == f"As the arguments say: {says} leaves nothing to choose."


def test_overlap_forward_is_not_chosen_where_it_was_refused_or_cannot_be() -> None:
    """The plan says why."""

    def work() -> list[str]:
        keep(found(SLOW))
        return [make("auto", overlap_forward=False)[1].plan.why, make("auto", kind=torch.optim.LBFGS)[1].plan.why]

    for refused, cannot in on_ranks(work):
        assert "overlap_forward=False was given" in refused
        assert "LBFGS may need all at once" in cannot


def test_alone_there_is_nothing_to_choose() -> None:
    """And nothing has to be measured."""
    ((plan, way),) = on_ranks(lambda: (repr(make("auto")[1].plan), make("auto")[1].plan.way), n=1)
    assert plan == "As it is: there is one rank, so nothing is sent."
    assert way == SendMode()


def test_a_file_and_a_measurement(tmp_path: Path) -> None:
    """Rank 0 reads the file; the others need none."""

    def work() -> tuple[str, str, str]:
        path, mine = tmp_path / f"measured {hvd.rank()}.json", keep(found(SLOW))
        mine.save(path)
        hvd.barrier()
        read = tmp_path / "measured 0.json"
        return make(str(read))[1].plan.way.name, make(read)[1].plan.way.name, make(mine)[1].plan.way.name

    first, second = on_ranks(work)
    assert first == second
    assert len(set(first)) == 1


def kept(one: Measured | None, plan: Any = "auto", **options: Any) -> list[Any]:
    """Of optimizers that were made after this measurement."""

    def work() -> Any:
        if one:
            keep(one)
        return make(plan, **options)[1].plan

    return on_ranks(work)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ((None,), r"nothing was measured in this job with float32 .*workbench.measure\(model, \(inputs, targets\)\)"),
        ((found(SLOW), "auto, fp16"), r'with float16 on the wire.*wire="float16"\)'),
        ((found(SLOW, ranks=4),), "measured with 4 ranks on 1 hosts, and the job has 2 on 1. Measure again"),
        ((replace(found(SLOW), links=Links(2, 1, None, found(SLOW).links.inside, 0.0)),), "2 ranks on 2 hosts"),
        ((found(SLOW, values=99),), "a model of 99 numbers, and this optimizer has 15. Measure again"),
        ((replace(found(SLOW), layers=()),), "of the links alone, without a model. Measure with the model"),
        ((found(SLOW), found(SLOW)), "on machines that it does not name, and the job is on"),
        ((found(SLOW), replace(found(SLOW), machines=("other",) * 2)), "measured on other, and the job is on"),
        ((found(SLOW), "no such file"), "plan='no such file': rank 0 cannot read this file: No such file"),
        ((found(SLOW), __file__), r"test_planned.py is no measurement, or is cut off .*Measure again"),
        ((found(SLOW), "automatic"), 'Give "auto", "auto, fp16"'),
        ((found(SLOW), True), 'plan=True: Give "auto", "auto, fp16"'),
    ],
)
def test_what_cannot_be_planned_is_said_on_all_ranks(given: tuple[Any, ...], says: str) -> None:
    """With what to do; the job goes on."""
    for error in kept(*given):
        assert isinstance(error, (WorkbenchError, ValueError))
        with pytest.raises(type(error), match=f"(?s){says}"):
            raise error


def test_a_plan_that_the_optimizer_cannot_carry_out() -> None:
    """Is refused with the optimizer's name."""
    for error in kept(None, Plan(SendMode(overlap_forward=True), "asked"), kind=torch.optim.LBFGS):
        assert "LBFGS may need all at once" in str(error)


def test_other_stages_of_sharding_refuse_it() -> None:
    """By name."""
    for error in kept(None, sharded="gradients"):
        assert "sharded='gradients' does not go with plan" in str(error)


def test_parameters_elsewhere_than_in_the_memory_of_the_cpu() -> None:
    """Are refused: what their links do is not measured."""
    params = [torch.nn.Parameter(torch.empty(3, device="meta"))]

    def work() -> Any:
        return hvd.DistributedOptimizer(torch.optim.SGD(params, lr=0.1), plan="auto")

    for error in on_ranks(work):
        assert "plan= is for parameters in the CPU's memory" in str(error)


@pytest.mark.parametrize(
    ("others", "says"),
    [
        ({"plan": "auto, fp16"}, "rank 1: plan='auto, fp16'"),
        ({"plan": Plan(SendMode(), "asked")}, "rank 1: plan=a plan for as it is"),
        ({"overlap_forward": True}, "rank 1: plan='auto', overlap_forward=True"),
    ],
)
def test_ranks_that_differ(others: dict[str, Any], says: str) -> None:
    """All say what each rank has given."""

    def work() -> Any:
        keep(found(SLOW))
        make(**({"plan": "auto"} | (others if hvd.rank() == 1 else {})))

    for error in on_ranks(work):
        assert isinstance(error, MismatchError)
        assert "rank 0: plan='auto', 15 numbers" in str(error)
        assert says in str(error)


def test_a_rank_without_a_plan() -> None:
    """The others do not wait for ever: they hear that it does something else."""

    def work() -> Any:
        keep(found(SLOW))
        model, optimizer = make("auto" if hvd.rank() == 0 else None)
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()

    for error in on_ranks(work):
        assert isinstance(error, CollectiveError)
        assert "DistributedOptimizer.plan" in str(error)
