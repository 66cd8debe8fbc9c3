"""Errors at a certain place on one rank, and what a notebook's cell does with them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import keras
from all_ranks import wait_for_all

import workbench.keras as hvd
from workbench.core.messages import Raised
from workbench.errors import CollectiveError
from workbench.job.context import HOLDER


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


@contextmanager
def cell() -> Iterator[list[Exception]]:
    """A notebook's cell: what it raises is reported to the others, and the next one begins when all have ended theirs.

    Yields:
        A list, in which the exception is put at the end.
    """
    caught: list[Exception] = []
    rank, job = hvd.rank(), HOLDER.get()
    try:
        yield caught
    except Exception as error:  # noqa: BLE001 - whatever it is that the framework makes of it
        caught.append(error)
        job.engine.report(Raised(rank, repr(error), final=False))
    wait_for_all()
    time.sleep(0.5)  # nobody says when what was reported has been taken in
    job.cell_begins()
    time.sleep(0.5)
