"""``predict`` against closed forms, ``measure`` on real ranks, and what both refuse."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import workbench
from workbench.calibration.measure import measure
from workbench.errors import WorkbenchError
from workbench.simulate.machines import Wire
from workbench.simulate.measured.contention import Contention
from workbench.simulate.measured.fit import Constant, Fit
from workbench.simulate.measured.links import Links
from workbench.simulate.measured.prediction import Measured, predict
from workbench.simulate.steps import Policy, Span


def known(latency_s: float, per_byte_s: float) -> Fit:
    """Constants without doubt."""
    return Fit(Constant(latency_s, latency_s, latency_s), Constant(per_byte_s, per_byte_s, per_byte_s), 0.0)


LAYERS = (
    Span("update", 0.004, 0.0, 0), Span("front", 0.01, 0.02, 10**6), Span("back", 0.01, 0.02, 3 * 10**6),
    Span("loss", 0.001, 0.0, 0),
)  # fmt: skip
ALONE_S = 0.065
BYTES = 16 * 10**6
MEASURED = Measured(Links(2, 2, known(0, 1e-10), known(1e-4, 1e-9), 0.0), LAYERS)
NO_OVERLAP = Policy(bucket_bytes=1 << 30)  # one bucket, which is ready with the last gradient


@pytest.mark.parametrize("hosts", [2, 4, 32])
def test_one_bucket_takes_what_the_ring_takes(hosts: int) -> None:
    """Computing, 2(m - 1) latencies, and 2(m - 1)/m of the bytes."""
    found = predict(MEASURED, ranks=[hosts], hosts=hosts, policy=NO_OVERLAP).rows[0]
    ring = 2 * (hosts - 1) * (1e-4 + BYTES / hosts * 1e-9)
    assert (found.alone_s, found.sent_s) == pytest.approx((ALONE_S, ring))
    assert found.step_s == pytest.approx(ALONE_S + ring)
    assert found.efficiency == pytest.approx(ALONE_S / (ALONE_S + ring))


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_what_is_cast_travels_in_buckets_of_half_the_bytes(wire: str) -> None:
    """One bucket is ready with the last gradient; of two the first is reduced while the rest is computed."""
    cast = replace(MEASURED, links=replace(MEASURED.links, wire=wire), bucket_bytes=1 << 30)
    found = predict(cast, ranks=[2]).rows[0]
    ring = 2 * (1e-4 + BYTES / 4 * 1e-9)
    assert (found.sent_s, found.step_s) == pytest.approx((ring, ALONE_S + ring))
    first, second = [e for e in predict(replace(cast, bucket_bytes=1), ranks=[2]).rows[0].events if e.what == "reduce"]
    assert (first.names, second.names) == (("back",), ("front",))
    assert first.end_s - first.begin_s == pytest.approx(2 * (1e-4 + 3 * 10**6 * 1e-9))


def test_two_ranks_a_host_share_its_wire() -> None:
    """Two levels: reduce-scatter and allgather inside, and between hosts as many bytes as with one rank a host."""
    one, two = (predict(MEASURED, [n], hosts=2, policy=NO_OVERLAP).rows[0].sent_s for n in (2, 4))
    assert two - one == pytest.approx(BYTES * 1e-10)


def test_a_sharded_optimizer_gathers_after_its_update() -> None:
    """On hosts of one rank: the same bytes in all, and half of the update."""
    plain, sharded = (
        predict(MEASURED, [2], hosts=2, policy=NO_OVERLAP, sharded=each).rows[0].step_s for each in (False, True)
    )
    assert plain - sharded == pytest.approx(0.002, rel=1e-5)


def test_what_is_changed_changes_what_it_should() -> None:
    """Another link, another batch, half the bytes, one rank."""
    base = predict(MEASURED, [2], hosts=2, policy=NO_OVERLAP).rows[0]
    slow = predict(MEASURED, [2], hosts=2, link=Wire(1e-4, 1e-8), policy=NO_OVERLAP).rows[0]
    assert slow.sent_s - base.sent_s == pytest.approx(BYTES * 9e-9)
    half = predict(MEASURED, [2], hosts=2, policy=replace(NO_OVERLAP, value_bytes=2)).rows[0]
    assert base.sent_s - half.sent_s == pytest.approx(BYTES / 2 * 1e-9)
    twice = predict(MEASURED, [2], hosts=2, batch=2.0, policy=NO_OVERLAP).rows[0]
    assert (twice.alone_s, twice.sent_s) == pytest.approx((2 * ALONE_S, base.sent_s))
    alone = predict(MEASURED, [1]).rows[0]
    assert (alone.step_s, alone.efficiency) == (pytest.approx(ALONE_S), 1.0)


def test_it_is_saved_and_read_again(tmp_path: Path) -> None:
    """The same; a file that is cut off is refused with its name."""
    measured = replace(MEASURED, contention=Contention(1.5, 2.0), bucket_bytes=123)
    measured.save(path := tmp_path / "measured.json")
    assert Measured.load(path) == measured
    for length in (0, 10, len(path.read_text()) // 2):
        (short := tmp_path / "cut.json").write_text(path.read_text()[:length])
        with pytest.raises(WorkbenchError, match=r"cut.json is no measurement, or is cut off"):
            Measured.load(short)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"ranks": [3], "hosts": 2}, "3 ranks do not fill 2 hosts: give a multiple of 2"),
        ({"ranks": [0]}, "0 ranks do not fill"),
        ({"ranks": [2], "batch": -1.0}, "batch is -1.0: a positive"),
        ({"ranks": [2], "batch": float("nan")}, "batch is nan"),
        ({"model": Measured(MEASURED.links), "ranks": [2]}, "no layers with parameters"),
        ({"model": [Span("relu", 1.0, 1.0, 0)], "ranks": [2], "links": MEASURED.links}, "no layers with parameters"),
        ({"model": LAYERS, "ranks": [2]}, "give links="),
        ({"model": replace(MEASURED, links=replace(MEASURED.links, inside=None)), "ranks": [4]}, "one a host"),
        (
            {
                "model": replace(MEASURED, links=replace(MEASURED.links, hosts=1, between=None)),
                "ranks": [4],
                "hosts": 2,
            },
            r"link=Wire\(latency_s=…, per_byte_s=…\)",
        ),
    ],
)
def test_what_cannot_be_predicted(given: dict[str, object], says: str) -> None:
    """Is refused with the value and what to do."""
    with pytest.raises(ValueError, match=says):
        predict(**{"model": MEASURED} | given)  # type: ignore[arg-type]


def test_a_negative_constant_is_refused() -> None:
    """A link's."""
    with pytest.raises(ValueError, match="per_byte_s is -1"):
        predict(MEASURED, [2], hosts=2, link=Wire(0, -1))


