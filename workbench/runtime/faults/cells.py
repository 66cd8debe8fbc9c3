"""Tensors that a notebook's cell left in flight: they must not be matched with those of a later cell."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from workbench.common.text import rank_list
from workbench.core.coordinator import Error, WaitingNames
from workbench.core.messages import Key


class Cells:
    """The cells of all ranks.

    After a cell has failed on some rank, the others may have come further than that rank: under one name it may mean
    the next step's tensor. A rank is *unsettled* from then on until it begins another cell. One that has begun a cell
    which the notebook has sent since is settled already: the failed cell's end was late in coming.

    Args:
        size: number of ranks.

    Example:
        >>> cells = Cells(size=2)
        >>> cells.began(0); cells.began(1); cells.failed(); cells.began(0)
        >>> kind, text = cells.veto((0, "x"), [0, 1])
        >>> print(text.partition(".")[0])
        'x': rank 1 submitted it in a cell that failed, the others in a later one
        >>> cells.veto((0, "x"), [0]), cells.veto((0, "x"), [1])
        (None, None)
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._ranks: dict[int, int] = {}  # that run cells, and no script: the failures before the newest one
        self.unsettled: set[int] = set()

    def failed(self, failures: int = 0) -> None:
        """A cell has failed on some rank; ``failures``: before it, as the notebook has counted them."""
        self.unsettled |= {rank for rank, before in self._ranks.items() if before <= failures}

    def began(self, rank: int, failures: int = 0) -> None:
        """A rank begins a cell, with so many failures before it."""
        self._ranks[rank] = failures
        self.unsettled.discard(rank)

    def void(self, waiting: WaitingNames, idle: Sequence[int]) -> list[Key]:
        """The names to be given up, now that the cells of ``idle`` have ended.

        1. After a cell that failed on some rank: all that a rank has submitted whose cell has ended, too.
        2. When the cells of all ranks have ended: unnamed tensors, and calls of torch's groups, for with their number
           the others may mean another one. What has a name may wait for later cells.
        """
        void = {key for rank in idle if rank in self.unsettled for key in announced_by(waiting, rank)}
        if len(idle) == self._size:
            void.update(key for key in waiting if ".noname." in key[1] or _OF_A_GROUP.fullmatch(key[1]))
        return sorted(void)

    def veto(self, key: Key, ranks: Collection[int]) -> Error | None:
        """Some of these ranks are still in the cell that failed, and the rest has begun another one: why not to go on.

        See :data:`workbench.core.coordinator.Veto`.
        """
        late = self.unsettled.intersection(ranks) if self.unsettled else set()
        if not late or len(late) == len(ranks):
            return None
        text = f"{key[1]!r}: {rank_list(late)} submitted it in a cell that failed, the others in a later one. "
        return "MissingRanksError", f"{text}Begin a cell only after the last one has ended on all ranks."


# allreduce.0.7, send.0.r1.1to0.5.1, allgather.5:mesh_tp.e4.8: see ProcessGroup in workbench/torch/distributed/group.py
_OF_A_GROUP = re.compile(
    r"[a-z]+[.](\d+|[0-9a-f]{16,})(:[^.]+)?[.](r\d+[.])?(e\d+[.])?(\d+|(any|\d+)to\d+[.]\d+[.]\d+)([.][a-z]\w*)*"
)


def announced_by(waiting: WaitingNames, rank: int) -> list[Key]:
    """The names that a rank has announced."""
    return [key for key, one in waiting.items() if rank in one.requests]
