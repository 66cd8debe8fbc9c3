"""One training step on n ranks, by discrete events.

Two things are busy: the ranks compute, and the network reduces, one batch after the other::

    compute   │ forward 1 2 3 │ backward 3    2    1 │ …         a layer's gradient is ready when its backward ends
    network   │               │         ▓3▓▓▓ ▓2▓▓▓▓▓▓▓ ▓1▓ │    what is ready travels together, up to a threshold

The next step begins when all gradients are reduced (``BACKWARD``), or a layer's forward when its own are (``FORWARD``).
What travels together is decided by the package's own planners: :func:`workbench.core.fusion.plan` and
:func:`workbench.core.buckets.plan_buckets`. Ranks compute alike but for stragglers; a gradient is ready when the
slowest rank has it.

:func:`train` is the loop over the two lanes, with any :data:`Network`; :func:`simulate` has that of a :class:`Policy`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

import numpy as np

from workbench.core.buckets import Piece, plan_buckets
from workbench.core.fusion import plan
from workbench.core.messages import Kind, Response
from workbench.simulate.delays import Negotiation, Stragglers
from workbench.simulate.models import Layers

MIB = 1 << 20


class Overlap(Enum):
    """While what does the network work?"""

    NOTHING = "nothing"
    BACKWARD = "backward"
    FORWARD = "backward and the next forward"


@dataclass(frozen=True)
class Span:
    """A layer on one rank.

    Args:
        name: of the layer.
        forward_s, backward_s: how long it computes.
        values: how many numbers its gradients have.
    """

    name: str
    forward_s: float
    backward_s: float
    values: int


def spans(model: Layers, step_s: float) -> list[Span]:
    """A model whose step takes so long on one rank: a third of it forward, by the layers' floating point operations.

    Raises:
        ValueError: it has no parameters, or ``step_s`` is no positive number.

    Example:
        >>> from workbench.simulate.models import dense
        >>> for span in spans((dense("a", 10, 10), dense("b", 10, 20)), step_s=9.0):
        ...     print(span)
        Span(name='a', forward_s=1.0, backward_s=2.0, values=110)
        Span(name='b', forward_s=2.0, backward_s=4.0, values=220)
    """
    if not sum(layer.parameters for layer in model):
        raise ValueError("The model has no parameters, so there is nothing to reduce.")
    if not (np.isfinite(step_s) and step_s > 0):
        raise ValueError(f"step_s is {step_s}: a positive number of seconds is needed.")
    work = sum(layer.flops for layer in model)
    share = [step_s * layer.flops / work / 3 for layer in model]
    return [Span(layer.name, s, 2 * s, layer.parameters) for layer, s in zip(model, share, strict=True)]


@dataclass(frozen=True)
class Policy:
    """How gradients travel.

    Args:
        overlap: see there.
        fusion_bytes: gradients that are ready travel together up to so many bytes; 0: each by itself.
        bucket_bytes: … and are laid into arrays of so many bytes before, which are ready as a whole; 0: no buckets.
        priority: of what is ready, that goes first which the next forward needs first.
        piece_bytes: a larger tensor travels in pieces of so many bytes, so that another one can overtake it; 0: whole.
        value_bytes: of a number on the wire: 4, or 2 for float16.
        announce_s: from the moment in which all ranks have a gradient until they know that all have it.
        negotiation: … or how long that takes by the number of ranks, and what is announced together.
        straggle: how much slower than usual ranks are; all alike if None.

    Raises:
        ValueError: a number is negative, or ``value_bytes`` is neither 2 nor 4.
    """

    overlap: Overlap = Overlap.BACKWARD
    fusion_bytes: int = 64 * MIB
    bucket_bytes: int = 0
    priority: bool = False
    piece_bytes: int = 0
    value_bytes: int = 4
    announce_s: float = 0.0
    negotiation: Negotiation | None = None
    straggle: Stragglers | None = None

    def __post_init__(self) -> None:
        for name in ("fusion_bytes", "bucket_bytes", "piece_bytes", "announce_s"):
            if not (np.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise ValueError(f"{name} is {getattr(self, name)}: 0 at least is needed.")
        if self.value_bytes not in (2, 4):
            raise ValueError(f"value_bytes is {self.value_bytes}: 4 for float32, or 2 for float16, is needed.")


@dataclass(frozen=True)
class TimedEvent:
    """Something that took time.

    Args:
        what: ``forward``, ``backward`` or ``reduce``.
        names: of the layers.
        begin_s, end_s: since the beginning of the first step.
        values: how many numbers travel.
    """

    what: str
    names: tuple[str, ...]
    begin_s: float
    end_s: float
    values: int = 0


@dataclass
class Result:
    """A training of some steps.

    Attributes:
        step_s: how long a step takes, the first one apart.
        events: of the last step.
    """

    step_s: float
    events: list[TimedEvent] = field(default_factory=list)


Network = Callable[[Sequence[float], float], Iterable[tuple[tuple[int, ...], float, float, int]]]
"""Of when each layer's gradients are ready, and when it is free: (layers, begin, end, values) of what it carries."""


