"""Autotune amid training: buckets of every size, the eager limit and the rest change, and the weights stay right."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from bag import MAKES, Pair
from broken_off import broken_off, fail
from thorough import diagonal

import workbench as wb
import workbench.torch as hvd
from workbench.core.messages import Kind
from workbench.errors import MismatchError
from workbench.job import api
from workbench.job.context import HOLDER
from workbench.runtime.steady import bayes, tuner
from workbench.training.gradient_list import GradientList

# Looked for and not imported: that would take each rank a second.
pytestmark = [pytest.mark.ranks(2), pytest.mark.skipif(find_spec("sklearn") is None, reason="needs scikit-learn")]

Begin = Callable[..., None]
LEAST, MOST = 100, 3000


@pytest.fixture
def restless(monkeypatch: pytest.MonkeyPatch, job_with: Begin) -> Begin:
    """Begins a job that tries another choice after almost every step, buckets of 100 to 3,000 bytes among them."""
    chance = random.Random(7)
    monkeypatch.setitem(tuner._RANGES, "bucket_bytes", (LEAST, MOST))
    monkeypatch.setattr(bayes, "suggest", lambda points, scores, noise: [chance.random() for _ in points[0]])
    sampling = {"WARMUP_SAMPLES": 0, "STEPS_PER_SAMPLE": 1, "BAYES_OPT_MAX_SAMPLES": 10_000}

    def begin(**settings: object) -> None:
        job_with(AUTOTUNE=1, **{f"AUTOTUNE_{name}": value for name, value in sampling.items()}, **settings)

    return begin


def planned(optimizer: Any) -> int:
    """How large this rank's buckets may be now; 0: there are none."""
    grads = optimizer._distributed.grads
    return int(grads.planned_bytes) if grads.buckets else 0


def alike(sizes: Sequence[int], least: int = 5) -> None:
    """All ranks have had buckets of the same sizes in the same steps, and of several."""
    everybody = api.allgather(np.array([sizes], np.int64))
    assert (everybody == everybody[0]).all(), everybody
    assert len(set(sizes)) >= least, sizes


def trained(n: int, make: str, steps: int) -> tuple[list[torch.Tensor], list[int]]:
    """Weights that are the serial run's after each step, and the sizes of buckets."""
    pair, sizes = Pair(n, MAKES[make]), []
    for step in range(steps):
        pair.step(step, ("optimizer, to None", "optimizer, to zero", "model")[step // 2 % 3])
        sizes.append(planned(pair.optimizer))
    pair.check_state()
    return [param.detach().clone() for param in pair.bag.parameters()], sizes


@pytest.mark.parametrize(("eager", "make"), diagonal([4096, 0], MAKES, most=1))
def test_weights_while_everything_changes(eager: int, make: str, n: int, restless: Begin, job_with: Begin) -> None:
    """They are those of the serial run, and on two ranks those of a job that is not tuned, to the last bit."""
    restless(**({} if eager else {"EAGER_BYTES": 0}))
    tuned, sizes = trained(n, make, 12)
    alike(sizes)
    job_with(AUTOTUNE=0)
    plain, sizes = trained(n, make, 12)
    assert len(set(sizes)) == 1
    for mine, its in zip(tuned, plain, strict=True):
        assert torch.equal(mine, its) if n == 2 else torch.allclose(mine, its, rtol=0, atol=1e-12)


class Small:
    """A model of six layers whose loss is its own on every rank."""

    def __init__(self) -> None:
        self.model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(6)])
        inner = torch.optim.SGD(self.model.parameters(), lr=0.001)
        self.optimizer = hvd.DistributedOptimizer(inner, self.model.named_parameters())
        self.begin()

    def begin(self) -> None:
        hvd.broadcast_parameters(self.model.state_dict(), root_rank=0)

    def backward(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.full((2, 8), 1.0 + hvd.rank())).sum().backward()

    def steps(self, count: int) -> list[int]:
        """The sizes of buckets after each; at the end all ranks have the same weights."""
        sizes = []
        for _ in range(count):
            self.backward()
            self.optimizer.step()
            sizes.append(planned(self.optimizer))
        mine = torch.nn.utils.parameters_to_vector(self.model.parameters()).detach()
        everybody = hvd.allgather(mine[None], name="weights")
        assert torch.equal(everybody, everybody[0].expand_as(everybody))
        return sizes


@pytest.mark.processes("shutdown() and init() are of the whole process")
def test_errors_and_another_job_amid_it(n: int, rank: int, restless: Begin) -> None:
    """A collective that fails, a step that one rank breaks off, and a new job: the ranks go on alike after each."""
    restless()
    small, sizes = Small(), []
    breaks = [SimpleNamespace(remove=lambda: None)] if rank == n - 1 else []

    def cell(small: Small) -> None:
        """The others make the step that the last rank breaks off, after its gradients have set out."""
        small.backward()
        if rank == n - 1:
            fail()
        small.optimizer.step()
        wb.allreduce(np.ones(2), "never on the last rank")

    for _ in range(2):
        sizes += small.steps(6)
        with pytest.raises(MismatchError):
            wb.allreduce(np.ones(2 + rank), "of unlike shapes")
        sizes += small.steps(6)
        broken_off(partial(cell, small), breaks)
        small.begin()
    restless()
    small.begin()
    alike([*sizes, *small.steps(12)])


