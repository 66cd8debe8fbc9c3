"""A sampler that remembers how far an epoch has come, so that any number of ranks can do the rest of it.

Rank r of n takes every n-th sample of the rest, from place r on. So after k samples on each rank, what is done is the
first k·n samples of the rest, wherever the epoch is broken off: a single number says it all. Example, 10 samples::

    order       7 2 9 0 4 1 8 3 6 5
    3 ranks     0 1 2 0 1 2 | broken off after 2 samples each: processed_num = 6
    2 ranks                 | 0 1 0 1

The order is that of :func:`workbench.data.sampler.epoch_order`: seed and epoch decide, and no rank asks another.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

import numpy as np
import torch

from workbench.data.sampler import epoch_order
from workbench.job import api


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Deal the samples of an epoch out to all ranks; after a reset, only those that nobody has processed.

    Give it to the DataLoader and to :class:`~workbench.torch.elastic.TorchState`, call :meth:`record_batch` after each
    step, and :meth:`set_epoch` at the end of each epoch. All ranks take equally many samples: where they do not come
    out even, fewer than ``size()`` samples are taken twice, at the very end of the epoch.

    Args:
        dataset: what to draw from; its length does not change.
        shuffle: another order in each epoch; False for 0, 1, 2, ….
        seed: the same on every rank.

    Attributes:
        epoch: the number of the epoch.
        processed_num: how many samples of the epoch's order are done, by all ranks together.
        remaining_indices: those that were not done at the last reset.
        num_samples: how many of them are this rank's; :func:`len` says the same.
        total_size: how many are all ranks', with those taken twice.

    Example:
        >>> import workbench.torch as hvd
        >>> hvd.init()
        >>> sampler = ElasticSampler("abcdef", shuffle=False)
        >>> list(sampler)
        [0, 1, 2, 3, 4, 5]
        >>> sampler.record_batch(0, batch_size=4)
        >>> sampler.reset()
        >>> list(sampler), sampler.processed_num
        ([4, 5], 4)
        >>> hvd.shutdown()
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = self.processed_num = 0
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch, with nothing processed.

        Call it at the end of the epoch before, not at the beginning of this one: the training function begins anew
        after a reset, and would forget what is done.
        """
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Every rank has processed one more batch.

        Args:
            batch_idx: not looked at.
            batch_size: samples in this rank's batch; each rank's has as many.
        """
        self.processed_num += batch_size * self.num_replicas

    @property
    def processed_indices(self) -> set[int]:
        """The samples that are done in this epoch, by all ranks together."""
        return set(self._order()[: self.processed_num].tolist())

    def state_dict(self) -> dict[str, int]:
        """What a rank has to know to go on; the same on every rank."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there, with as many ranks as there are now."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Deal the rest of the epoch out anew. A loader that is being iterated does not notice: begin another."""
        self.rank = api.rank()
        self.num_replicas = api.size()
        self.remaining_indices: list[int] = self._order()[self.processed_num :].tolist()
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        """This rank's samples of the rest."""
        even = np.resize(np.array(self.remaining_indices, np.int64), self.total_size)  # repeats from the beginning
        return iter(even[self.rank :: self.num_replicas].tolist())

    def __len__(self) -> int:
        """How many samples are left for this rank, as of the last reset."""
        return self.num_samples

    def _order(self) -> Any:
        return epoch_order(len(self.dataset), epoch=self.epoch, seed=self.seed, shuffle=self.shuffle)
