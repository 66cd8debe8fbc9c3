"""What a rank has seen of its script: a line of JSON for each event, with the line of the script that caused it."""

from __future__ import annotations

import json
import linecache
import os
import sys
import weakref
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from traceback import walk_stack
from typing import Any

from workbench.common.extras import loaded
from workbench.common.user_line import stack_of, users_own

MOST_STEPS = 6
"""The program ends at the step after these, if it has not ended before."""
STEPS_OF_AN_EPOCH = 2
"""So many steps of a loop over batches are taken."""
BATCHES_WITHOUT_STEP = 32
"""And so many batches, if no step is taken."""


class Recorder:
    """Writes the events of this process.

    Args:
        path: the file.

    Attributes:
        steps: how many there have been.
        batch: the hash of the first input after the last of them, unless ``wants_batch``.
        model: gives what got that input, if it is still there.
    """

    def __init__(self, path: Path) -> None:
        self._file, self._pid = path.open("a", buffering=1), os.getpid()
        self.steps = 0
        self.batch: int | None = None
        self.wants_batch = True
        self.model: Callable[[], Any] = lambda: None
        self._optimizers: list[weakref.ref[Any]] = []

    @property
    def optimizers(self) -> list[Any]:
        """Those that there still are."""
        return [found for each in self._optimizers if (found := each()) is not None]

    @property
    def mine(self) -> bool:
        """Is this the rank's process? A worker of a DataLoader is forked from it, and is not."""
        return os.getpid() == self._pid

    def write(self, what: str, **about: Any) -> None:
        """Write down an event, with the script's line that has led to it unless one is given."""
        if self.mine:
            self._file.write(json.dumps({"what": what, "at": user_line(), **about}) + "\n")

    def saw_batch(self, batch: int, model: Any) -> None:
        """The hash of the first input after a step, and what got it."""
        self.batch, self.wants_batch, self.model = batch, False, weakref.ref(model)

    def made(self, optimizer: Any) -> None:
        if self._number(optimizer) < 0:
            self.write("optimizer", optimizer=len(self._optimizers), kind=type(optimizer).__name__)
            self._optimizers.append(weakref.ref(optimizer))

    def _number(self, optimizer: Any) -> int:
        return next((n for n, each in enumerate(self._optimizers) if each() is optimizer), -1)

    def step(self, optimizer: Any, weights: int, gradients: int, **about: Any) -> None:
        """An optimizer is about to step with these hashes of weights and gradients.

        Raises:
            SystemExit: there were enough steps.
        """
        if not self.mine:
            return
        batch = None if self.wants_batch else self.batch
        self.steps += 1
        self.wants_batch = True
        if self.steps > MOST_STEPS:
            raise SystemExit(0)
        of = {"optimizer": self._number(optimizer), "wrapped": _wrapped_by_us()}
        self.write("step", **of, weights=weights, gradients=gradients, batch=batch, **world(), **about)


def user_line() -> list[Any]:
    """File, number and text of the innermost line of this stack that is the user's own; [] if there is none."""
    for path, number in stack_of(sys._getframe()):
        if users_own(path) and not path.startswith("<") and "site-packages" not in path:
            return [path, number, linecache.getline(path, number).strip()]
    return []


def world() -> dict[str, int]:
    """The number of ranks in our job, in torch's and in MPI's; 0 where there is none."""
    api, dist, mpi = loaded("workbench.job.api"), loaded("torch.distributed"), loaded("mpi4py.MPI")
    ours = api.size() if api and api.is_initialized() else 0
    torchs = dist.get_world_size() if dist and dist.is_available() and dist.is_initialized() else 0
    mpis = mpi.COMM_WORLD.Get_size() if mpi and mpi.Is_initialized() and not mpi.Is_finalized() else 0
    return {"size": ours, "others": max(torchs, mpis)}


def hash_of(arrays: Iterable[Any]) -> int:
    """One number for the bytes of arrays: equal on two ranks if each bit is."""
    found = 1
    for array in arrays:
        found = zlib.crc32(memoryview(array).cast("B") if array.nbytes else b"", found)
    return found


def _wrapped_by_us() -> bool:
    """Is a distributed optimizer of this package in the stack?"""
    ours = ("workbench.torch.", "workbench.keras.", "workbench.tensorflow.")
    return any(frame.f_globals.get("__name__", "").startswith(ours) for frame, _ in walk_stack(sys._getframe()))
