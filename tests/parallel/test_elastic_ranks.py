"""Elastic training over ranks: a step that fails on one rank, and everything that has to come back after it."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch._dynamo  # torch does it with the first optimizer, which would take up to 20 s of that test's minute
from failed_cells import cell
from thorough import diagonal

import workbench.torch as hvd
from workbench.elastic import HostUpdate, restart
from workbench.errors import CollectiveError, MismatchError, RankFailedError
from workbench.job.context import HOLDER
from workbench.torch import elastic

pytestmark = pytest.mark.processes("shutdown() and init() are of the whole process")

STEPS, COMMIT_EVERY = 7, 2
Trouble = Callable[[str, int], Any]


def restart_with(**variables: str | None) -> None:
    """Begin a new job with other settings; None takes a variable back."""
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    restart()


@pytest.fixture(scope="module", autouse=True)
def quick_resets(job: None) -> Iterator[None]:
    """A shorter heartbeat for the tests of this file."""
    restart_with(WORKBENCH_HEARTBEAT_S="0.1")
    yield
    restart_with(WORKBENCH_HEARTBEAT_S=None)


def close(found: Any, wanted: Any) -> None:
    """Equal in float64, up to the order of summation."""
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def no_trouble(place: str, step: int) -> None:
    """Nothing fails."""


class Once:
    """Raises an error on one rank, at one place of some steps, the first time that the rank comes there."""

    def __init__(self, rank: int, place: str, *steps: int, error: type[Exception] = CollectiveError) -> None:
        self.rank, self.place, self.left, self.error, self.raised = rank, place, list(steps), error, 0

    def __call__(self, place: str, step: int) -> None:
        """At ``place`` of ``step``."""
        if (hvd.rank(), place) == (self.rank, self.place) and step in self.left:
            self.left.remove(step)
            self.raised += 1
            raise self.error(f"{place} of step {step} fails on rank {self.rank}")


def batch(step: int) -> torch.Tensor:
    """Another batch on every rank and in every step."""
    random = torch.Generator().manual_seed(100 * step + hvd.rank())
    return torch.randn(4, 3, generator=random, dtype=torch.float64)


def train_with(trouble: Trouble, zero_last: bool = False, passes: int = 1, **groups: int) -> dict[str, Any]:
    """Train for some steps and return the weights and what the state knows at the end."""
    torch.manual_seed(hvd.rank())  # the sync makes the ranks equal, rank 0 being right
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
        named_parameters=model.named_parameters(),
        backward_passes_per_step=passes,
        **groups,
    )

    @elastic.run
    def train(state: Any) -> None:
        while state.step < STEPS:
            if not zero_last:
                optimizer.zero_grad()
            trouble("forward", state.step)
            for _ in range(passes):
                model(batch(state.step)).square().sum().backward()
                trouble("backward", state.step)
            optimizer.synchronize()
            trouble("synchronize", state.step)
            with optimizer.skip_synchronize():
                optimizer.step()
            state.losses.append(state.step)
            trouble("step", state.step)
            if zero_last:
                optimizer.zero_grad()
            state.step += 1
            if state.step % COMMIT_EVERY == 0:
                state.commit()
            trouble("commit", state.step)

    state = elastic.TorchState(model, optimizer, step=0, losses=[])
    train(state)
    assert state.losses == list(range(STEPS)), "a step was lost, or made twice"
    return {"model": model.state_dict(), "momentum": optimizer.state_dict()["state"]}


@pytest.fixture(scope="module")
def undisturbed(quick_resets: None) -> dict[str, Any]:
    """How it ends when nothing fails."""
    return train_with(no_trouble)


@pytest.mark.parametrize(
    ("which", "place"), diagonal(["first", "last"], ["forward", "backward", "synchronize", "step", "commit"])
)
def test_one_failure_on_one_rank_changes_nothing(place: str, which: str, n: int, undisturbed: Any) -> None:
    """Wherever a step fails, on whichever rank: all go back to the commit and end with the undisturbed weights."""
    trouble = Once(0 if which == "first" else n - 1, place, 3)
    close(train_with(trouble), undisturbed)
    assert hvd.allreduce(torch.tensor(trouble.raised), op=hvd.Sum) == 1


def test_failure_after_failure_changes_nothing(n: int, undisturbed: Any) -> None:
    """Three failures on two ranks, the first before any commit, one directly after another: the same weights."""
    one, two = Once(0, "backward", 0, 5), Once(n - 1, "step", 4)
    close(train_with(lambda *when: (one(*when), two(*when))), undisturbed)
    assert (one.left, two.left) == ([0, 5] if hvd.rank() else [], [4] if hvd.rank() != n - 1 else [])


@pytest.mark.parametrize(("options", "zero_last"), diagonal([{"passes": 2}, {"num_groups": 2}], [True, False]))
def test_gradients_of_the_failed_step_are_forgotten(zero_last: bool, options: dict[str, int], n: int) -> None:
    """They are neither added to the next ones nor waited for, wherever zero_grad() stands; also amid accumulation."""
    wanted = train_with(no_trouble, zero_last, **options)
    close(train_with(Once(n - 1, "backward", 3), zero_last, **options), wanted)


@pytest.mark.ranks(2)
def test_a_real_mismatch_is_survived(rank: int, undisturbed: Any) -> None:
    """Ranks that disagree about a tensor once: a MismatchError on all of them, and then the undisturbed end."""
    again = []

    def trouble(place: str, step: int) -> None:
        if (place, step) == ("backward", 5) and not again:
            again.append(True)
            hvd.allreduce(torch.ones(1 + rank), name="different")
            pytest.fail("the ranks' shapes differ")

    close(train_with(trouble), undisturbed)


@pytest.mark.ranks(2)
def test_a_failure_that_comes_again_and_again_is_raised(n: int, rank: int) -> None:
    """At the limit all ranks raise, with the state of the last commit; and the job is still good for something else."""
    state, calls = elastic.TorchState(step=0), []

    @elastic.run(reset_limit=2)
    def train(state: Any) -> None:
        state.step += 1
        if state.step == 1:
            state.commit()
            state.step += 1
        calls.append(state.step)
        hvd.allreduce(torch.ones(1 + rank), name="different")

    with pytest.raises(CollectiveError, match=r"(?s)after 2 resets without a commit.*Mismatched") as caught:
        train(state)
    assert isinstance(caught.value.__cause__, MismatchError)
    assert (state.step, calls) == (1, [2, 2, 2])
    assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == n


@pytest.mark.ranks(2)
def test_a_cell_that_raises_ends_the_others_and_can_be_run_again(n: int, rank: int, undisturbed: Any) -> None:
    """An exception of the caller's own is its rank's; the others get RankFailedError, restored, without a reset.

    Then all train again, in the same job, and end as if nothing had been.
    """
    trouble, engine = Once(n - 1, "backward", 3, error=ZeroDivisionError), HOLDER.get().engine
    with cell(ZeroDivisionError, RankFailedError) as caught:
        train_with(trouble)
    assert [type(error) for error in caught] == [ZeroDivisionError if rank == n - 1 else RankFailedError]
    assert "backward of step 3" in str(caught[0])
    assert HOLDER.get().engine is engine, "nobody has begun a new job"
    close(train_with(trouble), undisturbed)


@pytest.mark.ranks(2)
def test_a_training_that_was_broken_off_goes_on_from_its_state(n: int, rank: int) -> None:
    """The same state, given to run() again after RankFailedError: it goes on from the commit, on all ranks."""
    model = torch.nn.Linear(3, 1).double()
    optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.05), model.named_parameters())
    state = elastic.TorchState(model, optimizer, step=0)
    trouble = Once(0, "backward", 3, error=ZeroDivisionError)
    began = []

    @elastic.run
    def train(state: Any) -> None:
        began.append(state.step)
        while state.step < 5:
            optimizer.zero_grad()
            model(batch(state.step)).square().sum().backward()
            trouble("backward", state.step)
            optimizer.step()
            state.step += 1
            state.commit()

    with cell(ZeroDivisionError, RankFailedError):
        train(state)
    if rank == 0:
        state.restore()  # its own exception left the state as it was
    train(state)
    assert began == [0, 3]
    for value in [
        *model.state_dict().values(),
        *(x for s in optimizer.state_dict()["state"].values() for x in s.values()),
    ]:
        close(hvd.broadcast(value.clone(), 0), value)


@pytest.mark.ranks(2)
@pytest.mark.parametrize("which", ["first", "last"])
def test_a_rank_that_is_late_is_waited_for(which: str, n: int, rank: int, undisturbed: Any) -> None:
    """Where a rank comes after the others' shutdown() has given up waiting for it, they meet again in init()."""
    late_one = 0 if which == "first" else n - 1
    trouble, late = Once(n - 1 - late_one, "forward", 3), [2.0]

    def slow(place: str, step: int) -> None:
        trouble(place, step)
        if (place, step) == ("forward", 3) and rank == late_one and late:
            time.sleep(late.pop())

    restart_with(WORKBENCH_SHUTDOWN_TIMEOUT_S="0.3")
    try:
        close(train_with(slow), undisturbed)
    finally:
        restart_with(WORKBENCH_SHUTDOWN_TIMEOUT_S=None)