def train(
    layers: Sequence[Span],
    network: Network,
    overlap: Overlap = Overlap.FORWARD,
    steps: int = 4,
    slower: Callable[[], float] = lambda: 1.0,
) -> Result:
    """Train for some steps on a network of one's own; see :func:`simulate`.

    Args:
        layers: in forward order.
        network: carries all gradients of a step.
        overlap: see there.
        steps: at least two.
        slower: asked before each step: its computing time as a multiple of the usual one.
    """
    updated, free, ends = [0.0] * len(layers), 0.0, [0.0]
    for _ in range(steps):
        factor = slower()
        begin = updated if overlap is Overlap.FORWARD else [max([ends[-1], *updated])] * len(layers)
        computed = list(_compute(layers, begin, ends[-1], factor))
        ends.append(computed[-1].end_s if computed else ends[-1])
        ready = [event.end_s for event in reversed(computed[len(layers) :])]
        carried = list(network([ends[-1]] * len(layers) if overlap is Overlap.NOTHING else ready, free))
        updated = ready
        for inside, _, free, _ in carried:
            for i in inside:
                updated[i] = free
    reduced = [
        TimedEvent("reduce", tuple(layers[i].name for i in inside), begin_s, end_s, values)
        for inside, begin_s, end_s, values in carried
    ]
    return Result((ends[-1] - ends[1]) / (steps - 1), [*computed, *reduced])


def _compute(layers: Sequence[Span], begin: Sequence[float], now: float, factor: float) -> Iterator[TimedEvent]:
    """A step's computing: each layer forward, not before its gradients of the step before, then all backward."""
    for layer, earliest in zip(layers, begin, strict=True):
        start = max(now, earliest)
        now = start + layer.forward_s * factor
        yield TimedEvent("forward", (layer.name,), start, now)
    for layer in reversed(layers):
        start, now = now, now + layer.backward_s * factor
        yield TimedEvent("backward", (layer.name,), start, now)


def simulate(
    layers: Sequence[Span],
    reduce_s: Callable[[float], float],
    policy: Policy | None = None,
    ranks: int = 1,
    steps: int = 4,
    seed: int = 0,
) -> Result:
    """Train for some steps.

    Args:
        layers: in forward order.
        reduce_s: how long a reduction of so many bytes takes.
        policy: how gradients travel.
        ranks: among which the slowest is looked for, and which announce.
        steps: at least two.
        seed: of the stragglers.

    Raises:
        ValueError: no layer has gradients, a time is negative, there is no rank, or there are fewer than two steps.

    Example:
        >>> two = [Span("front", 1.0, 2.0, values=25), Span("back", 1.0, 2.0, values=100)]
        >>> for overlap in Overlap:
        ...     print(overlap.value, simulate(two, lambda nbytes: nbytes / 100, Policy(overlap, fusion_bytes=0)).step_s)
        nothing 11.0
        backward 9.0
        backward and the next forward 9.0

        The next forward waits for ``front``, whose gradients come last. With priority they overtake, piece by piece:

        >>> first = Policy(Overlap.FORWARD, fusion_bytes=0, priority=True, piece_bytes=100)
        >>> simulate(two, lambda nbytes: nbytes / 100, first).step_s
        8.0
    """
    _check(layers, ranks, steps)
    policy, chance = policy or Policy(), np.random.default_rng(seed)
    tensors, straggle = _tensors(layers, policy), policy.straggle
    return train(
        layers,
        lambda ready, free: _reduce(tensors, ready, free, reduce_s, policy, ranks),
        policy.overlap,
        steps,
        lambda: float(straggle.draw(chance, ranks).max()) if straggle else 1.0,
    )