@pytest.mark.parallel
@pytest.mark.usefixtures("warm_torch")
def test_measure_on_real_ranks() -> None:
    """All ranks get the same; model and random states stay; its layers are in forward order, with all parameters.

    The job keeps it, so an optimizer of this model can be planned by it.
    """

    def on_a_rank() -> tuple[str, list[tuple[str, int]], bool, str]:
        import torch

        import workbench.torch as hvd

        hvd.init()
        torch.set_num_threads(1)

        class Noisy(torch.nn.Module):
            def get_extra_state(self) -> str:
                return "no tensor"

            def forward(self, x: Any) -> Any:
                return torch.nn.functional.dropout(x, random.random() * np.random.random())

        def states() -> str:
            return repr((torch.get_rng_state().tolist(), random.getstate(), np.random.get_state()))

        model = torch.nn.Sequential(
            torch.nn.Linear(50, 400), torch.nn.BatchNorm1d(400), Noisy(), torch.nn.Linear(400, 3)
        )
        before = [value.clone() for value in (*model.parameters(), *model.buffers())]
        batch, state = (torch.randn(8, 50), torch.zeros(8, dtype=torch.long)), states()
        found = workbench.measure(model, batch, seconds=1.0, doubt=10)
        same = state == states() and all(map(torch.equal, before, (*model.parameters(), *model.buffers())))
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        planned = hvd.DistributedOptimizer(sgd, model.named_parameters(), plan="auto").plan
        return repr(found), [(layer.name, layer.values) for layer in found.layers], same, repr(planned)

    first, second = workbench.run(on_a_rank, np=2, use_gloo=True)
    assert first == second
    assert first[1] == [("update", 0), ("0", 20400), ("1", 800), ("3", 1203), ("loss", 0)]
    assert first[2]
    assert "overlap_forward" in first[3]
    assert "as tried" in first[3]


