r"""What one rank has printed, as a terminal would show it: lines, and in each the last text after a ``\r``."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_PIECES = re.compile(  # ends of lines; cursor up; all other movements and control characters, but not colours
    r"\r\n|[\n\r]|\x1b\[(\d*)A|\x1b\[[0-9;?]*[B-Zac-ln-z]|\x1b[()][A-Z0-9]|[\x00-\x08\x0b\x0c\x0e-\x1a]"
)
_REPLACED = re.compile(r"\r[^\n\r\x1b]+(?=\r[^\n\r\x1b])")  # at once by what follows
_UP = "\x1b["
_LINE = 64  # bytes that a line takes besides its text


@dataclass(frozen=True, slots=True)
class Line:
    """A line of text.

    Args:
        text: without its end; a terminal's codes for colours are left in it.
        error: was it printed to stderr?
    """

    text: str
    error: bool = False


@dataclass(frozen=True, slots=True)
class Bundle:
    """What ``display`` has shown, or the value of a cell's last line.

    Args:
        key: equal for equal bundles.
        data: by MIME type.
        metadata: as the kernel protocol has it.
        display: the id by which it may be replaced later, if it has one.
        size: how many bytes it takes, about.
    """

    key: int
    data: dict[str, Any]
    metadata: dict[str, Any]
    display: str | None = None
    size: int = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bundle) and self.key == other.key and self.data == other.data

    def __hash__(self) -> int:
        return self.key


Item = Line | Bundle


def together(items: Sequence[Item]) -> Iterator[list[Line] | Bundle]:
    """Lines of one stream that follow each other as a list, and bundles."""
    for error, same in itertools.groupby(items, lambda item: item.error if isinstance(item, Line) else None):
        if error is None:
            yield from (each for each in same if isinstance(each, Bundle))
        else:
            yield [each for each in same if isinstance(each, Line)]


class Screen:
    r"""The lines and pictures of one rank, in the order in which they came.

    Attributes:
        items: the lines that are complete or begun, and bundles.
        size: how many bytes they take, about.

    Example:
        >>> screen = Screen()
        >>> screen.write("step 1\nstep 2: 10%\rstep 2: 90%")
        >>> [each.text for each in screen.items]
        ['step 1', 'step 2: 90%']
        >>> screen.write("\n\n\x1b[Astep 3")  # a second progress bar moves the cursor up by one line
        >>> [each.text for each in screen.items]
        ['step 1', 'step 2: 90%', 'step 3']
    """

    def __init__(self) -> None:
        self.items: list[Item] = []
        self.size = 0
        self._at: int | None = None  # the line that the next text goes to; None: a new one
        self._again = False  # the next text replaces this line

    @property
    def complete(self) -> int:
        """How many of the items at the beginning have ended."""
        return len(self.items) if self._at is None else min(self._at, len(self.items))

    def write(self, text: str, error: bool = False) -> None:
        begin, text = 0, _REPLACED.sub("", text)
        for found in _PIECES.finditer(text):
            if found.start() > begin:
                self._put(text[begin : found.start()], error)
            begin = found.end()
            self._move(found[0], found[1], error)
        if begin < len(text):
            self._put(text[begin:], error)

    def add(self, bundle: Bundle) -> None:
        self.items.append(bundle)
        self.size += bundle.size
        self._at, self._again = None, False

    def update(self, bundle: Bundle) -> None:
        """Replace what was displayed under the same id."""
        for i, each in enumerate(self.items):
            if isinstance(each, Bundle) and each.display == bundle.display:
                self.items[i] = bundle
                self.size += bundle.size - each.size

    def _put(self, text: str, error: bool) -> None:
        old = self.items[self._at] if self._at is not None else None
        if isinstance(old, Line) and self._at is not None and old.error == error:
            self.items[self._at] = Line(text if self._again else old.text + text, error)
            self.size += len(text) - (len(old.text) if self._again else 0)
        else:
            self._at = len(self.items)
            self._new(text, error)
        self._again = False

    def _new(self, text: str, error: bool) -> None:
        self.items.append(Line(text, error))
        self.size += len(text) + _LINE

    def _move(self, piece: str, up: str | None, error: bool) -> None:
        if piece in ("\n", "\r\n"):
            if self._at is None:
                self._new("", error)
                self._at = len(self.items) - 1
            self._at = self._at + 1 if self._at + 1 < len(self.items) else None
            self._again = self._at is not None
        elif piece == "\r":
            self._again = True
        elif piece.startswith(_UP) and up is not None:
            at = (len(self.items) if self._at is None else self._at) - int(up or 1)
            self._at, self._again = max(0, at) if self.items else None, True
