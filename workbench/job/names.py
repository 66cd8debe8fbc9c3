"""Names that ranks give by counting: equal on all ranks as long as all count the same things in one order."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass
from time import perf_counter_ns

from workbench.errors import CollectiveError

_REFUSED = (
    "A collective failed on this rank in an earlier cell, and this cell was sent before the notebook knew of it, so "
    "unnamed tensors may have other numbers on the other ranks. Run this cell again; or give its tensors names."
)
_COUNTED = re.compile(r"[.]noname[.](r\d+[.])?(e\d+[.])?\d+\Z")


@dataclass
class Rounds:
    """What an object has sent, and done; see :meth:`workbench.job.requests.OrderOfUse.note_round`.

    Attributes:
        number: how often all its gradients were reduced since counting began: the same on all ranks.
        steps: how many it has made since then.
        first: of the names of this round, by the alphabet: the same on all ranks.
        carrier: which request of this round tells the progress; "": none.
    """

    number: int = 0
    steps: int = 0
    first: str = ""
    carrier: str = ""


class Names:
    """The counters of one rank in one job.

    All ranks begin anew at the same point:

    1. after a cell that failed on some rank: with the next cell;
    2. after an error of a collective: where it is raised. One rank alone may have called what failed, and each may have
       numbered unlike many tensors since. A rank to which the error is not raised, for it did not wait, counts on. Its
       names are met by no other rank then, and that is an error again, and no wrong sum.

    Attributes:
        users: (name, process set) → who uses the name: which object, the how many-th to come, and the how many-th made;
            see :class:`workbench.job.requests.OrderOfUse`.
        rounds: object → its rounds.
        failures: how often something had failed when the counting began. It is a part of each name, so that a name of
            before the failure, which another rank may still have in flight, is not met again.
        refused: is there no number to be had? A collective has failed here, and not all ranks count anew.

    Example:
        >>> names = Names()
        >>> names.next("allreduce"), names.next("allreduce"), names.next("allgather")
        ('allreduce.noname.0', 'allreduce.noname.1', 'allgather.noname.0')
        >>> names.heard(5, frozenset({0}), perf_counter_ns())
        >>> names.next("allreduce"), names.next("allreduce", process_set=1)
        ('allreduce.noname.e5.0', 'allreduce.noname.0')
    """

    def __init__(self, failures: int = 0) -> None:
        self._counts: Counter[tuple[str, int]] = Counter()
        self._heard: dict[int, int] = {}  # process set → the decision whose error was raised here last
        self._since = perf_counter_ns()
        self.users: dict[tuple[str, int], dict[tuple[int, ...], tuple[int, int]]] = {}
        self.rounds: defaultdict[tuple[int, ...], Rounds] = defaultdict(Rounds)
        self.failures = failures
        self.refused = False

    @staticmethod
    def counted(name: str) -> bool:
        """Is this a name that :meth:`next` has made?

        Example:
            >>> Names.counted("barrier.noname.3"), Names.counted("allreduce.noname.0.1"), Names.counted("allreduce.x")
            (True, False, False)
        """
        return _COUNTED.search(name) is not None

    def next(self, kind: str, process_set: int = 0) -> str:
        """A name for a tensor that the caller did not name.

        Raises:
            CollectiveError: it could be another tensor's on the other ranks.
        """
        since = self.since(process_set)
        self._counts[kind, process_set] += 1
        return f"{kind}.noname.{since}{self._counts[kind, process_set] - 1}"

    def since(self, process_set: int = 0) -> str:
        """A part of each name, that is another one after each failure: what is counted begins anew with it.

        Raises:
            CollectiveError: not all ranks count anew.
        """
        if self.refused:
            raise CollectiveError(_REFUSED)
        heard = f"e{self._heard[process_set]}." if process_set in self._heard else ""
        return (f"r{self.failures}." if self.failures else "") + heard

    def give_back(self, kind: str, process_set: int = 0) -> None:
        """The last name was not used, for the call was refused; the other ranks have not used it either."""
        self._counts[kind, process_set] -= 1

    def heard(self, decision: int, sets: frozenset[int], submitted: int) -> None:
        """An error is raised here; see :attr:`workbench.core.engine.Engine.heard`. Once for all that one decision ends.

        All its process sets begin anew, also where this rank waits for a tensor of one and another rank for one of
        another: both have heard of both. What was submitted before all began anew does not matter: one rank alone may
        look at what a failed cell has left.
        """
        for each in sets if submitted >= self._since else ():
            if self._heard.get(each, 0) < decision:
                self._heard[each] = decision
                for kind, where in list(self._counts):
                    if where == each:
                        del self._counts[kind, where]

    def restart(self, failures: int | None = None) -> None:
        self._counts.clear()
        self._heard.clear()
        self._since = perf_counter_ns()
        self.users = {}
        self.rounds.clear()
        if failures is not None:
            self.failures, self.refused = failures, False
