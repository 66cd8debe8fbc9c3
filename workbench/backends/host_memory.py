"""The host's memory, where nothing is asynchronous: the null implementation of Memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from workbench.backends.base import Array


class HostMemory:
    """See :class:`workbench.backends.base.Memory`."""

    align = 1

    def using(self, arrivals: Sequence[Any], arrays: Sequence[Array | None]) -> AbstractContextManager[None]:
        """Arrays are there when they are submitted, and results when the call returns."""
        return nullcontext()

    def empty(self, shape: Sequence[int], dtype: Any, arrival: Any) -> Array:
        """An array of numpy's."""
        return np.empty(shape, dtype)

    def copy(self, pairs: Sequence[tuple[Array | None, Array]]) -> None:
        """One by one."""
        for source, target in pairs:
            target[...] = 0 if source is None else source


HOST = HostMemory()
