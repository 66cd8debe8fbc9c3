"""The time of a step: closed forms, the ring's own messages, and what is refused."""

from __future__ import annotations

import math

import pytest

from workbench.collectives.ring import ring_allreduce
from workbench.course.calculators.steps import EVEN, NETWORKS, Training, calculate
from workbench.simulate.machines import Machines, Wire
from workbench.simulate.published import reduction

LAYERS = 50


def ring_s(training: Training, nbytes: float) -> float:
    """The formula of lesson 07."""
    n = training.ranks
    return 2 * (n - 1) * (training.alpha_s + training.beta_s * nbytes / n)


def carried(buckets: int, training: Training) -> float:
    """Bytes of one of equal buckets: its gradients, to whole cache lines, and a flag for each."""
    inside = LAYERS // buckets
    values = training.gradient_bytes / 4 / LAYERS
    return 4 * (inside * 16 * math.ceil(values / 16) + inside)


def test_one_bucket_hides_nothing() -> None:
    """All gradients in one bucket: the step is computing and then a ring of all bytes."""
    for ranks in [2, 3, 8, 64]:
        training = Training(ranks=ranks, bucket_bytes=10**9)
        step = calculate(training)
        assert step.messages == 1
        assert step.step_s == pytest.approx(training.compute_s + ring_s(training, carried(1, training)), rel=1e-9)
        assert step.exposed_s == pytest.approx(step.network_s)
        assert step.hidden == pytest.approx(0.0, abs=1e-9)


def test_equal_buckets_are_a_pipeline() -> None:
    """k equal buckets: either only the last one is exposed, or the network works from the first one on."""
    for buckets in [10, 25]:
        for beta_s in [1e-10, 1e-8]:
            training = Training(ranks=4, beta_s=beta_s, bucket_bytes=int(100e6 / buckets))
            step, ring = calculate(training), ring_s(training, carried(buckets, training))
            forward_s, backward_s = training.compute_s / 3, training.compute_s * 2 / 3 / buckets
            fast, slow = training.compute_s + ring, forward_s + backward_s + buckets * ring
            assert step.messages == buckets
            assert step.step_s == pytest.approx(max(fast, slow), rel=1e-9)
            assert (slow > fast) == (beta_s == 1e-8)  # both cases are tried


def test_without_buckets_each_layer_is_a_message() -> None:
    """bucket_bytes=0: as many messages as layers, and every gradient's bytes, no more."""
    training = Training(bucket_bytes=0, alpha_s=0.0)
    step = calculate(training)
    assert step.messages == LAYERS
    assert step.latency_s == 0.0
    assert step.transfer_s == pytest.approx(ring_s(training, training.gradient_bytes))


def test_a_ring_is_that_of_the_simulator() -> None:
    """What a ring takes is what its own recorded messages take."""
    for ranks in [1, 2, 5, 32]:
        training = Training(ranks=ranks, alpha_s=3e-5, beta_s=2e-9)
        recorded = reduction(Machines(ranks, 1, Wire(0, 0), Wire(3e-5, 2e-9)), ring_allreduce)
        for nbytes in (0.0, 4096.0, 1e7):
            assert training.ring_s(nbytes) == pytest.approx(recorded(nbytes), rel=1e-9)


def test_no_network_costs_nothing() -> None:
    """Without latency, and with all the bandwidth, or alone, the ranks only compute; the bytes are those asked for."""
    for network in NETWORKS:
        for training in (Training(alpha_s=0.0, beta_s=0.0, network=network), Training(ranks=1, network=network)):
            step = calculate(training)
            assert step.efficiency == pytest.approx(1.0)
            assert step.verdict == "hidden"
        values = sum(layer.values for layer in training.layers())
        assert 4 * values == pytest.approx(training.gradient_bytes, rel=1e-4)


def test_a_step_lies_between_its_bounds() -> None:
    """No step is shorter than its computing or its network, or longer than both one after the other."""
    for bucket_bytes in [0, 10_000_000, 10**9]:
        for network in NETWORKS:
            step = calculate(Training(beta_s=1e-9, network=network, bucket_bytes=bucket_bytes))
            assert (
                max(step.training.compute_s, step.network_s)
                <= step.step_s
                <= (step.training.compute_s + step.network_s) * (1 + 1e-9)
            )
            assert 0 <= step.hidden <= 1


def test_the_verdict_names_what_helps() -> None:
    """Latency, bytes, one bucket too large, or nothing to be mended."""
    for setting, verdict in [
        (Training(alpha_s=1e-3, bucket_bytes=0), "latency-bound"),
        (Training(beta_s=1e-8), "bandwidth-bound"),
        (Training(bucket_bytes=10**9), "starts too late"),
        (Training(), "hidden"),
    ]:
        assert calculate(setting).verdict == verdict


def test_nonsense_is_refused() -> None:
    """An error names the value, and what it must be."""
    for wrong, words in [
        ({"ranks": 0}, "ranks is 0: 1 at least"),
        ({"alpha_s": -1.0}, "alpha_s is -1.0: 0 at least"),
        ({"beta_s": float("nan")}, "beta_s is nan"),
        ({"gradient_bytes": 0}, "gradient_bytes is 0: more than 0"),
        ({"network": "AlexNet"}, f"network is 'AlexNet': choose one of '{EVEN}'"),
    ]:
        with pytest.raises(ValueError, match=words):
            Training(**wrong)  # type: ignore[arg-type]
