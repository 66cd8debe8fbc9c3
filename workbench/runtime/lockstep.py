"""The coordinator's quick way: ranks that announce the same known names in the same order, as in every steady step.

Then names need not be counted one by one. Each rank's announcements make a sequence of cache ids, and what all
sequences begin with is complete. Whatever does not fit (another order, a new name, an event of another kind) sends
everybody back to counting; nothing is lost by that but time.
"""

from __future__ import annotations


class Lockstep:
    """What each rank has announced and not all others have, as cache ids in the order of announcement.

    Example:
        >>> lockstep = Lockstep(size=2)
        >>> lockstep.add(0, (7, 8, 9)), lockstep.add(1, (7, 8)), lockstep.add(1, (9,))
        ([], [7, 8], [9])
        >>> lockstep.add(0, (7, 8)), lockstep.add(1, (8,))
        ([], None)
        >>> lockstep.take()
        {0: [7, 8], 1: [8]}
    """

    def __init__(self, size: int) -> None:
        self._ahead: dict[int, list[int]] = {rank: [] for rank in range(size)}
        self.values: dict[tuple[int, int], bytes] = {}
        """By (rank, id), where they came with the announcement."""

    def add(self, rank: int, ids: tuple[int, ...], values: dict[int, bytes] | None = None) -> list[int] | None:
        """A rank's next ids; return those that are complete now, or None if the ranks' orders differ."""
        self._ahead[rank] += ids
        for index, value in (values or {}).items():
            self.values[rank, ids[index]] = value
        shortest = min(map(len, self._ahead.values()))
        first = self._ahead[rank][:shortest]
        if any(one[:shortest] != first for one in self._ahead.values()):
            return None
        for one in self._ahead.values():
            del one[:shortest]
        return first

    def __bool__(self) -> bool:
        return any(self._ahead.values())

    def take(self) -> dict[int, list[int]]:
        """All of it, by rank: now it is to be counted one by one. The values stay."""
        ahead, self._ahead = self._ahead, {rank: [] for rank in self._ahead}
        return ahead
