"""``examples/nano.py`` in the contract: its Link, and what it computes over one, as a Backend of the workbench's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path

from link_checks import Rank
from loading import EXAMPLES, load

from workbench.core.backend.base import Array, Reduction, Traffic
from workbench.errors import CollectiveError
from workbench.transport.links import LinkCollectives, link_backend

nano = load("nano", EXAMPLES)


class NanoLink(nano.Link):  # type: ignore[misc, name-defined]
    """Names its errors as the workbench does. It has no ``tick``."""

    name = "NANO"

    def sendrecv(self, send: Array | None, dest: int, recv: Array | None, source: int) -> None:
        try:
            super().sendrecv(send, dest, recv, source)
        except nano.RankError as error:
            raise CollectiveError(str(error)) from None

    def close(self, clean: bool = True) -> None:
        super().close()


class NanoCollectives(LinkCollectives):
    """Its two algorithms; the others are the workbench's, over its Link."""

    def allreduce(
        self, array: Array, reduction: Reduction, places: Sequence[int] = (), source: Array | None = None
    ) -> Traffic:
        if reduction.op == "adasum":
            return super().allreduce(array, reduction, places, source)
        if source is not None:
            array[...] = source
        reduction.before(array)
        nano.ring_allreduce(self._link, array, reduction.combine)
        reduction.after(array)
        return Traffic()

    def broadcast(self, array: Array, root: int, source: Array | None = None) -> Traffic:
        if source is not None:
            array[...] = source
        nano.broadcast(self._link, array, root)
        return Traffic()


def nano_rank(rank: int, size: int, folder: Path) -> Rank:
    """This rank, as the checks want it; the ranks meet in a folder."""
    places: Iterator[int] = count()

    def link(timeout_s: float) -> NanoLink:
        place = folder / f"nano{next(places)}"
        place.mkdir(exist_ok=True)
        return NanoLink(rank, size, str(place), timeout_s)

    mine = link(20.0)
    return Rank(mine, replace(link_backend(mine), collectives=NanoCollectives(mine)), link)


__all__ = ["nano", "nano_rank"]
