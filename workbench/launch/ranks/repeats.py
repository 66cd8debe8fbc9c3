"""What several ranks print alike is shown once: an exception with the same traceback, and notices of TensorFlow."""

from __future__ import annotations

import itertools
import math
import re
import time
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

_HELD_S = 0.25  # so long a traceback waits for the same one of others
_MOST = 1 << 16  # bytes of a rank that wait
_TRACEBACK = b"Traceback (most recent call last):\n"
_GOES_ON = re.compile(rb"\s|Traceback \(most|The above exception was|During handling of the above")
_NOTICES = (
    re.compile(rb"WARNING: All log messages before absl::InitializeLog\(\)"),
    re.compile(rb"I\d{4} .* oneDNN custom operations are on"),
    re.compile(rb"I\d{4} .* This TensorFlow binary is optimized to use"),
    re.compile(rb"To enable the following instructions: .* rebuild TensorFlow"),
)


class Piece(NamedTuple):
    """What is to be shown now: of one rank, or of several that print the same."""

    ranks: list[int]
    name: str
    text: bytes


@dataclass
class _Shown:
    lines: list[bytes]
    ranks: set[int]


class Repeats:
    r"""Holds back what a rank prints from a traceback on, for a moment; the order within a rank stays.

    Attributes:
        due: when :meth:`release` is to be called, by ``time.monotonic``; infinite if nothing waits.

    Example:
        >>> repeats = Repeats()
        >>> trace = b"Traceback (most recent call last):\n  File x\nValueError: no\n"
        >>> [repeats.feed(rank, "stderr", trace) for rank in range(2)], repeats.feed(0, "stdout", b"bye\n")
        ([b'', b''], b'')
        >>> [(ranks, name) for ranks, name, text in repeats.release()]
        [([0, 1], 'stderr'), ([0], 'stdout')]
    """

    def __init__(self) -> None:
        self._held = dict[int, list[tuple[str, bytes]]]()
        self._until = dict[int, float]()
        self._shown = deque[_Shown](maxlen=8)
        self._noticed = set[re.Pattern[bytes]]()
        self.due = math.inf

    def feed(self, rank: int, name: str, text: bytes, at_line_start: bool = True) -> bytes:
        """What is to be shown at once of what a rank printed."""
        if name == "stderr":
            text = self._once(text)
        if rank in self._held:
            self._held[rank].append((name, text))
            if sum(len(each) for _, each in self._held[rank]) > _MOST:
                self._until[rank] = self.due = 0.0
            return b""
        start = _begin(text, at_line_start) if name == "stderr" else -1
        if start < 0:
            return text
        self._held[rank] = [(name, text[start:])]
        self._until[rank] = time.monotonic() + _HELD_S
        self.due = min(self._until.values())
        return text[:start]

    def release(self, everything: bool = False) -> list[Piece]:
        """What was held back; a traceback that has only begun waits on for its end, unless it is ``everything``."""
        now, found = time.monotonic(), list[Piece]()
        whole = {rank: _joined(parts) for rank, parts in self._held.items()}
        ready = [r for r in whole if everything or self._until[r] <= now or _block(whole[r][0][1].splitlines(True))]
        held = {rank: whole[rank] for rank in ready}
        for rank in ready:
            del self._held[rank], self._until[rank]
        self.due = min(self._until.values(), default=math.inf)
        lines = {rank: parts[0][1].splitlines(keepends=True) for rank, parts in held.items()}
        while lines:
            first, k = next(iter(lines)), _block(next(iter(lines.values())))
            group = [rank for rank in sorted(lines) if k and lines[rank][:k] == lines[first][:k]] or [first]
            before = next((each for each in self._shown if k and each.lines[:k] == lines[first][:k]), None)
            n = _common([lines[rank] for rank in group] + ([before.lines] if before else []))
            if before and not before.ranks & {*group}:
                said = b"The same traceback as that of rank %d, above: %b" % (min(before.ranks), lines[first][k - 1])
                found.append(Piece(group, "stderr", said))
                before.ranks |= {*group}
            else:
                found.append(Piece(group, "stderr", b"".join(lines[first][:n])))
                self._shown.append(_Shown(lines[first], {*group}))
            for rank in group:
                rest = b"".join(lines.pop(rank)[n:])
                found += [Piece([rank], *part) for part in (("stderr", rest), *held[rank][1:]) if part[1]]
        return found

    def _once(self, text: bytes) -> bytes:
        """Without the notices that were shown already."""
        if not any(each.search(text) for each in _NOTICES):
            return text
        return b"".join(line for line in text.splitlines(keepends=True) if not self._known(line))

    def _known(self, line: bytes) -> bool:
        found = next((each for each in _NOTICES if each.match(line)), None)
        known = found in self._noticed
        if found:
            self._noticed.add(found)
        return known


def _joined(parts: list[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
    """What a rank wrote to one stream in one go is one part."""
    groups = itertools.groupby(parts, key=lambda part: part[0])
    return [(name, b"".join(text for _, text in group)) for name, group in groups]


def _begin(text: bytes, at_line_start: bool) -> int:
    """Where a traceback begins, or -1."""
    if at_line_start and text.startswith(_TRACEBACK):
        return 0
    return text.find(b"\n" + _TRACEBACK) + 1 or -1


def _block(lines: list[bytes]) -> int:
    """How many lines a traceback has, with the first line of its message; 0 if that is not there yet."""
    ends = [i for i, line in enumerate(lines) if not _GOES_ON.match(line)]
    return ends[0] + 1 if ends and lines[ends[0]].endswith(b"\n") else 0


def _common(texts: list[list[bytes]]) -> int:
    """With how many lines all begin."""
    k = 0
    while all(k < len(each) and each[k] == texts[0][k] and each[k].endswith(b"\n") for each in texts):
        k += 1
    return k
