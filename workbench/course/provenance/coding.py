"""Numbers that tell where they come from.

Chunk c of rank r holds one number, ``2 ** (bits * place)``, in all of its elements; each pair (r, c) has a place of its
own. A sum of such numbers has, in the digit of each pair, how often it is in the sum. Floats of 64 bits hold whole
numbers of 53 bits exactly, so four ranks with four chunks have 3 bits each: a chunk may be counted up to seven times.
More would carry into the next digit. So whoever concludes something from a sum codes the inputs a second time with the
places the other way round, and believes what both say (``explain.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Content = Mapping[tuple[int, int], int]
"""(rank, chunk) → how often it is in a sum."""
_BITS = 50
_LEAST = 2


@dataclass(frozen=True)
class Code:
    """The digits of n ranks with some chunks each.

    Args:
        n: ranks.
        chunks: of each rank's array.
        backwards: the places the other way round.

    Raises:
        ValueError: there are more pairs than digits.

    Example:
        >>> code = Code(2, 2)
        >>> mine, other = code.array(0, 4), code.array(1, 4)
        >>> code.read((mine + other + other)[2:])
        {(0, 1): 1, (1, 1): 2}
        >>> code.read(mine) is None  # its two chunks are not the same
        True
    """

    n: int
    chunks: int
    backwards: bool = False

    def __post_init__(self) -> None:
        if self.bits < _LEAST:
            raise ValueError(f"{self.n} ranks with {self.chunks} chunks each: 64 bits have no digit for each of them.")

    @property
    def bits(self) -> int:
        return _BITS // (self.n * self.chunks)

    def number(self, rank: int, chunk: int) -> float:
        """What stands in each element of that chunk."""
        place = rank * self.chunks + chunk
        return float(1 << self.bits * (self.n * self.chunks - 1 - place if self.backwards else place))

    def array(self, rank: int, length: int) -> Array:
        """A rank's array, cut as ``np.array_split`` does it."""
        pieces = np.array_split(np.zeros(length), self.chunks)
        return np.concatenate([piece + self.number(rank, chunk) for chunk, piece in enumerate(pieces)])

    def read(self, values: Any) -> Content | None:
        """What is in a sum; None if it is no such sum, or not the same in all elements."""
        if not isinstance(values, (np.ndarray, np.generic, float)):
            return None
        array = np.asarray(values)
        if not array.size or array.dtype.kind != "f" or array.min() != array.max():
            return None
        one = float(array.reshape(-1)[0])
        if not (0 <= one < 2.0**53 and one.is_integer()):
            return None
        digit, whole = (1 << self.bits) - 1, int(one)
        found = {}
        for rank in range(self.n):
            for chunk in range(self.chunks):
                place = int(self.number(rank, chunk)).bit_length() - 1
                if times := whole >> place & digit:
                    found[rank, chunk] = times
        return found


@dataclass(frozen=True)
class Coded:
    """How an exercise is run with coded inputs.

    Args:
        inputs: from the ranks' coded arrays, the arguments after ``comm`` of each rank.
        returned: from a result, the rank and n: which chunk it should be, and its values.
        wanted: of (rank, chunk, n): which ranks' chunks are to be in it, once each.
        sums: is something added? Else a value is passed on as it is.
        chunked: are there n chunks? Else one.
        n: ranks of the run that is drawn.
        length: of an array there.
    """

    inputs: Callable[[Sequence[Array]], Sequence[tuple[Any, ...]]]
    returned: Callable[[Any, int, int], Mapping[int, Any]]
    wanted: Callable[[int, int, int], Sequence[int]]
    sums: bool = True
    chunked: bool = True
    n: int = 4
    length: int = 100_000

    def code(self, n: int, backwards: bool = False) -> Code:
        return Code(n, n if self.chunked else 1, backwards)

    def right(self, rank: int, chunk: int, n: int) -> Content:
        """What is to be in a rank's chunk at the end."""
        return {(one, chunk): 1 for one in self.wanted(rank, chunk, n)}


def pieces(values: Any, n: int) -> Mapping[int, Any]:
    """A whole array, by chunk; nothing if it is no such array.

    Example:
        >>> {chunk: piece.tolist() for chunk, piece in pieces(np.arange(3), 2).items()}
        {0: [0, 1], 1: [2]}
    """
    whole = isinstance(values, np.ndarray) and values.ndim == 1
    return dict(enumerate(np.array_split(values, n))) if whole else {}
