"""What no schedule can beat.

Take the first i + 1 layers. Their gradients are not ready before backward has come down to layer i, and the next
forward of layer i does not begin before all of them are reduced, and those of the layers before have run. Between these
two moments the network carries all their bytes, at best in one message. From that forward on, layers i, …, L compute
forward and L, …, i backward, one after the other; then the same begins anew. So, for every i::

    step ≥ reduce(bytes of layers 0, …, i) + forward and backward of layers i, …, L

With i = 0 that is all computing and the first layer's message; with i = L it is all bytes and the last layer's
computing. What is needed of ``reduce`` is that one message takes no longer than the same bytes in several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate

from workbench.course.schedules.messages import BYTES
from workbench.simulate.steps import Span


def least_step(layers: Sequence[Span], reduce_s: Callable[[float], float]) -> float:
    """The largest of the bounds.

    Args:
        layers: in forward order.
        reduce_s: how long a reduction of so many bytes takes; one of all bytes takes no longer than several.

    Example:
        >>> two = [Span("front", 1.0, 2.0, values=25), Span("back", 1.0, 2.0, values=100)]
        >>> least_step(two, lambda nbytes: nbytes / 100)
        8.0
    """
    before = accumulate(layer.values for layer in layers)
    return max(
        (reduce_s(float(BYTES * values)) if values else 0.0)
        + sum(layer.forward_s + layer.backward_s for layer in layers[i:])
        for i, values in enumerate(before)
    )
