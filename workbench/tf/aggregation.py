"""Horovod's view on the passes of a step."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from workbench.training.bridge import TensorReducer


class Aggregation:
    """How far the passes of a step are; Horovod's optimizers have it as ``_agg_helper``, and suites read it.

    Args:
        reducer: the optimizer's.
    """

    def __init__(self, reducer: TensorReducer) -> None:
        self._reducer, self.backward_passes_per_step = reducer, reducer.passes

    @property
    def counter(self) -> Any:
        """A tensor: how many passes have been added up since the last step."""
        return tf.constant(self._reducer.passed)
