"""A large array travels in pieces, so that another one need not wait long until it may overtake."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from workbench.core.handle import Handle
from workbench.core.pending import Entry
from workbench.job import api
from workbench.job.context import HOLDER
from workbench.torch.gradients.dense import wait_for_all


class PiecesHandle:
    """The promise of all pieces of an array; waits as a :class:`~workbench.core.handle.Handle` does.

    Args:
        pieces: their handles.
    """

    def __init__(self, pieces: Sequence[Handle]) -> None:
        self._pieces = tuple(pieces)

    def wait(self) -> list[Any]:
        """The result of each.

        Raises:
            CollectiveError: the first that failed. The others are done by then.
        """
        return list(wait_for_all(self._pieces).values())


def submit_in_pieces(entries: list[Entry], at_once: bool = False) -> list[Any]:
    """As :func:`workbench.job.entries.submit`; what may be overtaken goes in pieces of ``WORKBENCH_PIECE_BYTES``.

    Returns:
        A handle for each entry.
    """
    length = HOLDER.get().settings.piece_bytes
    found: list[Any] = []
    for entry in entries:
        if entry.request.priority and length and entry.source is not None and entry.source.nbytes > length:
            found.append(PiecesHandle(api.submit_when_free(pieces(entry, length), at_once)))
        else:
            found += api.submit_when_free([entry], at_once)
    return found


def pieces(entry: Entry, nbytes: int) -> list[Entry]:
    """An allreduce in place of one array, as those of its parts.

    Args:
        entry: of all.
        nbytes: of a part; the last may be shorter.

    Example:
        >>> import numpy as np
        >>> from workbench.core.messages import Kind, Request
        >>> array = np.arange(5.0)
        >>> all_of_it = Entry(Request("x", Kind.ALLREDUCE, "float64", (5,), offset=1024), array, array, Handle("x"))
        >>> [(part.request.name, part.source.tolist(), part.request.offset) for part in pieces(all_of_it, nbytes=16)]
        [('x from 0', [0.0, 1.0], 1024), ('x from 2', [2.0, 3.0], 1040), ('x from 4', [4.0], 1056)]
    """
    array, known, found = entry.source, entry.request, []
    assert array is not None
    step = max(1, nbytes // array.itemsize)
    for start in range(0, len(array), step):
        part = array[start : start + step]
        offset = known.offset + start * array.itemsize if known.offset >= 0 else -1
        request = replace(known, name=f"{known.name} from {start}", shape=part.shape, offset=offset)
        found.append(Entry(request, part, part, Handle(request.name), caller=entry.caller))
    return found
