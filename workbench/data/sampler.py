"""Which rank trains on which sample? Index arithmetic alone: no communication, the same answer everywhere.

All ranks compute the same order of the ``n`` samples from (seed, epoch), and rank ``r`` of ``size`` takes
every ``size``-th of it, from place ``r`` on::

    order      7 2 9 0 4 1 8 3 6 5          n = 10, size = 3
    rank 0     7     0     8     5          four samples,
    rank 1       2     4     3              the others three: the uneven end
    rank 2         9     1     6

So the shards are disjoint and complete, without communication. Two mistakes break this, both
without any error message: a seed that differs between the ranks (their orders no longer fit together),
and an epoch that never changes (every epoch sees the same order).

The uneven end, three cures
===========================
One sample too many on one rank may mean one training step too many, and a step contains a collective:
that rank waits for the others, which have left. ``uneven`` names the cure:

``"pad"``
    Repeat the first samples of the order until every shard is equally long. Nothing is lost; fewer than
    ``size`` samples count twice in this epoch. For training (and torch's own choice).
``"drop"``
    Leave out the last ``n % size`` samples of the order. With ``shuffle`` these are others in each epoch.
    For training with plenty of data.
``"keep"``
    Keep the shards as they fall; lengths differ by at most one. Every sample counts exactly once. For
    evaluation: add up sums and numbers of samples over the ranks, and divide then. For training, too:
    multiply each batch's loss by its weight, :meth:`ShardedSampler.weights`, and call ``join()`` after the
    epoch, for a rank may have a batch less than the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sized
from numbers import Integral
from typing import Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import NDArray

Uneven: TypeAlias = Literal["pad", "drop", "keep"]
Indices: TypeAlias = NDArray[np.int64]


def epoch_order(n: int, *, epoch: int = 0, seed: int = 0, shuffle: bool = True) -> Indices:
    """The order in which one epoch visits all samples; the same on every rank.

    A shuffle is a sort by random numbers. NumPy promises the raw output of its bit generators for all
    versions and platforms, but not what ``Generator.permutation`` makes of it, and ranks may run
    different versions. ``seed`` and ``epoch`` enter separately: a sum of the two would make epoch 1 of
    seed 0 the same as epoch 0 of seed 1.

    Args:
        n: number of samples.
        epoch: which epoch, from 0.
        seed: the same on every rank.
        shuffle: False gives 0, 1, …, n-1.

    Returns:
        Shape (n,), each index once.

    Example:
        >>> epoch_order(4, shuffle=False).tolist(), sorted(epoch_order(4, epoch=1).tolist())
        ([0, 1, 2, 3], [0, 1, 2, 3])
    """
    check_whole("n", n, 0)
    check_whole("epoch", epoch, 0)
    check_whole("seed", seed, 0)
    if not shuffle:
        return np.arange(n, dtype=np.int64)
    bits = np.random.PCG64(np.random.SeedSequence(int(seed), spawn_key=(int(epoch),)))
    return np.argsort(bits.random_raw(int(n)), kind="stable").astype(np.int64, copy=False)


def shard_indices(
    n: int, rank: int, size: int, *, epoch: int = 0, seed: int = 0, shuffle: bool = True, uneven: Uneven = "pad"
) -> Indices:
    """The samples of one rank in one epoch. The module's docstring explains the three cures of ``uneven``.

    Same as torch's ``DistributedSampler``: with ``shuffle=False`` the indices themselves, where ``"pad"``
    is its ``drop_last=False`` and ``"drop"`` its ``drop_last=True``; with ``shuffle=True`` the lengths and
    the rule, while the order is another one (numpy's random numbers, and see :func:`epoch_order` about the
    seed). ``"keep"`` has no counterpart there.

    Args:
        n: number of samples of the whole set.
        rank: this process, from 0.
        size: number of processes that share the set.
        epoch: which epoch, from 0; a new one gives a new order.
        seed: the same on every rank.
        shuffle: False deals the samples out in their own order.
        uneven: ``"pad"``, ``"drop"`` or ``"keep"``.

    Returns:
        Indices into the whole set; length ⌈n/size⌉ (pad), ⌊n/size⌋ (drop), or one of the two (keep).

    Raises:
        ValueError: a number is out of its range, or ``uneven`` is none of the three words.

    Example:
        >>> [shard_indices(10, rank, 3, shuffle=False, uneven="keep").tolist() for rank in range(3)]
        [[0, 3, 6, 9], [1, 4, 7], [2, 5, 8]]
        >>> [shard_indices(10, rank, 3, shuffle=False, uneven="pad").tolist() for rank in range(3)]
        [[0, 3, 6, 9], [1, 4, 7, 0], [2, 5, 8, 1]]
    """
    check_place(rank, size)
    order = _mend(epoch_order(n, epoch=epoch, seed=seed, shuffle=shuffle), size, uneven)
    return order[rank::size].copy()


def batches(
    n: int,
    rank: int,
    size: int,
    global_batch: int,
    *,
    epoch: int = 0,
    seed: int = 0,
    shuffle: bool = True,
    uneven: Uneven = "pad",
) -> list[Indices]:
    """This rank's part of every step, such that N ranks make the very steps that one rank would make.

    Step ``k`` covers the samples ``k * global_batch`` to ``(k + 1) * global_batch`` of the epoch's order,
    for every ``size``; the ranks share them out. So the average of the ranks' mean gradients is the serial
    run's gradient of the same step, and the two losses can be laid over each other. It also means that
    ``global_batch`` stays and the local batch shrinks when ranks are added.

    Here the uneven end is the last, short global batch. ``"pad"`` fills it up with the first samples of the
    order, ``"drop"`` leaves it out, ``"keep"`` runs it short. The serial run does the same, so the steps agree
    in all three. All ranks always get the same number of steps. Under ``"keep"`` the parts of one step may
    differ by one sample, and a part may be empty: weight each rank's mean by ``len(part)``.

    Where ``size`` divides ``global_batch``, the parts one after the other are :func:`shard_indices` (under
    ``"keep"`` always, else where ``global_batch`` divides ``n``). So a ``DataLoader`` with a
    :class:`ShardedSampler` and ``batch_size=global_batch // size`` makes the same steps.

    Args:
        n: number of samples of the whole set.
        rank: this process, from 0.
        size: number of processes.
        global_batch: samples per step over all ranks; a multiple of ``size`` unless ``uneven="keep"``.
        epoch: which epoch, from 0.
        seed: the same on every rank.
        shuffle: False takes the samples in their own order.
        uneven: ``"pad"``, ``"drop"`` or ``"keep"``.

    Returns:
        One array of indices per step. Can be given to a torch ``DataLoader`` as ``batch_sampler``.

    Raises:
        ValueError: a number is out of its range, or ``size`` does not divide ``global_batch``.

    Example:
        >>> [part.tolist() for part in batches(8, 0, 1, 4, shuffle=False)]
        [[0, 1, 2, 3], [4, 5, 6, 7]]
        >>> [[part.tolist() for part in batches(8, rank, 2, 4, shuffle=False)] for rank in range(2)]
        [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]
    """
    check_place(rank, size)
    check_whole("global_batch", global_batch, 1)
    if global_batch % size and uneven != "keep":
        raise ValueError(
            f"global_batch={global_batch} cannot be shared out evenly over size={size} ranks. Take a multiple of "
            f'{size}, or uneven="keep" and weight each rank\'s mean by its number of samples.'
        )
    order = _mend(epoch_order(n, epoch=epoch, seed=seed, shuffle=shuffle), global_batch, uneven)
    return [order[start : start + global_batch][rank::size].copy() for start in range(0, len(order), global_batch)]


class ShardedSampler:
    """:func:`shard_indices` as an object for a torch ``DataLoader``; torch is not needed to make one.

    Call :meth:`set_epoch` before each epoch, or every epoch has the same order. ``rank`` and ``size`` are
    given explicitly: the sampler neither knows nor starts a runtime.

    Args:
        data: the data set (its ``len()`` is taken) or its number of samples.
        rank: this process, from 0.
        size: number of processes.
        seed: the same on every rank.
        shuffle: False deals the samples out in their own order.
        uneven: ``"pad"``, ``"drop"`` or ``"keep"``; see the module's docstring.

    Raises:
        ValueError: a number is out of its range, or ``uneven`` is none of the three words.

    Example:
        >>> sampler = ShardedSampler(10, rank=2, size=3, shuffle=False, uneven="drop")
        >>> list(sampler), len(sampler)
        ([2, 5, 8], 3)
        >>> sampler.set_epoch(1)    # with shuffle=True: a new order from here on
    """

    def __init__(
        self, data: Sized | int, rank: int, size: int, *, seed: int = 0, shuffle: bool = True, uneven: Uneven = "pad"
    ) -> None:
        self.n = len(data) if isinstance(data, Sized) else data
        self.rank, self.size = rank, size
        self.seed, self.shuffle, self.uneven = seed, shuffle, uneven
        self.set_epoch(0)
        self.indices()  # wrong arguments show here, not in the first epoch

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next iteration; all ranks must pass the same epoch."""
        check_whole("epoch", epoch, 0)
        self.epoch = epoch

    def indices(self) -> Indices:
        """This epoch's samples of this rank as an array."""
        place, when = (self.n, self.rank, self.size), self.epoch
        return shard_indices(*place, epoch=when, seed=self.seed, shuffle=self.shuffle, uneven=self.uneven)

    def weights(self, batch_size: int) -> list[float]:
        """By what to multiply the mean loss of each of this rank's batches.

        Then the average over the ranks is the mean over all samples of the step, as on one rank with batches of
        ``size * batch_size``; a rank that has no batch left counts as 0, which is what ``join()`` contributes.

        Args:
            batch_size: the ``DataLoader``'s, on each rank.

        Returns:
            One number for each batch: 1.0, and another one for an uneven end.

        Example:
            >>> [ShardedSampler(11, rank, 4, uneven="keep").weights(2) for rank in (0, 3)]
            [[1.0, 1.3333333333333333], [1.0]]
        """
        check_whole("batch_size", batch_size, 1)
        n = self.n if self.uneven == "keep" else len(self) * self.size
        starts = range(0, len(self), batch_size)
        mine = [min(len(self) - start, batch_size) for start in starts]
        whole = [min(n - start * self.size, batch_size * self.size) for start in starts]
        return [part * self.size / all_parts for part, all_parts in zip(mine, whole, strict=True)]

    def __iter__(self) -> Iterator[int]:
        """The same as plain ints, which every kind of data set can be indexed with."""
        return iter(self.indices().tolist())

    def __len__(self) -> int:
        longest, shortest = -(-self.n // self.size), self.n // self.size
        if self.uneven == "keep":
            return shortest + (self.rank < self.n % self.size)
        return longest if self.uneven == "pad" else shortest


def _mend(order: Indices, unit: int, uneven: Uneven) -> Indices:
    """Make the order a multiple of ``unit`` long, or leave it."""
    if uneven == "pad":
        return np.resize(order, -(-len(order) // unit) * unit)  # resize repeats from the beginning
    if uneven == "drop":
        return order[: len(order) // unit * unit]
    if uneven == "keep":
        return order
    raise ValueError(f"uneven={uneven!r} is unknown. Choose one of {', '.join(map(repr, get_args(Uneven)))}.")


def check_place(rank: int, size: int) -> None:
    """Raise ValueError unless there is such a rank."""
    check_whole("size", size, 1)
    check_whole("rank", rank, 0)
    if rank >= size:
        raise ValueError(f"rank={rank} does not exist among size={size} ranks: they are numbered 0 to {size - 1}.")


def check_whole(name: str, value: int, least: int) -> None:
    """Raise ValueError unless ``value`` is a whole number, and not too small."""
    if not isinstance(value, Integral) or value < least:
        raise ValueError(f"{name}={value!r} must be a whole number of at least {least}.")
