"""Memory of one rank that others can reach: given out, given back, opened by others, and closed to strangers."""

from __future__ import annotations

import dataclasses
import gc
import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from workbench.transport.shm import arena as arena_module
from workbench.transport.shm.arena import PAGE, OwnArena, open_arena

RESERVED = 3 * PAGE
LARGE = 4 << 20


@pytest.fixture
def arena() -> Iterator[OwnArena]:
    """One's own, not sealed yet."""
    own = OwnArena(RESERVED)
    yield own
    own.seal()


def taken(arena: OwnArena) -> int:
    """Bytes of the machine's memory that the arena takes at the moment."""
    return os.fstat(arena.ticket.file).st_blocks * 512


# --- allocate -----------------------------------------------------------------------------------------


def test_pieces_begin_on_pages_and_do_not_overlap(arena: OwnArena) -> None:
    """Whatever is asked for, each piece is as long as asked, begins on a page behind what is reserved, and is alone."""
    sizes = [0, 1, PAGE - 1, PAGE, PAGE + 1, 10 * PAGE, 1]
    pieces = [arena.allocate(size) for size in sizes]
    assert [len(piece) for piece in pieces] == sizes
    for i, piece in enumerate(pieces):
        piece[:] = i + 1
        assert (piece.ctypes.data - arena.address) % PAGE == 0
        assert piece.ctypes.data - arena.address >= RESERVED
    assert all((piece == i + 1).all() for i, piece in enumerate(pieces))


def test_a_piece_is_free_again_after_its_last_view(arena: OwnArena) -> None:
    """As long as any view of a piece lives, nobody else gets it; after the last one it is the first to be given out."""
    piece = arena.allocate(2 * PAGE)
    place = arena.offset(piece)
    view = piece.view("float32").reshape(2, -1)[1, 5:9]
    del piece
    other = arena.allocate(2 * PAGE)
    assert arena.offset(other) != place
    del view
    assert arena.offset(arena.allocate(2 * PAGE)) == place


def test_neighbours_become_one(arena: OwnArena) -> None:
    """Pieces that are freed in any order can be given out again as one large piece."""
    pieces = [arena.allocate(PAGE) for _ in range(8)]
    start = arena.offset(pieces[0])
    end = arena.allocate(PAGE)
    for i in (3, 1, 2, 7, 0, 6, 4, 5):
        pieces[i] = end
    assert arena.offset(arena.allocate(8 * PAGE)) == start


def test_memory_is_taken_when_written_to_and_given_back_when_freed(arena: OwnArena) -> None:
    """A large piece costs nothing until it is written to, and nothing any more when its last view has died."""
    before = taken(arena)
    piece = arena.allocate(LARGE)
    assert taken(arena) == before
    piece[:] = 1
    view = piece[100:200]
    del piece
    assert taken(arena) == before + LARGE
    del view
    assert taken(arena) == before
    assert not arena.allocate(LARGE).any()


def test_there_is_an_end(arena: OwnArena) -> None:
    """More than the machine has is a MemoryError, and what is there can still be had."""
    with pytest.raises(MemoryError, match=r"No \d+ contiguous bytes of shared memory"):
        arena.allocate(arena.size)
    assert len(arena.allocate(arena.size - RESERVED)) == arena.size - RESERVED


def test_more_than_the_machine_has_cannot_be_reserved() -> None:
    """It is an OSError, with which the ranks go without shared memory."""
    with pytest.raises(OSError, match="more than the machine has"):
        OwnArena(1 << 62)


