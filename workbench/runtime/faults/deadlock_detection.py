"""Can a rank that keeps others waiting still come? What the ranks say about themselves, and what follows. Pure.

A name waits for the ranks that have not announced it. It can never be complete when one of them

1. is gone: it left the job, or its script ended with an exception;
2. raised in its last cell, or is idle (its cell has ended) while somebody waits, for ``grace_s``. One to which the
   notebook has sent a cell that it has not begun is late, not idle, however long that takes, and so is one that the
   notebook does not call idle yet;
3. waits itself, for a name that cannot be complete either: then the ranks wait for each other. A rank that waits in a
   framework's graph may still compute what it submits next, so that counts only after a longer time.

The clock is an argument. Whoever waits gets an error with a line for each rank: where it waits, or what else it does.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from workbench.common.text import by_rank, rank_list
from workbench.core.coordinator import Error
from workbench.core.messages import Announce, Event, Key, Left, Raised
from workbench.runtime.events import Began, Blocked, Ended, Sent

_GRAPH = 12  # times the grace: as long as a graph may compute, with one collective waiting, until it submits another

_CURES = {
    "left": "Make every rank call the same collectives, or call init() again.",
    "idle": (
        "Likely a collective inside `if rank == 0`, or more batches on some ranks than on others. Make every rank call "
        "the same collectives; for batches that differ in number there is join()."
    ),
    "blocked": (
        "Likely another name, or another order of two waits. Make every rank wait for the same tensors, in one order."
    ),
}


@dataclass(frozen=True, slots=True)
class Missed:
    """A name that waits.

    Args:
        since: when the first rank announced it.
        here: the ranks that have announced it.
        missing: the ranks that have not.
        one_is_enough: of these, whichever it is.
    """

    since: float
    here: tuple[int, ...]
    missing: tuple[int, ...]
    one_is_enough: bool = False

    @property
    def of(self) -> set[int]:
        """The ranks that the name concerns."""
        return {*self.here, *self.missing}


class Attendance:
    """What each rank last reported: it waits, is idle, raised, or left the job; else it runs.

    Args:
        grace_s: how long a rank may be idle, or be between two cells, before that counts as an answer.

    Attributes:
        left: ranks that have left the job.
        clean: have all of them waited for the others to leave, too, so far?

    Example:
        >>> attendance = Attendance(grace_s=0.5)
        >>> attendance.take(Ended(1), now=0.0)
        >>> attendance.take(Blocked(0, ((0, "x", "in the cell, line 2"),)), now=0.0)
        >>> waiting = {(0, "x"): Missed(since=0.0, here=(0,), missing=(1,))}
        >>> attendance.unsatisfiable(waiting, now=0.1)
        {}
        >>> kind, text = attendance.unsatisfiable(waiting, now=0.6)[0, "x"]
        >>> print(kind, text.splitlines()[0], sep=": ")
        MissingRanksError: Rank 1 is idle, so 'x', submitted by rank 0, can never complete.
    """

    def __init__(self, grace_s: float) -> None:
        self.grace_s = grace_s
        self.left: set[int] = set()
        self.clean = True
        self._ended: dict[int, str] = {}  # scripts that ended with an exception: its traceback
        self._raised: dict[int, tuple[float, str]] = {}  # cells that raised: since when, traceback
        self._idle: dict[int, float] = {}
        self._blocked: dict[int, tuple[float, dict[Key, str]]] = {}  # since when, and where it waits for each name
        self._more: set[int] = set()  # blocked in a graph that may submit more
        self._cells: dict[int, tuple[int, int]] = {}  # by rank: which engine it is, and the newest cell it has begun
        self._sent: dict[int, int] = {}  # by engine: the newest cell that is on its way to it
        self._rested: frozenset[int] = frozenset()  # engines that the notebook has left idle
        self._version = -1  # of both
        self._foreign: set[int] = set()  # ranks whose cell somebody else has sent
        self._changed = float("-inf")

    def take(self, event: Event, now: float) -> None:
        """Account for what a rank says about itself."""
        self._changed = now
        match event:
            case Raised(rank, traceback, final=True):
                self._ended.setdefault(rank, traceback)
            case Raised(rank, traceback):
                self._raised[rank] = (now, traceback)
            case Ended(rank):
                self._idle[rank] = now
            case Began(rank) | Announce(rank):
                self._raised.pop(rank, None)
                self._idle.pop(rank, None)
                if isinstance(event, Began):
                    (self._foreign.discard if event.numbered else self._foreign.add)(rank)
            case Sent(rank, engine, number, version, sent, idle):
                self._cells[rank] = engine, number
                if version > self._version:
                    self._version, self._sent, self._rested = version, dict(sent), frozenset(idle)
            case Blocked(rank, ()):
                self._blocked.pop(rank, None)
                self._more.discard(rank)
            case Blocked(rank, waits, more):
                (self._more.add if more else self._more.discard)(rank)
                self._blocked[rank] = (now, {(process_set, name): where for process_set, name, where in waits})
            case Left(rank, clean):
                self.left.add(rank)
                self.clean = self.clean and clean

    @property
    def final(self) -> bool:
        """Is there a rank that never comes again?"""
        return bool(self.left or self._ended)

    @property
    def idle(self) -> list[int]:
        """Ranks whose cell has ended."""
        return list(self._idle)

    @property
    def absent(self) -> bool:
        """Is there a rank from which nothing comes at present?"""
        return bool(self.final or self._raised or self._idle or self._blocked)

    def undecided(self, newest: float, now: float) -> bool:
        """Will the mere passing of time decide something? ``newest``: when the last name was announced."""
        longest = 2 * self.grace_s * (_GRAPH if self._more else 1)
        return bool(self._raised or self._idle or self._blocked) and now < max(self._changed, newest) + longest

    def unsatisfiable(self, waiting: Mapping[Key, Missed], now: float) -> dict[Key, Error]:
        """The names that can never be complete, and the error for each."""
        found: dict[Key, Error] = {}
        for key, missed in waiting.items():
            errors = [self._never(rank, key, missed, now) for rank in self._causes_first(missed.missing)]
            never = list(filter(None, errors))
            if never and (len(never) == len(errors) or not missed.one_is_enough):
                found[key] = never[0]
        return found or self._cycle(waiting, now)

    # --- one rank that does not come -----------------------------------------------------------------

    def _causes_first(self, missing: tuple[int, ...]) -> list[int]:
        """Ranks that raised, in the order of that, before those that may have left or raised because of it."""
        causes = [*self._raised, *self._ended]
        return sorted(missing, key=lambda rank: causes.index(rank) if rank in causes else len(causes))

    def _never(self, rank: int, key: Key, missed: Missed, now: float) -> Error | None:
        since = max(missed.since, self._raised.get(rank, (0.0, ""))[0], self._idle.get(rank, 0.0))
        so = f"so {key[1]!r}, submitted by {rank_list(missed.here)}, can never complete."
        if rank in self._ended:
            return "RankFailedError", self._failed(rank, so, key, missed, self._ended[rank])
        if rank in self.left:
            first = f"Rank {rank} has left the job (its script ended, or it called shutdown()), {so}"
            return "ShutDownError", self._text(first, key, missed, _CURES["left"])
        if now - since < self.grace_s or self._late(rank):
            return None
        if rank in self._raised:
            return "RankFailedError", self._failed(rank, so, key, missed, self._raised[rank][1])
        if rank in self._idle and any(key in waits for _, waits in self._blocked.values()):
            idle = [each for each in missed.missing if each in self._idle and not self._late(each)]
            are = "is" if len(idle) == 1 else "are"
            first = f"{rank_list(idle).capitalize()} {are} idle, {so}"
            return "MissingRanksError", self._text(first, key, missed, _CURES["idle"])
        return None

    def _late(self, rank: int) -> bool:
        """Is a cell on its way to this rank, by the notebook's word, or may one be?"""
        if rank not in self._cells:
            return False
        engine, number = self._cells[rank]
        return self._sent.get(engine, 0) > number or (engine not in self._rested and not self._foreign)

    def _failed(self, rank: int, so: str, key: Key, missed: Missed, traceback: str) -> str:
        return self._text(
            f"Rank {rank} raised an exception, {so}", key, missed, f"Its traceback:\n{traceback.rstrip()}"
        )

    def _text(self, first: str, key: Key, missed: Missed, last: str) -> str:
        doing = {rank: self._doing(rank, key, missed) for rank in sorted((*missed.here, *missed.missing))}
        return "\n".join([first, *by_rank(doing), last])

    def _doing(self, rank: int, key: Key, missed: Missed) -> str:
        """What a rank does, seen from those who care about one name."""
        _, waits = self._blocked.get(rank, (0.0, {}))
        if key in waits:
            return f"waiting {waits[key]}"
        if waits:
            (_, name), where = next(iter(waits.items()))
            return f"waiting for {name!r} {where}"
        if rank in self._ended or rank in self._raised:
            return f"raised {error_line(self._ended.get(rank) or self._raised[rank][1])}"
        if rank in self.left:
            return "left the job"
        if rank in missed.missing and self._late(rank):
            return "about to begin its next cell"
        if rank in self._idle:
            return "idle, for the cell has ended there"
        return "submitted it" if rank in missed.here else "running something else"

    # --- ranks that wait for each other --------------------------------------------------------------

    def _cycle(self, waiting: Mapping[Key, Missed], now: float) -> dict[Key, Error]:
        """The names of ranks that wait for each other, so that none of them ever goes on.

        A rank goes on if it does not wait, or if one of the names that it waits for misses only ranks that go on. All
        these ranks number unnamed tensors anew then, so what they have submitted of these can never be complete either.
        """
        stuck = {
            rank: [waiting[key] for key in waits]
            for rank, (since, waits) in self._blocked.items()
            if now - since >= self.grace_s * (_GRAPH if rank in self._more else 1)
            and all(key in waiting and rank in waiting[key].here for key in waits)
        }
        while freed := [
            rank for rank, names in stuck.items() if any(self._goes_on(each, stuck.keys()) for each in names)
        ]:
            for rank in freed:
                del stuck[rank]
        ended = {key for rank in stuck for key in self._blocked[rank][1]}
        anew = {process_set for process_set, _ in ended}
        ended |= {
            key
            for key, missed in waiting.items()
            if key[0] in anew and ".noname." in key[1] and stuck.keys() >= {*missed.here, *missed.missing}
        }
        keys = sorted(ended)
        return {key: self._circular(key, {other: waiting[other] for other in keys}) for key in keys}

    @staticmethod
    def _goes_on(missed: Missed, stuck: Collection[int]) -> bool:
        late = [rank in stuck for rank in missed.missing]
        return not (all(late) if missed.one_is_enough else any(late))

    def _circular(self, key: Key, circle: Mapping[Key, Missed]) -> Error:
        """The error for one name of a circle; with all its ranks, for the cause may be in another process set."""
        ranks = set().union(*(each.of for each in circle.values()))
        missed = replace(circle[key], missing=tuple(ranks.difference(circle[key].here)))
        verbs = {other: other[1].partition(".")[0] for other in circle if _bare(other) == _bare(key)}
        if len(verbs) > 1:
            doing = {rank: self._doing(rank, key, missed) for rank in sorted((*missed.here, *missed.missing))}
            doing.update((rank, verb) for other, verb in verbs.items() for rank in circle[other].here)
            one, other = sorted(verbs.values())[:2]
            names = ", ".join(repr(name) for _, name in sorted(verbs))
            first = f"Mismatched operations: One rank did an {one}, but another rank did an {other}."
            cure = "Call the same function under this name on every rank."
            return "MismatchError", "\n".join([first, f"  in {names}:", *by_rank(doing), cure])
        first = (
            f"The ranks wait for each other, so {key[1]!r}, submitted by {rank_list(missed.here)}, can never complete."
        )
        # Where a name is of some of these ranks alone, the rows do not say whom it misses.
        some = [f"  {other[1]!r} misses {rank_list(each.missing)}" for other, each in circle.items() if each.of < ranks]
        return "MissingRanksError", self._text(first, key, missed, "\n".join([*some, _CURES["blocked"]]))


def _bare(key: Key) -> tuple[int, str]:
    """The name that the caller gave, without the verb before it."""
    return key[0], key[1].partition(".")[2]


def error_line(traceback: str) -> str:
    r"""The line of a traceback that names the exception; its text may have more lines after it.

    Example:
        >>> error_line("Traceback (most recent call last):\n  File 'x.py', line 1\nValueError: bad\nUse 1.\n")
        'ValueError: bad'
        >>> error_line("KeyboardInterrupt"), error_line("")
        ('KeyboardInterrupt', 'an exception')
    """
    lines = traceback.strip().splitlines()
    return next((line for line in lines if not line.startswith((" ", "Traceback (most recent call"))), "an exception")
