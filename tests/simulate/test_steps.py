"""A training step by discrete events: bounds that hold for any model, and the published figures."""

from __future__ import annotations

import numpy as np
import pytest
from thorough import quick

from workbench.simulate.delays import LogNormal
from workbench.simulate.models import Layer, vgg16
from workbench.simulate.published import MODELS, efficiency, pascal
from workbench.simulate.steps import MIB, Overlap, Policy, Span, simulate, spans

pytestmark = pytest.mark.long


def network(nbytes: float) -> float:
    """A latency, and 1 GB/s."""
    return 1e-3 + nbytes * 1e-9


def some_model(seed: int, layers: int = 12) -> list[Span]:
    """Layers of any size."""
    chance = np.random.default_rng(seed)
    compute, values = chance.uniform(1e-3, 2e-2, layers), chance.integers(100, 10**7, layers)
    return [Span(str(i), float(s), float(2 * s), int(v)) for i, (s, v) in enumerate(zip(compute, values, strict=True))]


@pytest.mark.parametrize("seed", quick(range(4), 0))
def test_bounds_that_no_policy_beats(seed: int) -> None:
    """A step is as long as its computing and as its network, and no longer than both one after the other."""
    model = some_model(seed)
    compute = sum(span.forward_s + span.backward_s for span in model)
    sent = 4 * sum(span.values for span in model) * 1e-9
    for overlap in Overlap:
        for policy in (
            Policy(overlap, fusion_bytes=0),
            Policy(overlap),
            Policy(overlap, bucket_bytes=32 * MIB),
            Policy(overlap, fusion_bytes=0, priority=True, piece_bytes=MIB),
        ):
            found = simulate(model, network, policy).step_s
            pieces = 1e-3 * (len(model) + 4 * sum(span.values for span in model) / MIB)
            assert max(compute, sent) - 1e-9 <= found <= compute + sent + pieces, policy


@pytest.mark.parametrize("seed", range(4))
def test_more_overlap_is_never_slower(seed: int) -> None:
    """Nothing, backward, backward and the next forward; priority costs a latency for each piece."""
    model = some_model(seed)
    nothing, backward, forward = (simulate(model, network, Policy(overlap)).step_s for overlap in Overlap)
    first = Policy(Overlap.FORWARD, priority=True, fusion_bytes=4 * MIB, piece_bytes=4 * MIB)
    assert nothing >= backward - 1e-9
    assert backward >= forward - 1e-9
    pieces = sum(-(-4 * span.values // (4 * MIB)) for span in model)
    assert backward + 1e-3 * pieces >= simulate(model, network, first).step_s, "but for the pieces' latency"


def reductions(model: list[Span], policy: Policy) -> list[tuple[str, ...]]:
    """Which layers travel together; each time takes 2.5 s."""
    return [event.names for event in simulate(model, lambda nbytes: 2.5, policy).events if event.what == "reduce"]


def test_what_travels_together() -> None:
    """As the engine's planner says: up to the threshold, of what is ready; buckets are ready as a whole."""
    model = [Span(name, 1.0, 1.0, 1000) for name in "abcd"]
    assert reductions(model, Policy(fusion_bytes=8000)) == [("d",), ("b", "c"), ("a",)]
    assert reductions(model, Policy(fusion_bytes=0)) == [("d",), ("c",), ("b",), ("a",)]
    assert reductions(model, Policy(fusion_bytes=0, bucket_bytes=8000)) == [("c", "d"), ("a", "b")]


def test_half_the_bytes() -> None:
    """float16 on the wire."""
    model = [Span("a", 0.0, 1.0, 10**9)]
    assert simulate(model, lambda nbytes: nbytes * 1e-9, Policy(value_bytes=2)).step_s == pytest.approx(3.0)
    assert simulate(model, lambda nbytes: nbytes * 1e-9, Policy(value_bytes=4)).step_s == pytest.approx(5.0)


def test_stragglers() -> None:
    """All wait for the slowest of them: the more ranks, the later; the same for one seed."""
    model = some_model(0)
    times = [simulate(model, network, Policy(straggle=LogNormal(0.1)), ranks=n, steps=50).step_s for n in (1, 8, 512)]
    assert times == sorted(times)
    assert times[2] > 1.2 * simulate(model, network).step_s
    assert times[2] == simulate(model, network, Policy(straggle=LogNormal(0.1)), ranks=512, steps=50).step_s


def test_a_model_without_parameters() -> None:
    """And a step that takes no time."""
    with pytest.raises(ValueError, match="no parameters"):
        spans((Layer("relu", 0, 10.0),), step_s=1.0)
    with pytest.raises(ValueError, match="step_s is 0"):
        spans(vgg16(), step_s=0)


# --- the published figures ----------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "wanted"), [("Inception V3", 0.90), ("ResNet-101", 0.90), ("VGG-16", 0.68)])
def test_512_gpus(name: str, wanted: float) -> None:
    """Within three points, with the same two constants for all."""
    assert efficiency(name, pascal(hosts=128)) == pytest.approx(wanted, abs=0.03)


def test_bandwidth_alone_does_not_explain_them() -> None:
    """On the whole line and with no common loss, the two small models would lose almost nothing."""
    for name in ("Inception V3", "ResNet-101"):
        assert efficiency(name, pascal(line=1.0), common=0.0) > 0.97
    assert efficiency("VGG-16", pascal(line=1.0), common=0.0) > 0.8


def test_gradients_are_as_large_as_published() -> None:
    """553.5, 178.6 and about 95 MB."""
    sizes = {name: 4e-6 * sum(layer.parameters for layer in paper.model()) for name, paper in MODELS.items()}
    assert sizes == pytest.approx({"VGG-16": 553.4, "ResNet-101": 178.2, "Inception V3": 95.3}, abs=0.5)


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ({"fusion_bytes": -1}, "fusion_bytes is -1"),
        ({"piece_bytes": -4}, "piece_bytes is -4"),
        ({"announce_s": float("nan")}, "announce_s is nan"),
        ({"value_bytes": 3}, "value_bytes is 3: 4 for float32, or 2"),
    ],
)
def test_a_policy_of_nonsense(words: dict[str, float], text: str) -> None:
    """The number, its value and what is needed."""
    with pytest.raises(ValueError, match=text):
        Policy(**words)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("layers", "words", "text"),
    [
        ([Span("relu", 1.0, 1.0, 0)], {}, "The model has no parameters"),
        ([], {}, "The model has no parameters"),
        ([Span("a", -1.0, 1.0, 5)], {}, "forward_s of 'a' is -1.0"),
        ([Span("a", 1.0, 1.0, 5)], {"ranks": 0}, "0 ranks and 4 steps"),
        ([Span("a", 1.0, 1.0, 5)], {"steps": 1}, "1 ranks and 1 steps"),
    ],
)
def test_a_step_of_nonsense(layers: list[Span], words: dict[str, int], text: str) -> None:
    """Layers without gradients, negative times, no rank, or no step to measure."""
    with pytest.raises(ValueError, match=text):
        simulate(layers, network, **words)
