"""Stragglers against order statistics; the coordinator against closed forms, and against the real one as measured."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from workbench.core.handle import Handle
from workbench.core.messages import Kind, Request
from workbench.core.pending import Entry
from workbench.runtime.steady.batching import Window
from workbench.simulate.delays import Exponential, LogNormal, Negotiation, OneSlow, Stragglers
from workbench.simulate.steps import Overlap, Policy, Span, simulate

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def mean_maximum(stragglers: Stragglers, n: int, draws: int = 4000) -> float:
    """Of so many steps."""
    chance = np.random.default_rng(n)
    return float(np.mean([stragglers.draw(chance, n).max() for _ in range(draws)]))


@pytest.mark.parametrize("n", [1, 2, 8, 64, 512])
def test_the_slowest_of_an_exponential_tail_is_a_harmonic_number(n: int) -> None:
    """E max of n standard exponentials is H_n; its variance is below pi²/6, so the mean of 4,000 is within 0.1."""
    harmonic = sum(1 / k for k in range(1, n + 1))
    assert mean_maximum(Exponential(0.2), n) == pytest.approx(1 + 0.2 * harmonic, abs=0.2 * 0.1)


@pytest.mark.parametrize("n", [1, 2, 8, 64, 512])
def test_the_slowest_of_log_normal_ranks_is_the_integral(n: int) -> None:
    """E max = ∫ 1 - F(x)^n dx, with the normal distribution summed up numerically."""
    z = np.linspace(-8, 8, 20_001)
    below = np.cumsum(np.exp(-(z**2) / 2)) * (z[1] - z[0]) / np.sqrt(2 * np.pi)
    x = np.exp(0.1 * z)
    integral = x[0] + float(np.trapezoid(1 - np.minimum(below, 1) ** n, x))
    assert mean_maximum(LogNormal(0.1), n) == pytest.approx(integral, rel=0.01)


def test_one_slow_rank_costs_the_same_among_any_number() -> None:
    """A step of compute alone takes its factor, and no draw changes it."""
    model = [Span("a", 1.0, 2.0, values=1)]
    policy = Policy(Overlap.NOTHING, straggle=OneSlow(1.5))
    times = [simulate(model, lambda nbytes: 0.0, policy, ranks=n).step_s for n in (1, 2, 512)]
    assert times == pytest.approx([4.5] * 3)


def test_a_step_waits_for_the_slowest_rank() -> None:
    """Its mean length is compute · (1 + tail · H_n), as nothing else takes time."""
    model, n = [Span("a", 1.0, 2.0, values=1)], 16
    policy = Policy(Overlap.NOTHING, straggle=Exponential(0.1))
    found = simulate(model, lambda nbytes: 0.0, policy, ranks=n, steps=2001).step_s
    assert found == pytest.approx(3 * (1 + 0.1 * sum(1 / k for k in range(1, n + 1))), rel=0.01)


@pytest.mark.parametrize("n", [1, 16, 512])
def test_a_round_trip_and_the_coordinators_work(n: int) -> None:
    """For one tensor: window (none at the step's end), there, n messages, back."""
    star = Negotiation(latency_s=1e-4, message_s=1e-5, tensor_s=1e-6, window_s=1e-3)
    assert star.known([2.0], n) == pytest.approx([2.0 + 2e-4 + n * 1.1e-5])
    first, last = star.known([2.0, 3.0], n)
    assert (first, last) == pytest.approx((2.001 + 2e-4 + n * 1.1e-5, 3.0 + 2e-4 + n * 1.1e-5))


def test_a_busy_coordinator_is_a_queue() -> None:
    """Tensors that come faster than n messages are taken wait for those before: the k-th by k times the work."""
    star = Negotiation(latency_s=0.0, message_s=1e-3, tensor_s=0.0, window_s=0.0)
    known = star.known([i * 1e-3 for i in range(10)], ranks=512)
    assert known == pytest.approx([(i + 1) * 0.512 for i in range(10)])


@pytest.mark.parametrize("seed", range(5))
def test_the_window_is_the_engines_own(seed: int) -> None:
    """What travels together, and when it leaves, is what ``workbench.runtime.steady.batching.Window`` does."""
    ready = np.cumsum(np.random.default_rng(seed).exponential(8e-4, 60)).tolist()
    window, found = Window(1e-3), list[tuple[float, list[int]]]()
    for i, now in enumerate(ready):
        if window.held and not window.add([], now):
            found.append((window._until, names(window)))
            window.take()
        window.add([Entry(Request(str(i), Kind.BARRIER), None, None, Handle(str(i)))], now)
    found.append((ready[-1], names(window)))
    ours = Negotiation(window_s=1e-3)._batches(ready)
    assert [batch for _, batch in ours] == [batch for _, batch in found]
    np.testing.assert_allclose([when for when, _ in ours], np.minimum([when for when, _ in found], ready[-1]))


def names(window: Window) -> list[int]:
    """Of what is held."""
    return [int(each.request.name) for each in window.held if isinstance(each, Entry)]


def test_its_constants_are_those_of_the_real_coordinator() -> None:
    """Within a quarter of each steady step that was measured: 64 to 4,096 ranks, one message a rank, or ten."""
    rows = [row for row in json.loads((RESULTS / "control_plane.json").read_text())["rows"] if row["mode"] == "steady"]
    assert len(rows) >= 6
    for row in rows:
        ms = 1e3 * row["messages"] * Negotiation().busy_s(row["ranks"], row["gradients"] / row["messages"])
        assert ms == pytest.approx(row["steady_ms"], rel=0.25), row


def test_more_ranks_negotiate_longer() -> None:
    """A step whose network is free grows by the coordinator's work alone."""
    model = [Span("a", 1e-3, 2e-3, values=10)]
    policy = Policy(negotiation=Negotiation())
    few, many = (simulate(model, lambda nbytes: 0.0, policy, ranks=n).step_s for n in (4, 4096))
    assert many - few == pytest.approx(4092 * Negotiation().busy_s(1, 1))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: LogNormal(-0.1), "deviation is -0.1"),
        (lambda: Exponential(float("nan")), "tail is nan"),
        (lambda: OneSlow(0.5), "factor is 0.5"),
        (lambda: Negotiation(message_s=-1.0), "message_s is -1.0"),
        (lambda: Negotiation(window_s=None), "window_s is None"),  # type: ignore[arg-type]
    ],
)
def test_constants_of_nonsense(make: object, text: str) -> None:
    """The constant, its value and what is needed."""
    with pytest.raises(ValueError, match=f"{text}: a finite number"):
        make()  # type: ignore[operator]