# --- other hosts --------------------------------------------------------------------------------------


@pytest.mark.parametrize("update", [HostUpdate.ADDED, HostUpdate.REMOVED])
def test_news_of_hosts_reset_all_ranks_at_one_commit(update: HostUpdate, rank: int, n: int) -> None:
    """Rank 0 hears of hosts: all reset at the same commit, call their callbacks, and sync: newcomers do."""
    state, began, called = elastic.TorchState(step=0, mine=rank), [], []
    state.register_reset_callbacks([lambda: called.append((hvd.size(), state.step))])

    @elastic.run
    def train(state: Any) -> None:
        began.append((state.step, state.mine))
        state.mine = rank
        while state.step < 4:
            state.step += 1
            if state.step == 2 and rank == 0:
                state.on_hosts_updated(time.time(), update)
            state.commit()

    engine = HOLDER.get().engine
    train(state)
    assert HOLDER.get().engine is not engine
    assert called == [(n, 2)]
    assert began == [(0, 0), (2, 0)]


def test_resets_are_logged_on_every_rank(caplog: pytest.LogCaptureFixture, n: int) -> None:
    """Each rank says why it went back: the one that failed its own reason, the others that it has left."""
    with caplog.at_level(logging.WARNING, "workbench"):
        train_with(Once(0, "forward", 3))
    texts = [record.getMessage() for record in caplog.records if record.getMessage().startswith("elastic: reset 1")]
    assert len(texts) == 1
    assert ("fails on rank 0" if hvd.rank() == 0 else "Rank 0 has left the job") in texts[0]
