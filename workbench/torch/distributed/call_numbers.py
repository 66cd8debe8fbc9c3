"""Names for calls that have none: a group's n-th call on one rank belongs to its n-th call on every other."""

from __future__ import annotations

from collections.abc import Hashable

_AT_ONCE = 64  # so many calls may be in flight before a number comes again
_LONGEST = 1 << 14  # of a search
_SOON = 16


class CallNumbers:
    """Numbers that come again where calls do: a training's later steps have the names of earlier ones.

    A known name costs four bytes on its way to rank 0, see :mod:`workbench.runtime.steady.cache`. A number depends on
    the calls *before* this one alone. So where ranks differ in a call, they use one name still, and the coordinator can
    say what differs.

    1. While nothing repeats itself, each call has a number of its own.
    2. The calls since the search began are searched for a repetition: by the longest beginning that is their end, too
       (the prefix function of Knuth, Morris and Pratt), in constant time for each call.
    3. Once found, the numbers of one round come again, until a call is unlike that of a round ago. A short repetition
       makes a round of several, for a name can be in flight only once.
    4. If that is soon, it was a repetition within a longer one (a step of many equal calls and some others): from then
       on one has to last twice as long to be believed.

    Example:
        >>> numbers = CallNumbers(at_once=3)
        >>> [numbers.next(what) for what in "abababababab"]
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 5, 6, 7]
        >>> [numbers.next(what) for what in "bca"]
        [8, 9, 10]
    """

    def __init__(self, at_once: int = _AT_ONCE) -> None:
        self._at_once = self._believed = at_once  # calls that have to come again
        self._unused, self._limit = 0, 4 * at_once
        self._begin_anew()

    @property
    def repeats(self) -> bool:
        """Is the last call part of a repetition?"""
        return self._length > 0

    def _begin_anew(self) -> None:
        self._calls: list[Hashable] = []  # in the search; of a repetition that was found, one period
        self._borders: list[int] = []  # by call, the length of the longest beginning that ends there
        self._first = self._length = self._at = 0  # of the round
        self._used = 0  # calls since it was found

    def next(self, call: Hashable) -> int:
        """The number of a call.

        Args:
            call: what is equal where calls are alike: verb, dtype, shape, ….
        """
        if self._length:
            number, expected = self._first + self._at, self._calls[self._at % len(self._calls)]
            self._at, self._used = (self._at + 1) % self._length, self._used + 1
            if call != expected:
                if self._used < _SOON * self._believed:
                    self._believed = min(2 * self._believed, _LONGEST // 2)
                self._limit = 4 * self._believed
                self._begin_anew()
            return number
        self._unused += 1
        self._search(call)
        return self._unused - 1 - self._length

    def _search(self, call: Hashable) -> None:
        calls, border = self._calls, self._borders[-1] if self._borders else 0
        calls.append(call)
        while border and calls[border] != call:
            border = self._borders[border - 1]
        border += len(calls) > 1 and calls[border] == call
        self._borders.append(border)
        period = len(calls) - border
        if border >= max(period, self._believed):
            self._calls, self._borders = calls[-period:], []
            self._first, self._length = self._unused, period * -(-self._at_once // period)
            self._unused += self._length
        elif len(calls) > self._limit:  # what came before the training repeats itself as little as what is in it
            self._begin_anew()
            self._limit = min(2 * self._limit, _LONGEST)