def _check(layers: Sequence[Span], ranks: int, steps: int) -> None:
    for layer in layers:
        for name in ("forward_s", "backward_s", "values"):
            if not (np.isfinite(getattr(layer, name)) and getattr(layer, name) >= 0):
                raise ValueError(f"{name} of {layer.name!r} is {getattr(layer, name)}: 0 at least is needed.")
    if not any(layer.values for layer in layers):
        raise ValueError("The model has no parameters, so there is nothing to reduce.")
    if ranks < 1 or steps < 2:
        raise ValueError(f"{ranks} ranks and {steps} steps: one rank and two steps at least are needed.")


@dataclass(frozen=True)
class _Tensor:
    """What the planner sees: a layer's gradients, a bucket, or a piece of one of these."""

    name: str
    layers: tuple[int, ...]
    values: int


def _tensors(layers: Sequence[Span], policy: Policy) -> list[_Tensor]:
    """In the order of the model."""
    tensors = [_Tensor(layer.name, (i,), layer.values) for i, layer in enumerate(layers) if layer.values]
    if policy.bucket_bytes:
        numbers = {layer.name: i for i, layer in enumerate(layers)}
        pieces = [Piece(one.name, one.values, "float32") for one in tensors]
        tensors = [
            _Tensor(bucket.name, tuple(sorted(numbers[name] for name in bucket.names)), bucket.length)
            for bucket in reversed(plan_buckets(pieces, policy.bucket_bytes))
        ]
    if not policy.piece_bytes:
        return tensors
    most = max(1, policy.piece_bytes // policy.value_bytes)
    return [
        _Tensor(f"{one.name}[{start}:]", one.layers, min(most, one.values - start))
        for one in tensors
        for start in range(0, one.values, most)
    ]


def _reduce(
    tensors: Sequence[_Tensor],
    ready: Sequence[float],
    free: float,
    reduce_s: Callable[[float], float],
    policy: Policy,
    ranks: int,
) -> Iterator[tuple[tuple[int, ...], float, float, int]]:
    """Of what is known to be ready when the network is free, as much as the planner lets travel together."""
    known = _known([max(ready[i] for i in one.layers) for one in tensors], tensors, policy, ranks)
    waiting = {one.name: one for one in tensors}
    while waiting:
        free = max(free, min(known[name] for name in waiting))
        here = [one for one in waiting.values() if known[one.name] <= free]  # in the order of the model
        if not policy.priority:
            here.sort(key=lambda one: known[one.name])
        dtype = "float16" if policy.value_bytes == 2 else "float32"
        first = plan([Response(one.name, Kind.ALLREDUCE, dtype, (one.values,)) for one in here], policy.fusion_bytes)[0]
        batch = [waiting.pop(response.name) for response in first]
        values = sum(one.values for one in batch)
        begin, free = free, free + reduce_s(float(policy.value_bytes * values))
        yield tuple(sorted({i for one in batch for i in one.layers})), begin, free, values


def _known(ready: list[float], tensors: Sequence[_Tensor], policy: Policy, ranks: int) -> dict[str, float]:
    """When all ranks know that all have a tensor."""
    star = policy.negotiation
    times = star.known(ready, ranks) if star else [each + policy.announce_s for each in ready]
    return {one.name: each for one, each in zip(tensors, times, strict=True)}