def test_many_threads_at_once(arena: OwnArena) -> None:
    """Threads that allocate and free at the same time never get the same memory."""
    wrong: list[str] = []

    def work(number: int) -> None:
        dice = np.random.default_rng(number)
        for _ in range(300):
            piece = arena.allocate(int(dice.integers(1, 4 * PAGE)))
            piece[:] = number
            if (piece != number).any():
                wrong.append(f"thread {number} read another one's number")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_garbage_collector_may_come_by_at_any_time(arena: OwnArena, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece in a cycle is freed amid another allocate(), on the same thread: it goes on, and no piece is lost."""
    start, merged = arena.offset(arena.allocate(PAGE)), arena_module._merged

    def collect_and_merge(free: list[tuple[int, int]]) -> list[tuple[int, int]]:
        gc.collect()
        return merged(free)

    def work() -> None:
        for _ in range(3):
            cycle: list[object] = [arena.allocate(PAGE)]
            cycle.append(cycle)
            del cycle
            arena.allocate(PAGE)

    monkeypatch.setattr(arena_module, "_merged", collect_and_merge)
    thread = threading.Thread(target=work, daemon=True)
    gc.freeze()  # what the other tests have left need not be looked at each time: it takes seconds
    try:
        thread.start()
        thread.join(20)
    finally:
        gc.unfreeze()
    assert not thread.is_alive()
    gc.collect()
    assert arena.offset(arena.allocate(1000 * PAGE)) == start


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_what_a_forked_child_lets_go_of_is_still_the_rank_s(arena: OwnArena) -> None:
    """A child that drops its arrays, as a DataLoader's worker may, takes no memory away from the rank."""
    piece = arena.allocate(LARGE)
    piece[:] = 7
    child = os.fork()
    if child == 0:
        del piece
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (piece == 7).all()


# --- place --------------------------------------------------------------------------------------------


def test_the_place_of_views_and_slices(arena: OwnArena) -> None:
    """Every contiguous part of a piece is told by the byte at which it begins, whatever its dtype and shape."""
    piece = arena.allocate(8 * PAGE)
    start = arena.offset(piece)
    numbers = piece.view("float64")
    for view, offset in [
        (piece[1:], 1),
        (numbers, 0),
        (numbers[5:], 40),
        (numbers.reshape(-1, 8)[3], 3 * 64),
        (piece.view("uint16")[7:9], 14),
        (piece[:1].view(bool), 0),
        (numbers[2:3].reshape(()), 16),
        (piece.view("float16")[3:], 6),
    ]:
        assert arena.offset(view) == start + offset
        assert arena.bytes[arena.offset(view) :][: view.nbytes].tobytes() == view.tobytes()


def test_what_lies_elsewhere_has_no_place(arena: OwnArena) -> None:
    """Other memory, another arena's, what cannot be written to, and what has no bytes: -1."""
    piece, other = arena.allocate(PAGE), OwnArena(0)
    readonly = piece.view()
    readonly.setflags(write=False)
    for array in (np.ones(5), other.allocate(PAGE), readonly, piece[:0], np.empty(0), open_arena(arena.ticket).bytes):
        assert arena.offset(array) == -1
    other.seal()


# --- other processes ----------------------------------------------------------------------------------


def test_another_process_reads_and_writes_it(arena: OwnArena) -> None:
    """A process that was told the ticket sees what this one wrote, and the other way round."""
    piece = arena.allocate(8).view("int64")
    piece[:] = 41
    script = (
        "import sys; from workbench.transport.shm.arena import Ticket, open_arena\n"
        f"arena = open_arena({arena.ticket!r})\n"
        f"arena.bytes[{arena.offset(piece)}:][:8].view('int64')[0] += 1\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=50)
    assert piece[0] == 42


def test_it_is_seen_as_long_as_somebody_has_it(arena: OwnArena) -> None:
    """A mapping of it outlives its owner's: the ranks may end in any order."""
    own = OwnArena(RESERVED)
    piece = own.allocate(100)
    piece[:], place = 5, own.offset(piece)
    theirs = open_arena(own.ticket)
    own.seal()
    del own, piece
    assert (theirs.bytes[place : place + 100] == 5).all()


def test_strangers_are_refused(arena: OwnArena) -> None:
    """The wrong token, a process that is gone, no such file, a shorter one, another kind of file: OSError, always."""
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    short, (read, write) = os.memfd_create("short"), os.pipe()
    os.ftruncate(short, PAGE)
    for fields, text in [
        ({"token": bytes(16)}, "is another one in this container"),
        ({"pid": gone.pid}, "No such file"),
        ({"file": 10**6}, "No such file"),
        ({"file": short}, "greater than file size"),
        ({"file": read}, "No such device"),
    ]:
        with pytest.raises(OSError, match=text):
            open_arena(dataclasses.replace(arena.ticket, **fields))
    for file in (short, read, write):
        os.close(file)
    open_arena(arena.ticket)


def test_a_sealed_one_cannot_be_opened() -> None:
    """After seal() only who has it has it."""
    own = OwnArena(0)
    own.seal()
    with pytest.raises(OSError, match="No such file"):
        open_arena(own.ticket)
    own.allocate(100)[:] = 1


def test_a_system_that_lets_nobody_map_it_loses_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the memory cannot be mapped (``ulimit -v``) there is an OSError, and no file stays open."""

    def refuse(*_: object) -> None:
        raise OSError("Cannot allocate memory")

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr("workbench.transport.shm.arena.mmap.mmap", refuse)
    with pytest.raises(OSError, match="Cannot allocate"):
        OwnArena(0)
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_detached_arena_is_its_owners_alone(arena: OwnArena) -> None:
    """Arrays stay where they are; from the next write on nobody else changes their page, nor sees it."""
    theirs, mine = open_arena(arena.ticket), arena.allocate(2 * PAGE)
    start = arena.offset(mine)
    mine[:] = 1
    theirs.bytes[start] = 2
    arena.detach(RESERVED)
    assert (mine[0], mine[1], arena.offset(mine)) == (2, 1, start)
    mine[:] = 7
    theirs.bytes[start : start + 2 * PAGE] = 3
    assert (mine == 7).all()
    assert (theirs.bytes[start : start + 2 * PAGE] == 3).all()
    arena.bytes[0], theirs.bytes[1] = 5, 6  # the header stays common
    assert (theirs.bytes[0], arena.bytes[1]) == (5, 6)


def test_a_detached_arena_gives_and_takes_memory() -> None:
    """Pieces may still be freed, large ones too, and new ones are given out."""
    arena = OwnArena(RESERVED)
    piece = arena.allocate(4 << 20)
    piece[:] = 1
    arena.seal()
    arena.detach(RESERVED)
    del piece
    gc.collect()
    again = arena.allocate(8 << 20)
    again[:] = 2
    assert (again == 2).all()
    arena.detach(RESERVED)  # again: nothing happens
