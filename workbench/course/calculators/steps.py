"""The first calculator: how long a training step takes, and how much of its communication is exposed.

Every rank computes a whole step (weak scaling): forward a third of the time, backward two thirds, each layer its share.
Gradients are laid into buckets, from the last layer to the first. When backward has finished a bucket, the network
reduces it by a ring, one bucket after the other::

    forward  1 2 3 4 │ backward  4    3    2    1  │ exposed      │ the next step
    network          │              ▓4 3▓▓▓▓▓▓▓   ▓2 1▓▓▓▓▓▓▓▓▓   │

With n ranks and a bucket of m bytes a ring takes 2(n - 1)·α + 2(n - 1)/n · β·m seconds. This is the only formula here:
what a ring takes is :class:`workbench.simulate.algorithms.Formula`, which layers share a bucket is the package's own
:func:`workbench.core.buckets.plan_buckets`, and what happens when is :func:`workbench.simulate.steps.simulate`.

What it leaves out: announcements, stragglers, and that computing and reducing on the same cores slow each other down.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from workbench.simulate.algorithms import Formula
from workbench.simulate.machines import Wire
from workbench.simulate.models import Layer, Layers, inception_v3, resnet101, vgg16
from workbench.simulate.steps import Policy, Result, Span, TimedEvent, simulate, spans

EVEN = "50 equal layers"
NETWORKS: Mapping[str, Callable[[], Layers]] = MappingProxyType(
    {
        EVEN: lambda: tuple(Layer(f"layer {i}", 1, 1.0) for i in range(1, 51)),
        "like VGG-16": vgg16,
        "like ResNet-101": resnet101,
        "like Inception V3": inception_v3,
    }
)
"""Where a network has its gradients and its work; both are scaled to the bytes and the seconds that were asked for."""
_VALUE_BYTES = 4
_HIDDEN = 0.05  # of the computing: less than this is called hidden


@dataclass(frozen=True)
class Training:
    """What the sliders set.

    Args:
        ranks: n; each has one wire to the next in the ring.
        alpha_s: α, the latency of a message.
        beta_s: β, seconds for each byte: 1 / bandwidth.
        gradient_bytes: of all gradients, float32.
        bucket_bytes: gradients travel together up to so many bytes; 0: each layer by itself.
        compute_s: a rank's step without communication.
        network: one of :data:`NETWORKS`: how gradients and work are spread over the layers.

    Raises:
        ValueError: a number is negative, there is no rank, no gradient or no computing, or no such network.
    """

    ranks: int = 8
    alpha_s: float = 20e-6
    beta_s: float = 1e-10
    gradient_bytes: float = 100e6
    bucket_bytes: int = 10_000_000
    compute_s: float = 0.1
    network: str = EVEN

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise ValueError(f"ranks is {self.ranks}: 1 at least is needed.")
        for name in ("alpha_s", "beta_s", "bucket_bytes"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} is {getattr(self, name)}: 0 at least is needed.")
        for name in ("gradient_bytes", "compute_s"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} is {getattr(self, name)}: more than 0 is needed.")
        if self.network not in NETWORKS:
            raise ValueError(f"network is {self.network!r}: choose one of {', '.join(map(repr, NETWORKS))}.")

    def layers(self) -> list[Span]:
        """The network's layers, scaled to this training's bytes and seconds."""
        model = NETWORKS[self.network]()
        scale = self.gradient_bytes / _VALUE_BYTES / sum(layer.parameters for layer in model)
        return [
            replace(span, values=max(1, round(span.values * scale))) if span.values else span
            for span in spans(model, self.compute_s)
        ]

    def ring_s(self, nbytes: float) -> float:
        """A ring allreduce of so many bytes."""
        return Formula(Wire(self.alpha_s, self.beta_s)).ring_s(self.ranks, nbytes)


@dataclass(frozen=True)
class StepTimes:
    """What comes out.

    Args:
        training: what it was computed from.
        step_s: of one training step.
        latency_s, transfer_s: what the network works: latencies of all messages, and their bytes.
        messages: how many buckets travel in a step.
        events: forward, backward and reduce of one step.
    """

    training: Training
    step_s: float
    latency_s: float
    transfer_s: float
    messages: int
    events: tuple[TimedEvent, ...]

    @property
    def network_s(self) -> float:
        """How long the network works in a step."""
        return self.latency_s + self.transfer_s

    @property
    def exposed_s(self) -> float:
        """By how much a step is longer than computing alone: communication that nothing hides."""
        return max(0.0, self.step_s - self.training.compute_s)

    @property
    def hidden(self) -> float:
        """The part of the communication that runs beside backward; 1 if there is none."""
        return max(0.0, 1 - self.exposed_s / self.network_s) if self.network_s else 1.0

    @property
    def efficiency(self) -> float:
        """Of weak scaling: the part of the step in which the ranks compute."""
        return self.training.compute_s / self.step_s

    @property
    def verdict(self) -> str:
        """What limits this step, in a word."""
        backward_s = sum(event.end_s - event.begin_s for event in self.events if event.what == "backward")
        if self.exposed_s <= _HIDDEN * self.training.compute_s:
            return "hidden"
        if self.network_s <= backward_s:
            return "starts too late"
        return "latency-bound" if self.latency_s > self.transfer_s else "bandwidth-bound"


def calculate(training: Training) -> StepTimes:
    """One step of a training, in the long run.

    Example:
        >>> fast = calculate(Training(ranks=8, alpha_s=20e-6, beta_s=1e-10))
        >>> round(fast.step_s * 1e3, 1), fast.messages, f"{fast.efficiency:.0%}", fast.verdict
        (102.0, 10, '98%', 'hidden')

        Ten times the latency and no buckets: 50 messages, each of 14 steps of the ring.

        >>> slow = calculate(Training(ranks=8, alpha_s=200e-6, beta_s=1e-10, bucket_bytes=0))
        >>> slow.messages, f"{slow.latency_s * 1e3:.0f} ms of latency", f"{slow.efficiency:.0%}", slow.verdict
        (50, '140 ms of latency', '52%', 'latency-bound')
    """
    layers, policy = training.layers(), Policy(bucket_bytes=training.bucket_bytes, fusion_bytes=0)
    return step_of(training, simulate(layers, training.ring_s, policy, steps=2), training.ring_s(0.0))


def step_of(training: Training, found: Result, latency_s: float) -> StepTimes:
    """What a simulated training comes to.

    Args:
        training: what was simulated.
        found: with the events of one step.
        latency_s: of it, an allreduce of nothing.
    """
    took = [event.end_s - event.begin_s for event in found.events if event.what == "reduce"]
    latencies_s = len(took) * latency_s
    return StepTimes(training, found.step_s, latencies_s, sum(took) - latencies_s, len(took), tuple(found.events))
