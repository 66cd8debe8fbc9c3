"""The verbs, one line each: what the ranks must agree on, and what else holds for each verb.

What a verb *does* with arrays is in ``execute.py``, its derivative in ``training/derivatives.py``. A test compares the
three tables; only a barrier, which moves no data, is in this one alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from workbench.core.messages import Kind, ReduceOp, Request, Response


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb's properties.

    Args:
        reduces: it has an op and factors, in which all ranks must agree.
        rooted: one rank sends; all must mean the same one.
        ragged: the ranks' first dimensions may differ.
        by_rows: the first dimension is divided among the ranks, or put together from theirs, so there must be one.
        eager: a small tensor's values may travel inside the announcement, ``steady/eager.py``.
        without_joined: it goes on without ranks that have joined, whose part is zeros.
    """

    reduces: bool = False
    rooted: bool = False
    ragged: bool = False
    by_rows: bool = False
    eager: bool = False
    without_joined: bool = False


VERBS = {
    Kind.ALLREDUCE: Verb(reduces=True, eager=True, without_joined=True),
    Kind.ALLGATHER: Verb(ragged=True, by_rows=True, eager=True),
    Kind.BROADCAST: Verb(rooted=True, eager=True),
    Kind.ALLTOALL: Verb(ragged=True, by_rows=True),
    Kind.REDUCESCATTER: Verb(reduces=True, by_rows=True),
    Kind.BARRIER: Verb(without_joined=True),
}
OTHERS = Verb()  # join, process sets: nothing moves
_NEUTRAL_ZERO = (ReduceOp.AVERAGE, ReduceOp.SUM)


def verb(kind: Kind) -> Verb:
    """The properties of a verb."""
    return VERBS.get(kind, OTHERS)


def goes_without_joined(response: Response) -> bool:
    """Can ranks that have joined be left out? Where zeros are neutral, or nothing moves."""
    one = verb(response.kind)
    return one.without_joined and (not one.reduces or response.op in _NEUTRAL_ZERO)


def rows(requests: list[Request]) -> tuple[int, ...]:
    """A response's ``rows``, from the requests in the order of the ranks."""
    first, n = requests[0], len(requests)
    match first.kind:
        case Kind.ADD_SET | Kind.REMOVE_SET:
            return first.splits
        case Kind.ALLGATHER:
            return tuple(request.shape[0] for request in requests)
        case Kind.ALLTOALL:
            return tuple(rows for request in requests for rows in request.splits)
        case Kind.REDUCESCATTER:
            return tuple(first.shape[0] // n + (i < first.shape[0] % n) for i in range(n))
    return ()
