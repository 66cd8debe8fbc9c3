"""What a verb must have, its derivative above all; and that a missing one is refused."""

from __future__ import annotations

from inspect import signature
from types import ModuleType

import numpy as np
import pytest

import workbench as hvd
from workbench import torch
from workbench.core.execute import STEPS
from workbench.core.verbs import VERBS, Kind
from workbench.job import api, array_verbs
from workbench.job.calls import Call
from workbench.torch import verbs
from workbench.training.derivatives import DERIVATIVES, derivative_of

MOVING = {kind for kind, verb in VERBS.items() if verb.moves}
CALLS = {
    Kind.ALLREDUCE: Call(Kind.ALLREDUCE, "x", hvd.Sum),
    Kind.ALLGATHER: Call(Kind.ALLGATHER, "x"),
    Kind.BROADCAST: Call(Kind.BROADCAST, "x", root=1),
    Kind.ALLTOALL: Call(Kind.ALLTOALL, "x"),
    Kind.REDUCESCATTER: Call(Kind.REDUCESCATTER, "x", hvd.Sum),
}


def lacks(kind: Kind) -> list[str]:
    """What a verb that moves data does not have, though it must."""
    needed = {
        "steps in STEPS of workbench/core/execute.py": kind in STEPS,
        "rule in DERIVATIVES of workbench/training/derivatives.py": kind in DERIVATIVES,
        "arguments for numpy in .ci/verbs.toml": is_public(array_verbs, kind),
        "arguments for PyTorch in .ci/verbs.toml": is_public(verbs, kind),
        "line in CALLS of tests/training/test_derivatives.py": kind in CALLS,
    }
    return [what for what, is_there in needed.items() if not is_there]


def is_public(module: ModuleType, kind: Kind) -> bool:
    """Has a module a function with the verb's name?"""
    return kind.value in module.__all__ and callable(getattr(module, kind.value, None))


@pytest.mark.parametrize("kind", sorted(MOVING))
def test_a_verb_is_whole(kind: Kind) -> None:
    """A verb that moves data has its steps, its derivative, and a public function for numpy and for torch."""
    missing = lacks(kind)
    assert not missing, f"{kind.value} has no {', no '.join(missing)}"


@pytest.mark.parametrize("kind", sorted(MOVING))
def test_a_verbs_line_says_what_its_arguments_say(kind: Kind) -> None:
    """In what all ranks must agree, the table says and the public function asks for."""
    arguments = signature(getattr(api, kind.value)).parameters
    assert VERBS[kind].reduces == ("op" in arguments), f"put reduces= right for {kind.value} in VERBS"
    assert VERBS[kind].rooted == ("root_rank" in arguments), f"put rooted= right for {kind.value} in VERBS"


@pytest.mark.parametrize("kind", sorted(MOVING))
def test_the_shape_of_a_result_is_known_beforehand(kind: Kind) -> None:
    """As far as it is said, it is so."""

    def both() -> list[bool]:
        x = np.ones((4, 3))
        shape, said = CALLS[kind]([x])[0].shape, CALLS[kind].shapes([x.shape])[0]
        return [known in (None, length) for known, length in zip(said, shape, strict=True)]

    assert hvd.run_threads(2, both) == [[True, True]] * 2, f"by_rows= of {kind.value} in VERBS, or Call.shapes"


def test_what_a_verb_lacks_is_named() -> None:
    """A kind that is no verb has nothing of it."""
    assert len(lacks(Kind.STACKS)) == 5


def test_what_moves_no_data_is_in_no_table() -> None:
    """It has neither steps nor a derivative; a message between two ranks has steps alone."""
    assert {*STEPS} - {Kind.SEND} <= MOVING
    assert {*DERIVATIVES} <= MOVING


def test_the_package_has_the_names_of_its_api() -> None:
    """``workbench`` lists them without importing it; torch has each verb, too."""
    assert set(hvd.__all__) == {*api.__all__, *hvd._HOMES}
    assert {kind.value for kind in MOVING} <= set(torch.__all__)


@pytest.mark.parametrize("kind", sorted(set(Kind) - set(DERIVATIVES) - {Kind.SEND}))
def test_an_unknown_verb_is_refused(kind: Kind) -> None:
    """It does not get another verb's derivative, nor another verb's shape."""
    with pytest.raises(NotImplementedError, match=rf"{kind.value} has no derivative.*DERIVATIVES"):
        derivative_of(Call(kind))

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
        (dx,) = derivative_of(call)([y], [len(x)])
        return float((result * y).sum()), float((x * dx).sum())

    forward, backward = (sum(each) for each in zip(*hvd.run_threads(n, both), strict=True))
    averages = kind in (Kind.ALLGATHER, Kind.BROADCAST)
    sums = n if kind is Kind.REDUCESCATTER else 1  # Sum: as Horovod has it, the ranks' number stands before it
    assert np.isclose(forward * sums, backward * (n if averages else 1), rtol=1e-12)