def test_ranks_that_join_and_come_back(n: int, rank: int, restless: Begin) -> None:
    """Each rank has steps of its own number before join(); who comes back has the buckets of the rest."""
    restless()
    small, sizes = Small(), []
    for epoch in range(12):
        small.begin()
        for _ in range(3 + (rank + epoch) % n):
            small.backward()
            small.optimizer.step()
        hvd.join()
        sizes.append(planned(small.optimizer))
    alike(sizes, least=3)


def test_a_step_that_some_ranks_abandon(n: int, rank: int, restless: Begin) -> None:
    """One rank leaves out its update, another one does the next time: their buckets are the same ones in every step."""
    restless()
    small, sizes = Small(), []
    for step in range(60):
        small.backward()
        if step > 2 and step % n == rank:
            small.optimizer.abandon_step()
        else:
            small.optimizer.step()
        sizes.append(planned(small.optimizer))
    alike(sizes)


def test_a_step_abandoned_after_the_job(n: int, restless: Begin) -> None:
    """It was complete when the job ended: nothing is planned then, and the next job begins without buckets."""
    restless()
    small = Small()
    small.steps(6)
    small.backward()
    hvd.shutdown()
    small.optimizer._distributed.source.abandon()
    restless()
    small.begin()
    alike(small.steps(12), least=2)


@pytest.mark.parametrize(
    "options",
    [{"sharded": True}, {"overlap_forward": True}],
    ids=["sharded", "overlap_forward"],
)
def test_who_keeps_its_buckets(options: dict[str, Any], n: int, restless: Begin) -> None:
    """With ZeRO 1 parameters lie in them, with overlap_forward they are on their way."""
    restless()
    pair = Pair(n, **options)
    buckets = []
    for step in range(20):
        pair.step(step, "optimizer, to None")
        buckets.append(set(map(id, pair.optimizer._distributed.grads.buckets.values())))
    assert buckets[-1] == buckets[6], "after step 6 no parameter is new"
    tuning = HOLDER.get().tuner
    assert tuning is None or len({trial.choice for trial in tuning.trials}) > 3


def test_all_gradients_at_once(n: int, rank: int, restless: Begin) -> None:
    """Lists of gradients, as TensorFlow, Keras and JAX have them: exact sums, the same buckets on all ranks."""
    restless()
    names, sizes = [f"w{i}" for i in range(20)], []
    reduce = GradientList(names, op=hvd.Sum, passes=2)
    for step in range(50):
        for _ in range(2):
            reduced = reduce([np.full(10 * i + 1, rank + step, np.float32) for i in range(20)])
        assert reduced is not None
        for i, each in enumerate(reduced):
            np.testing.assert_array_equal(each, np.full(10 * i + 1, 2 * (n * step + n * (n - 1) // 2)))
        sizes.append(len(reduce._plan[1]._buckets))
    alike(sizes)


def test_a_rank_that_looks_late(n: int, rank: int, restless: Begin, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its engine uses a newer choice when it looks at the results of a step: it plans by the one that all have had."""
    restless()
    reduce, sizes = GradientList([f"w{i}" for i in range(20)], op=hvd.Sum), []
    learn = reduce._limit.update_from

    def tuned_anew() -> None:
        for _ in range(4):
            wb.allreduce(np.ones(3), "a step of its own")

    def late(handles: Any) -> None:
        tuned_anew()
        learn(handles)

    if rank == n - 1:
        monkeypatch.setattr(reduce._limit, "update_from", late)
    for _ in range(30):
        reduce([np.ones(40, np.float32) for _ in range(20)])
        sizes.append(len(reduce._plan[1]._buckets))
        if rank != n - 1:
            tuned_anew()
    alike(sizes)


@pytest.mark.processes("shutdown() and init() are of the whole process")
def test_a_list_that_is_broken_off(n: int, rank: int, restless: Begin) -> None:
    """On one rank a cell ends when its gradients are there, and the others plan buckets by what they have heard."""
    restless()
    reduce, sizes = GradientList([f"w{i}" for i in range(20)], op=hvd.Sum), []

    def step() -> None:
        for each in reduce([np.ones(40, np.float32) for _ in range(20)]) or []:
            np.testing.assert_array_equal(each, np.full(40, n))
        sizes.append(len(reduce._plan[1]._buckets))

    def cell() -> None:
        step()
        wb.allreduce(np.ones(2), "never on the last rank")

    for i in range(7):
        for _ in range(1 + i % 3):
            step()
        learn = reduce._limit.update_from
        if rank == n - 1:
            reduce._limit.update_from = fail  # type: ignore[method-assign]
        broken_off(cell, [SimpleNamespace(remove=lambda: None)] if rank == n - 1 else [])
        reduce._limit.update_from = learn  # type: ignore[method-assign]
        del sizes[len(sizes) - (rank != n - 1) :]
    alike(sizes)


def test_without_autotune_no_handle_says_anything(n: int) -> None:
    """Nothing is noted, so nothing is looked at."""
    entry = api.entry(Kind.ALLREDUCE, np.ones(3), "x")
    (handle,) = api.submit([entry])
    handle.wait(10)
    assert handle.tuned is None
