"""What one rank does alone is told on every rank: another learning rate, a skipped step, other weights."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from thorough import diagonal, quick
from torch.optim.lr_scheduler import OneCycleLR, ReduceLROnPlateau

import workbench.torch as hvd
from workbench.errors import MismatchError
from workbench.job.context import HOLDER

pytestmark = pytest.mark.ranks(2)

WAYS: dict[str, dict[str, Any]] = {
    "buckets": {},
    "in two passes": {"backward_passes_per_step": 2},
    "by name": {"compression": hvd.Compression.fp16},
    "powersgd": {"compression": hvd.Compression.powersgd(1)},
    "topk": {"compression": hvd.Compression.topk(0.5)},
    "groups": {"num_groups": 2},
    "overlapping forward": {"overlap_forward": True},
    "sharded": {"sharded": True},
    "sharded gradients": {"sharded": "gradients"},
}


class Training:
    """A model, its optimizer, and what a step does."""

    looks = leaves_out = False  # at the gradients before each step; the next step

    def __init__(
        self,
        groups: Callable[[torch.nn.Module], Any] | None = None,
        lr: Any = 0.1,
        momentum: float = 0.0,
        **options: Any,
    ) -> None:
        torch.manual_seed(0)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 1))
        params = groups(self.model) if groups else self.model.parameters()
        plain = torch.optim.SGD(params, lr=lr, momentum=momentum)
        self.optimizer = hvd.DistributedOptimizer(plain, self.model.named_parameters(), **options)
        self.passes = options.get("backward_passes_per_step", 1)

    def steps(self, number: int, after: Callable[[], Any] = lambda: None) -> None:
        for _ in range(number):
            self.optimizer.zero_grad()
            for _ in range(self.passes):
                (self.model(torch.ones(3, 4)).mean() * 1e-3).backward()
            if self.looks:
                self.optimizer.synchronize()
                with self.optimizer.skip_synchronize():
                    self.optimizer.step() if not self.leaves_out else None
                self.leaves_out = False
            else:
                self.optimizer.step()
            after()

    def set(self, name: str, value: Any) -> None:
        for group in self.optimizer.param_groups:
            group[name] = value

    def set_rate(self, rate: float) -> None:
        self.set("lr", rate)

    def make_equal(self) -> None:
        hvd.broadcast_parameters(self.model.state_dict(), 0)
        hvd.broadcast_optimizer_state(self.optimizer, 0)

    def end(self) -> None:
        """Clear up after an error."""
        self.optimizer.abandon_step()
        self.optimizer.zero_grad()


@pytest.mark.parametrize("way", quick(WAYS, "sharded"))
def test_a_plateau_of_each_rank_alone_is_told(way: str, rank: int, n: int) -> None:
    """Within 64 steps every rank has the others' rates and what to do. Made equal, they train on, and are told anew."""
    training = Training(**copy.deepcopy(WAYS[way]))
    plateau = ReduceLROnPlateau(training.optimizer, patience=0)
    training.steps(5)
    plateau.step(1.0)
    plateau.step(1.0 if rank else 0.5)  # the rates of all but rank 0 fall
    for _ in range(2):
        with pytest.raises(MismatchError) as told:
            training.steps(65)
        training.end()
        found = re.findall(r"ranks? ([\d, ]+): .*?(0\.\d+)$", str(told.value), re.M)
        rates = [(each, rate) for ranks, rate in found for each in ranks.split(", ")]
        assert rates == [(str(each), "0.01" if each else "0.1") for each in range(n)]
        assert "hvd.allreduce(loss) before scheduler.step(loss)" in str(told.value)
    training.set_rate(0.01)
    training.make_equal()
    training.steps(65)


def _numbers(name: str, value: Any) -> Callable[[Training], None]:
    return lambda training: training.set(name, value)


def _skipped(training: Training) -> None:
    """A step that this rank leaves out, for it takes its own loss for too large."""
    training.leaves_out = True


def _loaded(training: Training) -> None:
    state = training.optimizer.state_dict()
    buffers = [{"momentum_buffer": torch.full_like(param, 9.0)} for param in training.model.parameters()]
    state["state"] = dict(enumerate(buffers))
    training.optimizer.load_state_dict(state)


@torch.no_grad()
def _bias(training: Training) -> None:
    """Its sum stays what it was."""
    training.model[0].bias[:2] += torch.tensor([0.05, -0.05])


ALONE: dict[str, tuple[Callable[[Training], None], str]] = {
    "a skipped step": (_skipped, r"Mismatched steps made: .*made \d+ steps, but another rank made \d+ steps"),
    "weight decay": (_numbers("weight_decay", 0.1), r"Mismatched hyperparameters: .*weight_decay=0.1"),
    "momentum": (_numbers("momentum", 0.5), r"Mismatched hyperparameters: .*momentum=0.5"),
    "a loaded state": (_loaded, r"Mismatched weights: .*a rank has loaded a checkpoint"),
    "weights": (_bias, r"Mismatched weights: .*changed a weight"),
}


