"""Memory of other files beside the arena: reached by all ranks, and by nobody when it is gone."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator

import numpy as np
import pytest

from workbench.core.backend.base import Array
from workbench.transport.shm.arena import PAGE, Arena, OwnArena, open_arena

BYTES = 2 * PAGE


@pytest.fixture
def arenas() -> Iterator[tuple[OwnArena, Arena]]:
    """One's own, and as another rank sees it."""
    own = OwnArena(0)
    yield own, open_arena(own.ticket)
    own.seal()


class File:
    """A framework's tensor in a file of its own.

    Attributes:
        array: over the mapping.
        lives: whether the framework still has it.
    """

    def __init__(self) -> None:
        self.file = os.memfd_create("tensor")
        os.ftruncate(self.file, BYTES)
        self.array: Array = np.frombuffer(mmap.mmap(self.file, BYTES), np.uint8)
        self.lives = True

    def lend(self, own: OwnArena) -> int:
        """Its offset in the arena; -1 if it has none."""
        own.lend(self.array.ctypes.data, BYTES, self.file, lambda: self.lives)
        return own.offset(self.array)


def test_others_read_and_write_it(arenas: tuple[OwnArena, Arena]) -> None:
    """Each offset behind the arena's end is a byte of the file, for its owner and for others, in any order."""
    own, theirs = arenas
    files = [File(), File()]
    offsets = [file.lend(own) for file in files]
    assert own.size <= offsets[0] < offsets[0] + BYTES <= offsets[1]
    assert own.offset(files[1].array[PAGE:]) == offsets[1] + PAGE
    for arena in (theirs, own):
        for file, offset in reversed(list(zip(files, offsets, strict=True))):
            file.array[:] = offset % 251
            piece = arena.piece(offset, BYTES)
            assert (piece == file.array).all()
            arena.piece(offset + 5, 3)[:] = 7
            assert list(file.array[4:9]) == [offset % 251, 7, 7, 7, offset % 251]


def test_what_is_gone_has_no_place(arenas: tuple[OwnArena, Arena]) -> None:
    """Its addresses may be anybody's, so they are nowhere; its row and nobody's offset is given to another one."""
    own, theirs = arenas
    first, second = File(), File()
    gone = first.lend(own)
    theirs.piece(gone, BYTES)
    first.lives = False
    assert own.offset(first.array) == -1
    offset = second.lend(own)
    assert offset > gone
    assert np.count_nonzero(own.lent.table[:, 0]) == 1
    theirs.piece(offset, BYTES)[:] = 9
    assert (second.array == 9).all()
    assert list(theirs.lent._open) == [offset], "no rank holds memory that its owner has given back"


def test_only_so_many(arenas: tuple[OwnArena, Arena]) -> None:
    """Where no row of the table is free, memory stays its rank's own."""
    own, _ = arenas
    files = [File() for _ in range(len(own.lent.table) + 1)]
    places = [file.lend(own) for file in files]
    assert places[-1] == -1
    assert -1 not in places[:-1]


def test_another_file_under_its_number(arenas: tuple[OwnArena, Arena]) -> None:
    """A descriptor that was closed and means another file by now is refused, not read."""
    own, theirs = arenas
    file, other = File(), File()
    offset = file.lend(own)
    os.dup2(other.file, file.file)
    with pytest.raises(OSError, match="is another file by now"):
        theirs.piece(offset, BYTES)


def test_a_rank_that_gives_up_has_it_for_itself(arenas: tuple[OwnArena, Arena]) -> None:
    """From then on nobody else changes what the owner writes there; and nothing more is lent."""
    own, theirs = arenas
    file = File()
    piece = theirs.piece(file.lend(own), BYTES)
    piece[:] = 1
    own.detach(0)
    assert (file.array == 1).all()
    file.array[:] = 7
    piece[:] = 3
    assert (file.array == 7).all()
    assert File().lend(own) == -1
