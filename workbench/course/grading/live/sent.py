"""Is what a rank has sent the gradient of its own samples?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from workbench.course.training.behaviour import Array

_EQUAL = 1e-6


def holds(sent: Sequence[Array], gradient: Sequence[Array]) -> bool:
    """Is a gradient among what was sent: each parameter's somewhere, all of them times one factor?

    Example:
        >>> gradient = [np.array([1.0, 2.0, 3.0]), np.array([4.0])]
        >>> holds([np.array([9.0, 2.0, 4.0, 6.0, 8.0])], gradient), holds([np.array([2.0, 4.0, 6.0, 7.0])], gradient)
        (True, False)
    """
    moving = [one for one in gradient if np.abs(one).max(initial=0.0) > 0]
    if not moving:
        return True
    longest = max(moving, key=len)
    factors = (factor for array in sent for factor in _factors(array, longest))
    return any(all(_somewhere(sent, one, factor) for one in moving) for factor in factors)


def _factors(array: Array, part: Array) -> Sequence[float]:
    """By which a part of the array is so many times this one."""
    if len(array) < len(part):
        return ()
    windows, place = sliding_window_view(array, len(part)), int(np.abs(part).argmax())
    factors = windows[:, place] / part[place]
    off = np.abs(windows - factors[:, None] * part).max(axis=1)
    found: list[float] = factors[(off <= _EQUAL * np.abs(factors * part[place])) & (factors != 0)].tolist()
    return found


def _somewhere(sent: Sequence[Array], part: Array, factor: float) -> bool:
    return any(np.isclose(_factors(array, part), factor, rtol=_EQUAL, atol=0.0).any() for array in sent)