@pytest.mark.parametrize(
    ("what", "way"), diagonal(ALONE, ["buckets", "sharded", "topk", "in two passes", "overlapping forward"])
)
def test_what_a_rank_does_alone_is_told(what: str, way: str, rank: int, job_with: Callable[..., None]) -> None:
    """Before the next comparison is over, on every rank; until then all is right, and made equal they train on."""
    job_with(COMPARE_STEPS=8)
    if way == "sharded" and what in ("a skipped step", "a loaded state", "weights"):
        pytest.skip("the first two are collectives; of weights the next test tells")
    training = Training(momentum=0.9, **copy.deepcopy(WAYS[way]))
    training.looks = what == "a skipped step"
    training.steps(3)
    act, said = ALONE[what]
    if rank:
        act(training)
    with pytest.raises(MismatchError) as told:
        training.steps(9)
    assert re.search(said, str(told.value).replace("\n", " ")), told.value
    training.end()
    training.make_equal()
    training.steps(10)


@pytest.mark.parametrize("way", ["sharded", "sharded gradients"])
def test_weights_that_a_rank_changes_alone_do_not_spread(way: str, rank: int) -> None:
    """The owner of a part would give its own to all ranks. What all change alike, or one puts back, is no matter."""

    def change(number: float) -> None:
        with torch.no_grad():
            training.model[0].weight.add_(number)
            training.model[1].weight.data.add_(number)  # which torch does not count

    training = Training(momentum=0.9, **WAYS[way])
    training.steps(3)
    change(0.25)
    training.steps(2)
    if rank:
        change(0.25)
        change(-0.25)
    training.steps(2)
    before = copy.deepcopy(training.model.state_dict())
    for alone in (lambda: change(0.25), lambda: training.model[1].weight.data.mul_(2)):
        if rank:
            alone()
        with pytest.raises(MismatchError, match=r"rank \d: .*, then its weights were changed"):
            training.steps(1)
        training.end()
        training.make_equal()
    training.steps(1)
    assert training.model[0].weight.allclose(before["0.weight"], atol=0.01)


def test_it_is_a_setting(rank: int, job_with: Callable[..., None]) -> None:
    """With WORKBENCH_COMPARE_STEPS=0 nothing is compared, with 3 after three steps."""
    for every in (0, 3):
        job_with(COMPARE_STEPS=every)
        training = Training(lr=0.1 * (1 + rank))
        training.steps(3 if every else 70)
        if every:
            with pytest.raises(MismatchError, match="learning rates"):
                training.steps(1)
            training.end()


def test_rates_that_change_in_each_step_are_as_good(rank: int) -> None:
    """A schedule by steps is no drift; one that a rank follows a step late is."""
    training = Training()
    training.steps(70, OneCycleLR(training.optimizer, max_lr=0.1, total_steps=200).step)
    late = OneCycleLR(training.optimizer, max_lr=0.1, total_steps=200 + rank)
    with pytest.raises(MismatchError, match="learning rates"):
        training.steps(65, late.step)
    training.end()


def _divided(model: torch.nn.Module) -> Any:
    params = list(model.parameters())
    return [{"params": params}] if hvd.rank() else [{"params": [param]} for param in params]


def test_groups_are_the_ranks_own() -> None:
    """Where each parameter has the same rate on all ranks, grouping does not matter, nor a number of the user's own."""
    training = Training(groups=_divided)
    training.set("rank", hvd.rank())
    training.steps(70)


def test_adasum_combines_changes_of_any_rate(rank: int) -> None:
    """The weights stay equal, whatever the rates that the changes were made with."""
    training = Training(op=hvd.Adasum)
    training.set_rate(0.1 / (1 + rank))
    training.steps(70)


def test_rounding_is_not_told(rank: int) -> None:
    """Machines may round a schedule unlike; a rate may be a tensor on one of them."""
    training = Training()
    rate = 0.1 * (1 + 1e-9 * rank)
    training.set_rate(torch.tensor(rate, dtype=torch.float64) if rank else rate)  # type: ignore[arg-type]
    training.steps(70)


def test_rounding_is_not_told_between_two_numbers_of_few_digits(rank: int) -> None:
    """ZeRO 2 compares a digest of rounded rates first: these differ there."""
    training = Training(sharded="gradients")
    training.set_rate(0.123455 * (1 + 1e-9 * (-1) ** rank))
    training.steps(3)


def test_after_a_broadcast_the_old_rates_do_not_matter(rank: int) -> None:
    """The step before it was made with other rates, of which one of the next would tell."""
    training = Training()
    training.steps(3)
    training.set_rate(0.1 / (1 + rank))
    training.steps(1)  # the fourth
    training.make_equal()
    training.steps(70)


def test_ranks_with_unlike_many_steps(rank: int) -> None:
    """join() ends an epoch: rates that fall by epochs are alike, and a drift is told after it, too."""
    training = Training()
    for epoch in range(3):
        training.set_rate(0.1 / (1 + epoch))
        training.steps(6 + (rank == 0))
        hvd.join()
    training.set_rate(0.1 * (1 + rank))
    with pytest.raises(MismatchError, match="learning rates"):
        training.steps(65)
    training.end()


def test_two_optimizers(rank: int) -> None:
    """Each has its own rates; the one that differs is told by a name of its parameters."""
    one, other = Training(), Training(lr=0.5)
    one.steps(3)
    other.steps(3)
    other.set_rate(0.1 * (1 + rank))
    one.steps(64)
    with pytest.raises(MismatchError, match="learning rates"):
        other.steps(65)
    other.end()
    one.steps(2)


def test_a_rank_that_counts_anew_alone(rank: int) -> None:
    """It tells its rates after other steps than the rest: nothing is compared, and nobody waits."""
    training = Training()
    training.steps(5)
    if rank:
        HOLDER.get().names.rounds.clear()
    training.steps(70, OneCycleLR(training.optimizer, max_lr=0.1, total_steps=200).step)