def test_measure_needs_a_second_rank() -> None:
    """And says so."""
    (said,) = workbench.run_threads(1, lambda: _message(lambda: measure()))
    assert "needs at least 2 ranks" in said
    assert "there is one rank" in said


def test_measure_refuses_models_that_reduce_nothing() -> None:
    """Without parameters, frozen, or without a batch."""
    import torch

    frozen = torch.nn.Linear(2, 2).requires_grad_(False)
    batch = torch.ones(1, 2), torch.zeros(1, dtype=torch.long)
    for model, given, says in (
        (torch.nn.ReLU(), batch, "No parameter of ReLU"),
        (frozen, batch, "No parameter of Linear"),
        (torch.nn.Linear(2, 2), None, "needs the batch of one step"),
    ):
        with pytest.raises(ValueError, match=says):
            measure(model, given)


def _message(call: object) -> str:
    try:
        call()  # type: ignore[operator]
    except WorkbenchError as error:
        return str(error)
    return ""


def test_a_step_with_float16_on_the_wire_has_rounded_gradients() -> None:
    """The recorded step casts each gradient, and updates with what comes back, as ``compression=`` does."""
    import torch

    from workbench.calibration.spans import Recording

    torch.manual_seed(0)
    model, batch = torch.nn.Linear(5, 3), (torch.randn(7, 5), torch.zeros(7, dtype=torch.long))
    given: list[torch.Tensor] = []
    where: dict[torch.Tensor, set[int]] = {}

    class Noting(torch.optim.SGD):
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            for param in [param for group in self.param_groups for param in group["params"]]:
                given.append(param.grad.clone())
                where.setdefault(param, set()).add(param.grad.data_ptr())
            super().step()

    for wire in ("float16", "float32"):
        given.clear()
        where.clear()
        Recording(model, batch, optimizer=lambda params: Noting(params, lr=0.1), wire=wire)
        rounded = [torch.equal(grad, grad.half().float()) for grad in given]
        assert all(rounded) if wire == "float16" else not any(rounded)
        if wire == "float16":  # they lie in memory of their own, as in a bucket
            assert {len(places) for places in where.values()} == {1}


def test_a_sparse_gradient_is_not_cast() -> None:
    """It is gathered as it is, also with ``compression=``."""
    import torch

    from workbench.calibration.spans import Recording

    model = torch.nn.Sequential(torch.nn.Embedding(5, 3, sparse=True), torch.nn.Linear(3, 2))
    batch = torch.tensor([0, 3, 3]), torch.zeros(3, dtype=torch.long)
    spans = Recording(model, batch, wire="float16").spans(seconds=0.01)
    assert [span.values for span in spans] == [0, 15, 8, 0]


def test_spans_add_up_to_the_step() -> None:
    """Of a model whose layers are used in another order than they are registered, and with a shortcut."""
    import torch

    from workbench.calibration.spans import Recording

    class Turned(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last, self.first, self.side = torch.nn.Linear(8, 2), torch.nn.Linear(4, 8), torch.nn.Linear(4, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.last(torch.relu(self.first(x)) + self.side(x))

    recording = Recording(Turned(), (torch.randn(3, 4), torch.zeros(3, dtype=torch.long)))
    spans = recording.spans(seconds=0.05)
    assert [span.name for span in spans] == ["update", "first", "side", "last", "loss"]
    assert all(span.forward_s >= 0 and span.backward_s >= 0 for span in spans)
    row = np.array(recording.step())
    assert row.sum() > 0
    assert row.shape == (10,)
