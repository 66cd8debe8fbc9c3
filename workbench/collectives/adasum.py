"""Adasum: an average where gradients agree, a sum where they are orthogonal.

Two gradients a and b become

    (1 - a·b / 2|a|²) a + (1 - a·b / 2|b|²) b

Parallel ones of equal length give their average, orthogonal ones their sum: so no learning rate has to be
scaled with the number of ranks (Maleki et al. 2020, arXiv:2006.02924). For 2^k ranks the formula is applied in k
rounds: in round i, rank r and rank r XOR 2^i exchange their vectors and compute the same result. k messages of
K bytes per rank.
"""

from __future__ import annotations

import numpy as np

from workbench.collectives.reduction import narrow, widen
from workbench.collectives.traffic import Array, Link, Traffic


def adasum_allreduce(link: Link, array: Array, dtype: str) -> Traffic:
    """Combine ``array`` over all ranks by Adasum, in place; every rank ends with the same bits.

    Args:
        link: the way to the other ranks, 2^k of them.
        array: one-dimensional and contiguous floats, or bfloat16 as uint16.
        dtype: the tensor's dtype name.

    Raises:
        ValueError: the number of ranks is not a power of two.

    Example:
        >>> from workbench.transport.host.threads import spawn
        >>> def orthogonal(link):
        ...     array = np.eye(2)[link.rank]
        ...     adasum_allreduce(link, array, "float64")
        ...     return array.tolist()
        >>> spawn(2, orthogonal)
        [[1.0, 1.0], [1.0, 1.0]]
    """
    if link.size & (link.size - 1):
        raise ValueError(f"Adasum needs a power of two ranks, not {link.size}.")
    traffic, theirs = Traffic(), np.empty_like(array)
    distance = 1
    while distance < link.size:
        partner = link.rank ^ distance
        link.sendrecv(array, partner, theirs, partner)
        traffic.sent(array)
        # Both partners put the lower rank's vector first, so they round alike.
        lower, upper = (array, theirs) if link.rank < partner else (theirs, array)
        array[...] = _combine(lower, upper, dtype)
        distance *= 2
    return traffic


def _combine(a: Array, b: Array, dtype: str) -> Array:
    """The formula, in float64 (float32 for the vectors of half precision)."""
    if dtype == "bfloat16":
        return narrow(_mix(widen(a), widen(b)).astype(np.float32))
    if dtype == "float16":
        return _mix(a.astype(np.float32), b.astype(np.float32)).astype(np.float16)
    return _mix(a, b)


def _mix(a: Array, b: Array) -> Array:
    dot, aa, bb = (float(np.dot(x.astype(np.float64), y.astype(np.float64))) for x, y in ((a, b), (a, a), (b, b)))
    of_a = 1.0 - dot / (2.0 * aa) if aa > 0.0 else 1.0
    of_b = 1.0 - dot / (2.0 * bb) if bb > 0.0 else 1.0
    return (a.dtype.type(of_a) * a + b.dtype.type(of_b) * b).astype(a.dtype, copy=False)  # type: ignore[no-any-return]
