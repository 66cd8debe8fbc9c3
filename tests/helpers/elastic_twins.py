"""Errors at a certain place on one rank."""

from __future__ import annotations

from typing import Any

import keras

import workbench.keras as hvd
from workbench.errors import CollectiveError


class Fails(keras.callbacks.Callback):
    """Raises an error on one rank, once, after so many steps."""

    def __init__(self, rank: int, after: int, error: type[Exception] = CollectiveError) -> None:
        super().__init__()
        self.left = after if hvd.rank() == rank else -1
        self.error = error

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """After a step."""
        self.left -= 1
        if self.left == 0:
            raise self.error("fails on purpose")
