"""Parameter servers: each holds a part of the array, adds what workers push, and sends the sum back (Li et al. 2014).

With as many servers as workers, each on a host of its own, K bytes leave a worker and K bytes come back, at the same
time: half of what a ring sends for large n. The price is twice the hosts. An array travels in pieces, so that one is
pushed while the sum of the one before is pulled::

    worker → servers    piece 0   piece 1   piece 2
    servers → worker              sum 0     sum 1     sum 2

In a step each worker talks to another server, w steps a piece for w workers: nobody is sent to by two at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.collectives.ring import chunk_lengths, cut
from workbench.collectives.traffic import Array, Link


@dataclass(frozen=True)
class Servers:
    """An allreduce among the first half of the ranks; the second half serves, and has arrays of the same length.

    Args:
        pieces: of the array.

    Example:
        >>> from workbench.transport.host.threads import spawn
        >>> def total(link):
        ...     array = np.full(3, float(link.rank + 1))
        ...     Servers(pieces=2)(link, array, np.add)
        ...     return array.tolist()
        >>> spawn(4, total)[:2]
        [[3.0, 3.0, 3.0], [3.0, 3.0, 3.0]]
    """

    pieces: int = 2

    def __call__(self, link: Link, array: Array, combine: Any) -> None:
        """Reduce in place, over the workers.

        Raises:
            ValueError: the number of ranks is odd.
        """
        if link.size % 2:
            raise ValueError(f"{link.size} ranks are not as many workers as servers: an even number is needed.")
        workers = link.size // 2
        lengths = chunk_lengths(len(array), self.pieces * workers)
        parts = cut(array, lengths)
        chunks = [parts[piece * workers : (piece + 1) * workers] for piece in range(self.pieces)]
        (self._work if link.rank < workers else self._serve)(link, workers, chunks, combine)

    def _work(self, link: Link, workers: int, chunks: list[list[Array]], combine: Any) -> None:
        for piece in range(self.pieces + 1):
            for step in range(workers):
                place = (link.rank + step) % workers
                push = chunks[piece][place] if piece < self.pieces else None
                pull = chunks[piece - 1][place] if piece else None
                link.sendrecv(push, workers + place, pull, workers + place)

    def _serve(self, link: Link, workers: int, chunks: list[list[Array]], combine: Any) -> None:
        place = link.rank - workers
        came = np.empty_like(chunks[0][place], shape=max(len(piece[place]) for piece in chunks))
        for piece in range(self.pieces + 1):
            for step in range(workers):
                worker = (place - step) % workers
                total = chunks[piece][place] if piece < self.pieces else None
                into = total if total is None or not step else came[: len(total)]
                link.sendrecv(chunks[piece - 1][place] if piece else None, worker, into, worker)
                if total is not None and step:
                    combine(total, into, out=total)
