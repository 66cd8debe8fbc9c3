"""Names that ranks give by counting: equal on all ranks as long as all count the same things in one order."""

from __future__ import annotations

from collections import Counter


class Names:
    """The counters of one rank in one job. All ranks begin anew at the same point: after a cell that failed.

    Attributes:
        users: (name, process set) → who uses the name: which object, the how many-th to come, and the how many-th made;
            see :class:`workbench.job.requests.OrderOfUse`.
        failures: how many collectives and cells had failed when the counting began. It is a part of each name, so that
            a name of before the failure, which another rank may still have in flight, is not met again.

    Example:
        >>> names = Names()
        >>> names.next("allreduce"), names.next("allreduce"), names.next("allgather")
        ('allreduce.noname.0', 'allreduce.noname.1', 'allgather.noname.0')
    """

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()
        self.users: dict[tuple[str, int], dict[tuple[int, ...], tuple[int, int]]] = {}
        self.failures = 0

    def next(self, kind: str, process_set: int = 0) -> str:
        """A name for a tensor that the caller did not name."""
        since = f"{self.failures}." if self.failures else ""
        self._counts[kind, process_set] += 1
        return f"{kind}.noname.{since}{self._counts[kind, process_set] - 1}"

    def give_back(self, kind: str, process_set: int = 0) -> None:
        """The last name was not used, for the call was refused; the other ranks have not used it either."""
        self._counts[kind, process_set] -= 1

    def restart(self, failures: int | None = None) -> None:
        """Count from 0 again."""
        self._counts.clear()
        self.users = {}
        if failures is not None:
            self.failures = failures


__all__ = ["Names"]
