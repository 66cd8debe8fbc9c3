"""Who waits for whom, and why nobody can go on: pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_MOST = 8  # ranks that a text names
_MESSAGES = {"send", "recv", "sendrecv", "isend", "irecv"}  # all else is a collective, made of messages


@dataclass(frozen=True)
class Wait:
    """A rank that cannot go on.

    Args:
        rank: which.
        verb: in which call.
        peer: for which rank; a negative number for any.
        nbytes: what it sends; 0 where it receives.
        where: the learner's line.
        sends: is it the other one's receive that is missing?
    """

    rank: int
    verb: str
    peer: int
    nbytes: int
    where: str
    sends: bool


def cycle(waits: Sequence[Wait]) -> tuple[int, ...]:
    """The ranks that wait for each other in a circle, the lowest first; empty if there is none.

    Example:
        >>> ring = [Wait(rank, "send", (rank + 1) % 3, 8, "", True) for rank in range(3)]
        >>> cycle(ring), cycle(ring[:2])
        ((0, 1, 2), ())
    """
    peers = {wait.rank: wait.peer for wait in waits}
    for start in sorted(peers):
        path = [start]
        while path[-1] in peers and peers[path[-1]] not in path:
            path.append(peers[path[-1]])
        if peers.get(path[-1]) in path:
            found = path[path.index(peers[path[-1]]) :]
            lowest = found.index(min(found))
            return tuple(found[lowest:] + found[:lowest])
    return ()


def explain(waits: Sequence[Wait], finished: Mapping[int, str]) -> str:
    """What to tell the learner.

    Args:
        waits: of the ranks that wait.
        finished: of each rank that has returned, which collectives it had called.

    Example:
        >>> print(explain([Wait(0, "recv", 1, 0, "line 3", False)], {1: "without calling any"}))
        Deadlock: nobody can go on.
          rank 0 waits in recv(source=1) (line 3): rank 1 has returned
        >>> print(explain([Wait(0, "allreduce", 1, 0, "line 3", False)], {1: "without calling any"}))
        Deadlock: nobody can go on.
          rank 0 waits in allreduce() for rank 1 (line 3): rank 1 has returned, without calling any
    """
    lines = ["Deadlock: nobody can go on."]
    for wait in sorted(waits, key=lambda wait: wait.rank)[:_MOST]:
        where = f" ({wait.where})" if wait.where else ""
        lines.append(f"  rank {wait.rank} waits in {_call(wait)}{where}{_why(wait, finished)}")
    if len(waits) > _MOST:
        lines.append(f"  … and {len(waits) - _MOST} more")
    if ring := cycle(waits):
        lines.append("  They wait in a circle: " + " → ".join(map(str, (*ring, ring[0]))))
        if all(wait.sends for wait in waits if wait.rank in ring):
            lines.append("  A large message leaves only when its receiver is there.")
            lines.append("  Let one of them receive first, or use sendrecv.")
    return "\n".join(lines)


def in_short(waits: Sequence[Wait]) -> str:
    """The same in one line: who waits for each other, or for whom one waits that does not come.

    Example:
        >>> ring = [Wait(rank, "send", 1 - rank, 8, "", True) for rank in range(2)]
        >>> in_short(ring)
        'ranks 0 and 1 wait for each other: all of them send, and nobody receives'
        >>> in_short([Wait(0, "send", 0, 8, "line 3", True)])
        'rank 0 waits for itself: it sends, and does not receive'
        >>> in_short([Wait(0, "recv", 1, 0, "line 3", False)])
        'rank 0 waits in recv(source=1), and rank 1 has returned'
    """
    if ring := cycle(waits):
        own = [wait for wait in waits if wait.rank in ring]
        collective = any(map(_in_collective, own))
        same = ": all of them send, and nobody receives" if all(wait.sends for wait in own) else ""
        same = same or (": all of them receive, and nobody sends" if not any(wait.sends for wait in own) else "")
        if len(ring) == 1:
            does = "sends, and does not receive" if own[0].sends else "receives, and does not send"
            return f"rank {ring[0]} waits for itself: it {does}"
        return f"{_ranks(ring)} wait for each other{'' if collective else same}"
    waiting = {wait.rank for wait in waits}  # all others have returned
    left = [wait for wait in waits if wait.peer >= 0 and wait.peer not in waiting] or list(waits)
    first = min(left, key=lambda wait: wait.rank)
    if first.peer == first.rank:
        return f"rank {first.rank} waits in {_call(first)} for itself"
    gone = first.peer >= 0 and first.peer not in waiting
    why = f", and rank {first.peer} has returned" if gone else ", and nobody sends it anything"
    return f"rank {first.rank} waits in {_call(first)}{why}"


def _ranks(ranks: Sequence[int]) -> str:
    *others, last = map(str, ranks[:_MOST])
    more = f" and {len(ranks) - _MOST} more" if len(ranks) > _MOST else ""
    return f"ranks {', '.join(others)}{',' if more else ' and'} {last}{more}" if others else f"rank {last}"


def _call(wait: Wait) -> str:
    if wait.peer < 0:
        return f"{wait.verb}() from any rank"
    if _in_collective(wait):
        return f"{wait.verb}() for rank {wait.peer}"
    return f"{wait.verb}({'dest' if wait.sends else 'source'}={wait.peer})"


def _why(wait: Wait, finished: Mapping[int, str]) -> str:
    if wait.peer == wait.rank:
        return ": that is itself"
    if wait.peer not in finished:
        return ""
    return f": rank {wait.peer} has returned" + (f", {finished[wait.peer]}" if _in_collective(wait) else "")


def _in_collective(wait: Wait) -> bool:
    return wait.verb.lower() not in _MESSAGES
