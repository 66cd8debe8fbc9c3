"""``Link``, the point-to-point interface that algorithms use, and ``Traffic``, what each rank sent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

Array = NDArray[Any]


class Link(Protocol):
    """A way from this rank to the others."""

    @property
    def rank(self) -> int:
        """This rank, 0 … size - 1."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    def sendrecv(self, send: Array | None, dest: int, recv: Array | None, source: int) -> None:
        """Send one array and receive another at the same time; ``None`` leaves that half out.

        Arrays are contiguous and one-dimensional; ``recv`` has the length that ``source`` sends.
        Between two ranks messages arrive in the order in which they were sent. Returns when ``recv`` is
        filled and ``send`` may be changed.
        """


@dataclass
class Traffic:
    """What one rank sent during one collective.

    Example:
        >>> Traffic(2, 80) + Traffic(1, 40)
        Traffic(messages=3, bytes=120)
    """

    messages: int = 0
    bytes: int = 0

    def sent(self, array: Array) -> None:
        self.messages += 1
        self.bytes += array.nbytes

    def __add__(self, other: Traffic) -> Traffic:
        return Traffic(self.messages + other.messages, self.bytes + other.bytes)
