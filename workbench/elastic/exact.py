"""Training whose bits do not depend on the number of ranks: logical shards, in a fixed order. Framework-free part.

A job has a fixed number S of *logical shards*; whichever ranks live share them, in contiguous blocks::

    4 ranks    | 0 | 1 | 2 | 3 |
    3 ranks    | 0   1 | 2 | 3 |        after a rank has died
    1 rank     | 0   1   2   3 |

What a step computes is a function of the shards alone:

1. The random state on entering a shard follows from (seed, step, shard), so nobody hands it over (:func:`seed_for`).
2. The samples follow from (seed, step, shard), see :class:`ShardBatches`.
3. A shard's gradient is kept apart from the others of its rank, and all are added in the order of the shards,
   ((g0 + g1) + g2) + …, element by element (:func:`reduce_shards`).
4. Module buffers (BatchNorm's running statistics) belong to the shard, and are swapped in and out.

What survives a death
=====================
Weights, optimizer and counters are the same on every rank. At a commit the ranks also tell each other the buffers of
their shards, which are small. So every rank's commit is *whole*, and one survivor is enough.

Is one version on each rank enough, too? A kill amid commit k leaves ranks that have k and ranks that have k - 1. A rank
saves k only after the exchange of k has succeeded on it, and until then keeps k - 1, so what a rank has is always a
whole commit. The ranks of the next epoch take the highest number that one of them has, and who has less gets it from
there (:func:`newest`). Commit k is a function of commit k - 1 and the shards, not of the ranks. So it does not matter
who has it, and that some of the others never came to the end of step k: they would have come to the same bits.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence, Sized

import numpy as np

from workbench.collectives.reduction import Reduction, fold, narrow, widen
from workbench.collectives.shared_memory import blocks
from workbench.data.sampler import Indices, epoch_order
from workbench.job import api
from workbench.job.api import Array


def owners(shards: int, size: int) -> list[range]:
    """The shards of each rank: contiguous, in rank order, as even as possible; ranks beyond the shards have none.

    Raises:
        ValueError: there is no shard.

    Example:
        >>> owners(4, 3), owners(2, 3)
        ([range(0, 2), range(2, 3), range(3, 4)], [range(0, 1), range(1, 2), range(2, 2)])
    """
    if shards < 1:
        raise ValueError(f"shards={shards}: exact training needs at least 1 logical shard.")
    each, more = divmod(shards, size)
    starts = [rank * each + min(rank, more) for rank in range(size + 1)]
    return [range(start, stop) for start, stop in itertools.pairwise(starts)]


def seed_for(seed: int, step: int, shard: int) -> int:
    """Seed Python's and numpy's random numbers for one shard of one step.

    Returns:
        63 bits for the framework's own generators.

    Example:
        >>> one = seed_for(0, step=7, shard=2), random.random()
        >>> one == (seed_for(0, step=7, shard=2), random.random()), one[0] == seed_for(0, step=7, shard=3)
        (True, False)
    """
    words = np.random.SeedSequence(seed, spawn_key=(step, shard)).generate_state(4)
    random.seed(int(words[0]))
    np.random.seed(int(words[1]))
    return int(words[2]) << 31 | int(words[3]) >> 1


def newest(versions: Sequence[int]) -> tuple[int, bool]:
    """Which rank has the newest commit, and whether all have it.

    Args:
        versions: of each rank the number of its commit; -1 for none, and then rank 0's values count.

    Example:
        >>> newest([4, 5, -1, 5]), newest([3, 3]), newest([-1, -1])
        ((1, False), (0, True), (0, False))
    """
    most = max(versions)
    return list(versions).index(most), most >= 0 and min(versions) == most


def reduce_shards(rows: Array, shards: int, op: str, dtype: str, name: str) -> Array:
    """Reduce flat gradients of all shards in the order of the shards; the same bits on every rank.

    Each rank gets one chunk of every shard (alltoall), reduces it, and tells the others (allgather). Bytes on the wire
    of each rank: with K bytes a gradient and m shards of n·m on this rank, m·K·(n-1)/n sent at first, then K/n to
    n - 1 ranks. float16 and bfloat16 are added in float32 and rounded once.

    Args:
        rows: (this rank's shards, columns); the number of columns is a multiple of the number of ranks.
        shards: of all ranks.
        op: ``average`` or ``sum``.
        dtype: the gradients'; bfloat16 comes as uint16.
        name: the same on every rank.

    Returns:
        As many elements as there are columns.

    Example:
        >>> def four_shards():
        ...     mine = owners(4, api.size())[api.rank()]
        ...     rows = np.float32([[10**shard, shard] for shard in mine]).reshape(len(mine), 2)
        ...     return reduce_shards(rows, 4, "sum", "float32", "gradients").tolist()
        >>> api.run_threads(2, four_shards)
        [[1111.0, 6.0], [1111.0, 6.0]]
    """
    size, (own, columns) = api.size(), rows.shape
    if size > 1:
        chunk = columns // size
        sent = rows.reshape(own, size, chunk).transpose(1, 0, 2).reshape(own * size, chunk)
        rows, _ = api.alltoall(sent, [own] * size, f"{name}.alltoall")  # from rank 0 first: in the order of the shards
    out = np.empty(rows.shape[1], rows.dtype)
    reduction = Reduction(op, "float32" if dtype == "bfloat16" else dtype, divisor=shards if op == "average" else 1)
    for low, high in blocks(0, len(out), 4):
        _fold([row[low:high] for row in rows], reduction, dtype, out[low:high])
    return api.allgather(out, f"{name}.allgather") if size > 1 else out


def _fold(parts: list[Array], reduction: Reduction, dtype: str, out: Array) -> None:
    if dtype not in ("float16", "bfloat16"):
        return fold(parts, reduction, out)
    wide = [widen(part) if dtype == "bfloat16" else part.astype(np.float32) for part in parts]
    fold(wide, Reduction(reduction.op, "float32", divisor=reduction.divisor), wide[0])
    out[...] = narrow(wide[0]) if dtype == "bfloat16" else wide[0]
    return None


class ShardBatches:
    """Which samples a shard takes in a step: arithmetic alone, so there is nothing to record or to restore.

    Step k takes the next ``shards · batch_size`` samples of its epoch's order, dealt out to the shards. An epoch has
    every sample exactly once. Its last step may be short: then the shards' parts differ by one sample at most, and some
    may be empty. Skip backward for an empty one, and multiply the mean loss of a part by :meth:`weight`, which is 1 in
    all other steps: then the average over the shards is the mean over the samples.

    Args:
        data: the data set (its ``len()`` is taken) or its number of samples.
        shards: how many logical shards there are.
        batch_size: samples of a shard in a step.
        seed: of the order.
        shuffle: another order in each epoch; False for 0, 1, 2, ….

    Attributes:
        steps: of an epoch.

    Raises:
        ValueError: a number is out of its range.

    Example:
        >>> samples = ShardBatches(10, shards=2, batch_size=2, shuffle=False)
        >>> samples.steps, [samples(step, 0).tolist() for step in range(4)]
        (3, [[0, 2], [4, 6], [8], [0, 2]])
        >>> ShardBatches(5, shards=2, batch_size=2).weight(1, 0), ShardBatches(5, shards=2, batch_size=2).weight(1, 1)
        (2.0, 0.0)
    """

    def __init__(self, data: Sized | int, shards: int, batch_size: int, *, seed: int = 0, shuffle: bool = True) -> None:
        self.n = len(data) if isinstance(data, Sized) else data
        self.shards, self.batch_size, self.seed, self.shuffle = shards, batch_size, seed, shuffle
        if min(self.n, shards, batch_size) < 1:
            raise ValueError(f"{self.n} samples, shards={shards}, batch_size={batch_size}: each must be at least 1.")
        self.steps = -(-self.n // (shards * batch_size))
        self._epoch, self._order = -1, np.empty(0, np.int64)

    def __call__(self, step: int, shard: int) -> Indices:
        """The samples' indices.

        Args:
            step: counted from the beginning of the training, not of the epoch.
            shard: from 0.
        """
        return self._part(step)[shard :: self.shards].copy()

    def weight(self, step: int, shard: int) -> float:
        """What to multiply the mean loss of this shard's samples by."""
        part = self._part(step)
        return len(part[shard :: self.shards]) * self.shards / len(part)

    def _part(self, step: int) -> Indices:
        epoch, within = divmod(step, self.steps)
        if epoch != self._epoch:
            self._order = epoch_order(self.n, epoch=epoch, seed=self.seed, shuffle=self.shuffle)
            self._epoch = epoch
        start = within * self.shards * self.batch_size
        return self._order[start : start + self.shards * self.batch_size]
