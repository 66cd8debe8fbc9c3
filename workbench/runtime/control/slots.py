"""Slots: on one machine all ranks read in shared memory what all have announced, and each decides by itself.

Each rank writes its announcements of known names into a slot of its own, as cache ids, with the values of small
tensors. If all ranks announce the same ids in the same order, each place where some rank's record ends is the end of a
*unit*, which is complete as soon as all ranks have announced it: all ranks see the same units, whenever they look. So
nobody is asked: a decision costs one write and one read. What is new, differs, fails or leaves goes to rank 0 as ever.
``slots`` 0 turns it off.

Slots are used for a *term*, which rank 0 opens, when steps are alike, and closes before it decides anything else:

1. Rank 0 clears the mark in its slot, and reads all slots after that. What is complete there is the term's last unit.
2. A rank that finds a unit complete looks at the mark after that. If the mark is there still, rank 0 will see the
   unit, too. If not, it waits for rank 0's word.
3. Rank 0's word, a response of kind ``SLOTS``, says how many ids were complete, and how many it saw of each rank. It
   counts the rest as if that had been announced to it; a rank that wrote more announces that anew.
"""

from __future__ import annotations

import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence

from workbench.common.fence import Fence
from workbench.core.messages import Announce, Request
from workbench.core.verbs import VERBS
from workbench.runtime.control.codec import decode_request, encode_request
from workbench.runtime.steady.steady_state import Record, Sequences, Unit

_WRITTEN, _WHEN, _DONE, _ASLEEP, _MARK = 0, 1, 8, 16, 24  # numbers of 8 bytes; each cache line has one writer
_HEADER = 256  # bytes before the ring of records
_TERM = 40  # bits below a term's number: 8-byte words since it began
_MOST_TERMS = 1 << 22
UNNAMED = 0
"""In the place of an id: the value is a request in full, of an unnamed tensor, which no response is kept of."""
_RECORD = struct.Struct("<II")  # its bytes, and how many ids; then the ids, the lengths of their values, the values


class Slot:
    """One rank's slot: its counters, and a ring of records. Only its owner writes there."""

    def __init__(self, memory: memoryview) -> None:
        self.numbers = memory[:_HEADER].cast("q")
        self.ring = memory[_HEADER:]
        self.at = 0  # bytes of the term that were read

    def end(self, term: int) -> int:
        """How many bytes of this term are written."""
        number = self.numbers[_WRITTEN]
        return 8 * (number & ((1 << _TERM) - 1)) if number >> _TERM == term else 0

    def read(self, end: int) -> Iterator[Record]:
        """What is new, up to so many bytes of the term."""
        size = len(self.ring)
        while self.at < end:
            at = self.at % size
            length, n = _RECORD.unpack_from(self.ring, at)
            if not length:  # the rest of the ring was too short for the next one
                self.at += size - at
                continue
            numbers = struct.unpack_from(f"<{2 * n}I", self.ring, at + _RECORD.size)
            values: dict[int, memoryview] = {}
            start = at + _words(_RECORD.size + 8 * n)
            if any(numbers[n:]):
                for i, nbytes in enumerate(numbers[n:]):
                    if nbytes:
                        values[i] = self.ring[start : start + nbytes]
                        start += _words(nbytes)
            self.at += length
            yield Record(numbers[:n], values)


