"""Tar shards for a torch ``DataLoader``: each of its workers reads files of its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch.utils.data import IterableDataset, get_worker_info


class Shards(Protocol):
    """What is needed of :class:`~workbench.data.shards.TarShards`."""

    epoch: int

    def set_epoch(self, epoch: int) -> None:
        """Of the next iteration."""

    def read(self, worker: int, workers: int) -> Iterator[Any]:
        """The samples of one of so many workers."""


class Stream(IterableDataset[Any]):
    """The samples of a rank's shards.

    Args:
        shards: where they come from.
    """

    def __init__(self, shards: Shards) -> None:
        self._shards = shards
        # Persistent workers have their own copy of this object. They see a new epoch in shared memory alone.
        self._epoch = torch.tensor(shards.epoch).share_memory_()  # type: ignore[no-untyped-call]

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next iteration; all ranks must pass the same epoch."""
        self._shards.set_epoch(epoch)
        self._epoch.fill_(epoch)

    def __iter__(self) -> Iterator[Any]:
        """All samples of this process: those of a worker, or all of the rank."""
        worker = get_worker_info()
        self._shards.set_epoch(int(self._epoch))
        return self._shards.read(worker.id, worker.num_workers) if worker else self._shards.read(0, 1)
