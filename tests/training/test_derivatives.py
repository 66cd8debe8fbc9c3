"""The table of derivatives: whole, and loud about what is not in it."""

from __future__ import annotations

import numpy as np
import pytest

import workbench as hvd
from workbench.core.messages import Kind
from workbench.torch import autograd
from workbench.training.calls import Call
from workbench.training.derivatives import DERIVATIVES

DATA_VERBS = {kind for kind in Kind if callable(getattr(hvd, kind.value, None))} - {Kind.BARRIER, Kind.JOIN}
CALLS = {
    Kind.ALLREDUCE: Call(Kind.ALLREDUCE, "x", hvd.Sum),
    Kind.ALLGATHER: Call(Kind.ALLGATHER, "x"),
    Kind.BROADCAST: Call(Kind.BROADCAST, "x", root=1),
    Kind.ALLTOALL: Call(Kind.ALLTOALL, "x"),
    Kind.REDUCESCATTER: Call(Kind.REDUCESCATTER, "x", hvd.Sum),
}


def test_every_data_verb_has_its_rule() -> None:
    """A verb that the public module has and that moves data has a derivative, and torch can call it."""
    assert set(DERIVATIVES) == DATA_VERBS - {Kind.ADD_SET, Kind.REMOVE_SET, Kind.SHUTDOWN}
    assert set(autograd._BEGIN) == set(DERIVATIVES) == set(CALLS)


@pytest.mark.parametrize("kind", sorted(set(Kind) - set(DERIVATIVES)))
def test_an_unknown_verb_is_refused(kind: Kind) -> None:
    """It does not get another verb's derivative, nor another verb's shape."""
    with pytest.raises(NotImplementedError, match=rf"{kind.value} has no derivative.*DERIVATIVES"):
        Call(kind).derivative()

    def shape() -> None:
        with pytest.raises(NotImplementedError, match=kind.value):
            Call(kind).shapes([(2, 2)])

    hvd.run_threads(1, shape)


@pytest.mark.parametrize("kind", sorted(DERIVATIVES))
def test_a_derivative_is_the_transposed_verb(kind: Kind) -> None:
    """⟨verb(x), y⟩ = ⟨x, derivative(y)⟩, over all ranks together, but for the ranks' number where averages are sums."""
    n = 2

    def both() -> tuple[float, float]:
        rng = np.random.default_rng(hvd.rank())
        call, x = CALLS[kind], rng.standard_normal((4, 3))
        result = call([x])[0]
        y = rng.standard_normal(result.shape)
        (dx,) = call.derivative()([y], [len(x)])
        return float((result * y).sum()), float((x * dx).sum())

    forward, backward = (sum(each) for each in zip(*hvd.run_threads(n, both), strict=True))
    averages = kind in (Kind.ALLGATHER, Kind.BROADCAST)
    sums = n if kind is Kind.REDUCESCATTER else 1  # Sum: as Horovod has it, the ranks' number stands before it
    assert np.isclose(forward * sums, backward * (n if averages else 1), rtol=1e-12)