class Slots:
    """All ranks' slots, seen from one of them.

    The coordinator, on rank 0 alone, opens and closes terms. All else is for whoever does the engine's work.

    Args:
        rank: this one.
        size: number of ranks.

    Attributes:
        writes: may this rank write?
        last: the rank that was seen to come last.
        differs: two ranks have not announced the same, so that no unit is ever complete until rank 0 counts.
        heard: is called for each record of each rank, as it is read.

    Example:
        >>> one, other = (Slots(rank, 2) for rank in range(2))
        >>> memory = [memoryview(bytearray(4096)) for _ in range(2)]
        >>> one.connect(memory, [print] * 2); other.connect(memory, [print] * 2)
        >>> term = one.open(); one.join(term, 5); other.join(term, 5)
        >>> one.write(Announce(0, (7, 8), 5)), one.take(), other.write(Announce(1, (7,), 5)), other.take().ids
        (True, None, True, (7,))
        >>> other.write(Announce(1, (8,), 5)), other.take().ids, one.take().ids, one.take().ids
        (True, (8,), (7,), (8,))
    """

    def __init__(self, rank: int, size: int) -> None:
        self._rank, self._size = rank, size
        self._slots: list[Slot] = []
        self._wakes: Sequence[Callable[[], object]] = ()
        self._lock = threading.Lock()  # for all below: on rank 0 the coordinator closes a term amid a look
        self._order = Fence()  # within the lock
        self._term = self._terms = 0  # 0: none; how many there were
        self.writes = False
        self._seen = 0  # the decision that opened the term
        self._position = self._taken = self._own = 0  # ids in units; in units taken; that this rank has written
        self._sent = deque[tuple[Announce, int, int]]()  # with how many ids, and bytes, were written after it
        self._freed = 0  # bytes that all have read
        self._sequences = Sequences(size)
        self._rest: list[Unit] = []  # complete when the term was closed
        self._stuck: tuple[int, ...] = ()
        self.last = 0
        self.differs = False
        self.heard: Callable[[int, Record], None] | None = None

    def connect(self, memory: Sequence[memoryview], wakes: Sequence[Callable[[], object]]) -> None:
        """Use these slots, by rank; ``wakes`` end the sleep of each rank. Until then no term is opened."""
        self._slots, self._wakes = [Slot(each) for each in memory], wakes

    def disconnect(self) -> None:
        """Let go of the memory: the job has ended."""
        with self._lock:
            self.writes, self._term = False, 0
            self._slots.clear()

    # --- the engine ----------------------------------------------------------------------------------

    def join(self, term: int, seen: int) -> None:
        """Rank 0 has opened a term, in decision ``seen``: write from now on what was announced after reading that."""
        with self._lock:
            if self._term != term:
                self._begin(term)
            self._seen, self.writes = seen, self.is_open()

    def write(self, event: Announce) -> bool:
        """Announce known names; False if they have to go to rank 0."""
        if not self.writes or event.seen != self._seen:
            return False
        n, lengths, short = len(event.items), [0] * len(event.items), _short(event)
        for i, value in short.values.items():
            lengths[i] = len(value)
        try:
            ids = struct.pack(f"<{2 * n}I", *short.items, *lengths)
        except struct.error:  # a new name
            return False
        padded = [value.ljust(_words(len(value)), b"\0") for value in short.values.values()]
        record = b"".join((ids.ljust(_words(8 * n), b"\0"), *padded))
        with self._lock:
            return self.writes and self._append(event, n, record)

    def _append(self, event: Announce, n: int, record: bytes) -> bool:
        own, length = self._slots[self._rank], _RECORD.size + len(record)
        end, size = own.end(self._term), len(own.ring)
        at = end % size
        skipped = size - at if at + length > size else 0
        if not self.is_open() or end + skipped + length > self._room(end + skipped + length):
            return False
        if skipped:
            _RECORD.pack_into(own.ring, at, 0, 0)
            at = 0
        _RECORD.pack_into(own.ring, at, length, n)
        own.ring[at + _RECORD.size : at + length] = record
        end += skipped + length
        self._own += n
        self._sent.append((event, self._own, end))
        self._order()  # the record, then the count
        own.numbers[_WHEN] = time.monotonic_ns()
        own.numbers[_WRITTEN] = self._term << _TERM | end // 8
        return True

    def _room(self, wanted: int) -> int:
        """Up to how many bytes of the term this rank may write: over what all have read."""
        size = len(self._slots[self._rank].ring)
        if wanted > self._freed + size or len(self._sent) > 64:
            done = min(slot.numbers[_DONE] - (self._term << _TERM) for slot in self._slots)
            while self._sent and self._sent[0][1] <= done:
                self._freed = self._sent.popleft()[2]
        return self._freed + size

    def spin(self, until: float) -> Unit | None:
        """:meth:`take`, again and again until a moment, as long as that makes sense."""
        while True:
            before = [slot.numbers[_WRITTEN] for slot in self._slots]
            if (unit := self.take()) or self.differs or not self.writes:
                return unit
            while before == [slot.numbers[_WRITTEN] for slot in self._slots]:
                if time.monotonic() >= until:
                    return None

    def take(self) -> Unit | None:
        """The next unit, if it is complete."""
        if not self._term:
            return None
        with self._lock:
            if not (n := self._complete()):
                return None
            self._order()
            if not self.is_open():  # rank 0 may not have seen it
                return None
            unit = self._pop(n)
            self._taken = self._position
            for rank, slot in enumerate(self._slots):
                if slot.numbers[_ASLEEP] and rank != self._rank:
                    self._wakes[rank]()
        return unit

    def finish(self, complete: int, seen: Sequence[int]) -> tuple[list[Unit], list[Announce]]:
        """Rank 0 has closed the term; the last units, and what this rank has to announce anew.

        Args:
            complete: how many ids of the term are in units.
            seen: how many ids of each rank rank 0 has seen.
        """
        with self._lock:
            units, self._rest = self._rest, []
            while self._position < complete:
                n = self._complete()
                assert n, f"{complete} ids were complete, and after {self._position} nothing is there"
                units.append(self._pop(n))
            self.writes, self._term = False, 0
            return units, [event for event, own, _ in self._sent if own > seen[self._rank]]

    def awaits_word(self) -> bool:
        """Has rank 0 closed the term, and may it not have seen what this rank has announced last?"""
        return bool(self._sent and self._rank and self._term) and not self.is_open()

    def sleep(self, on: bool) -> None:
        """This rank is about to sleep, so it wants to be woken; or it is awake. Look once more after that."""
        if self._slots:
            with self._lock:
                self._slots[self._rank].numbers[_ASLEEP] = on
                self._order()

    # --- rank 0's coordinator ------------------------------------------------------------------------

    def open(self) -> int:
        """Begin a term; its number, or 0 where there are no slots."""
        with self._lock:
            if not self._slots or self._terms >= _MOST_TERMS:
                return 0
            self._terms += 1
            self._begin(self._terms)
            self._slots[0].numbers[_MARK] = self._terms
        return self._terms

    def is_open(self) -> bool:
        return bool(self._slots) and self._slots[0].numbers[_MARK] == self._term != 0

    def close(self) -> tuple[int, list[int], list[tuple[Announce, float]]]:
        """End the term; see :class:`workbench.runtime.coordinators.Agreement`."""
        with self._lock:
            self.writes = False
            if not self._slots:
                return 0, [], []
            self._slots[0].numbers[_MARK] = 0
            self._order()
            while n := self._complete():
                self._rest.append(self._pop(n))
            said, left = [self._position] * self._size, list[tuple[Announce, float]]()
            for rank, (ids, values) in self._sequences.take():
                said[rank] += len(ids)
                event = Announce(rank, ids, self._seen, {i: bytes(value) for i, value in values.items()})
                left.append((_in_full(event), self._slots[rank].numbers[_WHEN] / 1e9))
            return self._position, said, left

    def stuck(self) -> bool:
        """Has some rank announced what is not complete, and nothing has changed since the last call?"""
        with self._lock:
            before, self._stuck = self._stuck, tuple(slot.numbers[_WRITTEN] for slot in self._slots)
            return self.is_open() and before == self._stuck and len(set(before)) > 1

    # --- both ---------------------------------------------------------------------------------------

    def _begin(self, term: int) -> None:
        self._term, self._position, self._taken, self._own, self._freed = term, 0, 0, 0, 0
        self._sent.clear()
        self._rest, self.differs, self._sequences = [], False, Sequences(self._size)
        for slot in self._slots:
            slot.at = 0
        own = self._slots[self._rank].numbers
        own[_DONE] = term << _TERM
        self._order()
        own[_WRITTEN] = term << _TERM

    def _complete(self) -> int:
        """How many ids the next unit has; 0 if not all of it is there."""
        for rank, slot in enumerate(self._slots):
            if slot.at >= (end := slot.end(self._term)):
                continue
            self._order()  # the count, then the records
            for record in slot.read(end):
                self._sequences.add(rank, record)
                self.last = rank
                if self.heard:
                    self.heard(rank, record)
        n = self._sequences.complete()
        self.differs = n is None or (n > 0 and self._texts_differ(n))
        return 0 if self.differs else n or 0

    def _texts_differ(self, n: int) -> bool:
        """Are there unnamed tensors about which the ranks have not said the same?"""
        unnamed = [i for i, each in enumerate(self._sequences.first(0).ids[:n]) if each == UNNAMED]
        heads = [self._sequences.first(rank) for rank in range(self._size)] if unnamed else []
        return any(len({bytes(head.values[i]) for head in heads}) > 1 for i in unnamed)

    def _pop(self, n: int) -> Unit:
        self._position += n
        return self._sequences.pop(n)

    def release(self) -> None:
        """The values of all units that were taken are used: their memory may be written to again."""
        self._slots[self._rank].numbers[_DONE] = (self._term << _TERM) + self._taken


def _short(event: Announce) -> Announce:
    """As it is written: of an unnamed tensor the request is the value, and the data plane moves the tensor's own."""
    if not any(isinstance(item, Request) for item in event.items):
        return event
    items, values = list(event.items), dict(event.values)
    for i, item in enumerate(event.items):
        if isinstance(item, Request) and _is_unnamed(item):
            items[i], values[i] = UNNAMED, encode_request(item)
    return Announce(event.rank, tuple(items), event.seen, dict(sorted(values.items())))


def _in_full(event: Announce) -> Announce:
    """Undo :func:`_short`."""
    texts = {i: event.values[i] for i, item in enumerate(event.items) if item == UNNAMED}
    items = [decode_request(texts[i]) if i in texts else item for i, item in enumerate(event.items)]
    values = {i: value for i, value in event.values.items() if i not in texts}
    return Announce(event.rank, tuple(items), event.seen, values)


def _is_unnamed(request: Request) -> bool:
    more = request.process_set or request.group or request.progress or request.ranks or request.priority
    return ".noname." in request.name and request.kind in VERBS and request.offset == -1 and not more


def _words(nbytes: int) -> int:
    """Rounded up to whole words of 8 bytes."""
    return (nbytes + 7) & ~7
