"""Memory of one rank that all ranks of its machine can read and write.

It is an anonymous file in memory (``memfd_create``), which the others open through ``/proc/<pid>/fd/<n>``.

1. It has no name, so nothing is left of it when the ranks end, even by kill -9.
2. It is not in ``/dev/shm``, which in a container often has 64 MB, and ends a process that wants more.
3. It is as large as the machine's memory, but takes none until it is written to. So it never has to grow, which would
   need the others.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
import threading
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from workbench.core.backend.base import Array
from workbench.transport.shm.lent import TABLE_BYTES, LentFiles

PAGE = 4096
_libc = ctypes.CDLL(None, use_errno=True)
# ctypes takes what is not declared for an int: it would cut addresses and the file's offset to 32 bits.
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_longlong)
_MAP_FIXED, _MAP_NORESERVE = 0x10, 0x4000  # Linux's; Python has no names for them
_TOKEN = 16  # bytes at the start that say whose memory it is
LENT = 8 << 10  # offset of the table of lent files; before it is the header
_KEEP_BYTES = 1 << 20  # freed memory beyond this is given back to the system


@dataclass(frozen=True)
class Ticket:
    """What another process needs to open an arena: whose file it is, what stands at its start, and where."""

    pid: int
    file: int
    size: int
    token: bytes
    address: int


@dataclass(frozen=True)
class Lending:
    """A file that this rank lends: see :meth:`OwnArena.lend`."""

    offset: int
    address: int
    nbytes: int
    file: int
    lives: Callable[[], bool]


class Arena:
    """One rank's memory.

    Attributes:
        bytes: all of it, as uint8; begins with the token.
        address: of the first byte, in this process.
        lent: what the rank lends beside it; its offsets begin at ``size``.
    """

    def __init__(self, file: int, size: int, pid: int) -> None:
        self._mapping = mmap.mmap(file, size)
        self.bytes: Array = np.frombuffer(self._mapping, np.uint8)
        self.address: int = self.bytes.ctypes.data
        self.size = size
        self.lent = LentFiles(pid, self.bytes[LENT : LENT + TABLE_BYTES])

    def piece(self, offset: int, nbytes: int) -> Array:
        """Some of the bytes, or of what is lent."""
        return self.bytes[offset : offset + nbytes] if offset < self.size else self.lent.piece(offset, nbytes)

    def view(self, start: int, nbytes: int) -> memoryview:
        """Some of the bytes, for values that are read and written one by one: faster than an array."""
        return memoryview(self._mapping)[start : start + nbytes]

    def forget(self, start: int, nbytes: int, shared: bool = True) -> None:
        """Give whole pages back to the system; they read as zeros afterwards if they are ``shared``."""
        self._mapping.madvise(mmap.MADV_REMOVE if shared else mmap.MADV_DONTNEED, start, nbytes)


class OwnArena(Arena):
    """The arena of this rank: made here, and given out piece by piece.

    Args:
        reserved: bytes at the start that :meth:`allocate` leaves alone, as it does the table of what is lent.

    Raises:
        OSError: the system has no such files, does not let this process map as much, or has less memory than is
            reserved.
    """

    def __init__(self, reserved: int) -> None:
        size = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // PAGE * PAGE
        if reserved >= size:
            raise OSError(f"{reserved} bytes are more than the machine has")
        self._file = os.memfd_create("workbench")
        try:
            os.ftruncate(self._file, size)
            super().__init__(self._file, size, os.getpid())
        except (OSError, ValueError):
            os.close(self._file)
            raise
        token = secrets.token_bytes(_TOKEN)
        self.bytes[:_TOKEN] = np.frombuffer(token, np.uint8)
        self.ticket = Ticket(os.getpid(), self._file, size, token, self.address)
        self._lock = threading.Lock()
        begin = max(reserved, LENT + TABLE_BYTES)
        self._free = [(-(-begin // PAGE) * PAGE, size)]  # (start, end) of what is free, in order
        self._returned = deque[tuple[int, int]]()  # free as well
        self._end = self._free[0][0]  # of what was ever given out
        self._detached = False
        self._lends: dict[int, Lending] = {}  # by the row of its table
        self._unused = size  # the next offset of what is lent

    def seal(self) -> None:
        """Nobody can open it by its ticket from now on; who has keeps it."""
        # detach() maps the file anew, so a descriptor stays; under another number than the one that the ticket names.
        ticket, self._file = self._file, os.dup(self._file)
        os.close(ticket)
        weakref.finalize(self, os.close, self._file).atexit = False

    def detach(self, start: int) -> None:
        """What this process writes behind ``start`` from now on, nobody else sees or overwrites.

        The same addresses become a private mapping of the same file, so all arrays stay where they are; a page is this
        process's own from its next write on. The others go on with the file.

        Raises:
            OSError: the system refuses it.
        """
        if self._detached or os.getpid() != self.ticket.pid:
            return
        start = -(-start // PAGE) * PAGE
        protection, how = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _MAP_FIXED | _MAP_NORESERVE
        with self._lock:
            # MAP_FIXED replaces the old mapping in one step, so an array that another thread uses is never without
            # memory. Python's mmap object knows nothing of it, and unmaps the same addresses at its end.
            at = self.address + start
            pieces = [(at, self._end - start, self._file, start)]
            pieces += [(each.address, each.nbytes, each.file, 0) for each in self._lends.values() if each.lives()]
            for address, nbytes, file, offset in pieces:
                if _libc.mmap(address, nbytes, protection, how, file, offset) != address:
                    raise OSError(ctypes.get_errno(), f"mmap: {os.strerror(ctypes.get_errno())}")
            self._detached = True

    def allocate(self, nbytes: int) -> Array:
        """Bytes that begin on a page; freed with the last array over them.

        Raises:
            MemoryError: there is no such piece any more.
        """
        start, end = self._take(nbytes)
        # Not a slice of self.bytes: arrays over it keep *this* object alive, and end it with the last of them.
        piece = np.frombuffer(self._mapping, np.uint8, nbytes, start)
        weakref.finalize(piece, self._release, start, end).atexit = False
        return piece

    def keep(self, nbytes: int) -> int:
        """The offset of bytes that are nobody else's until the arena ends."""
        return self._take(nbytes)[0]

    def _take(self, nbytes: int) -> tuple[int, int]:
        room = max(1, -(-nbytes // PAGE)) * PAGE
        with self._lock:
            returned = [self._returned.popleft() for _ in range(len(self._returned))]
            self._free = _merged([*self._free, *returned])
            for i, (start, end) in enumerate(self._free):
                if end - start >= room:
                    self._free[i : i + 1] = [(start + room, end)] if end - start > room else []
                    self._end = max(self._end, start + room)
                    return start, start + room
        raise MemoryError(f"No {nbytes} contiguous bytes of shared memory are left.")

    def offset(self, array: Array) -> int:
        """Where in this arena the array begins; -1 outside of it."""
        if not (array.nbytes and array.flags.writeable):
            return -1
        memory: Any = array  # its own ``ctypes`` takes ten times as long
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        start = address - self.address
        return start if 0 <= start < self.size else self._lent_offset(address) if self._lends else -1

    def lend(self, address: int, nbytes: int, file: int, lives: Callable[[], bool]) -> None:
        """Let all ranks reach memory that is not the arena's, but in a file; nothing happens where no row is free.

        Args:
            address: where the file is mapped, shared and from its beginning, as long as it lives.
            nbytes: of the file.
            file: its descriptor, open as long as it lives.
            lives: is it still there? Its addresses are anybody's afterwards.
        """
        with self._lock:
            if self._detached:
                return
            for row in [row for row, each in self._lends.items() if not each.lives()]:
                self.lent.table[row] = 0
                del self._lends[row]
            free = set(range(len(self.lent.table))) - set(self._lends)
            if free:
                row = min(free)
                self._lends[row] = Lending(self._unused, address, nbytes, file, lives)
                self.lent.table[row] = self._unused, nbytes, file, os.fstat(file).st_ino
                self._unused += -(-nbytes // PAGE) * PAGE

    def piece(self, offset: int, nbytes: int) -> Array:
        for each in list(self._lends.values()) if offset >= self.size else ():  # another thread may lend meanwhile
            if 0 <= offset - each.offset < each.nbytes:
                memory: Any = (ctypes.c_uint8 * nbytes).from_address(each.address + offset - each.offset)
                return np.frombuffer(memory, np.uint8)
        return super().piece(offset, nbytes)

    def _lent_offset(self, address: int) -> int:
        for each in list(self._lends.values()):
            if 0 <= address - each.address < each.nbytes and each.lives():
                return each.offset + address - each.address
        return -1

    def _release(self, start: int, end: int) -> None:
        """Runs wherever the last array dies.

        1. It may be amid allocate(), when the garbage collector comes by: so there is no lock here.
        2. It may be in a process that was forked from this one, where the memory still is the rank's.
        """
        if os.getpid() != self.ticket.pid:
            return
        if end - start > _KEEP_BYTES:
            self.forget(start, end - start, shared=not self._detached)
        self._returned.append((start, end))


def open_arena(ticket: Ticket) -> Arena:
    """Another rank's arena.

    Raises:
        OSError: the process is not to be seen from here (another container), or may not be looked into.
    """
    file = os.open(f"/proc/{ticket.pid}/fd/{ticket.file}", os.O_RDWR)
    try:
        arena = Arena(file, ticket.size, ticket.pid)
    except ValueError as error:  # the file is shorter
        raise OSError(str(error)) from None
    finally:
        os.close(file)
    if arena.bytes[:_TOKEN].tobytes() != ticket.token:
        raise OSError(f"Process {ticket.pid} is another one in this container.")
    return arena


def _merged(free: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Pieces in order; neighbours become one.

    Example:
        >>> _merged([(8, 12), (0, 4), (4, 8), (20, 24)])
        [(0, 12), (20, 24)]
    """
    merged: list[tuple[int, int]] = []
    for start, end in sorted(free):
        if merged and merged[-1][1] == start:
            start = merged.pop()[0]
        merged.append((start, end))
    return merged
