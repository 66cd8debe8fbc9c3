"""The verbs, one line each: what the ranks must agree on, and what else holds for each verb.

What a verb *does* with arrays is in ``execute.py``, its derivative in ``training/derivatives.py``; a test compares.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Kind(str, Enum):
    """What a request or response is about: a verb, a message between two ranks, or a command of rank 0 to all."""

    ALLREDUCE = "allreduce"
    ALLGATHER = "allgather"
    BROADCAST = "broadcast"
    ALLTOALL = "alltoall"
    REDUCESCATTER = "reducescatter"
    BARRIER = "barrier"
    SEND = "send"
    SOURCE = "source"  # of the next message to this rank: who sends it?
    JOIN = "join"
    ADD_SET = "add_process_set"
    REMOVE_SET = "remove_process_set"
    SHUTDOWN = "shutdown"
    STACKS = "stacks"  # rank 0 asks for the stack of every rank's main thread
    RENUMBER = "renumber"  # a cell has failed: the ranks number unnamed tensors from 0 again
    TUNE = "tune"  # autotune has chosen other settings
    SLOTS = "slots"  # the ranks read in each other's slots what all have announced, from here on, or not any more


class ReduceOp(str, Enum):
    """How values of different ranks are combined. ``AVERAGE`` is the sum divided by the number of ranks."""

    AVERAGE = "average"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"
    ADASUM = "adasum"


REDUCED = frozenset(
    ("bool", "uint8", "int8", "int16", "uint16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
)
"""Names of the dtypes that can be reduced."""
_FLOAT8 = ("e3m4", "e4m3", "e4m3b11fnuz", "e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")
MOVED = REDUCED | {"uint32", "uint64", "complex64", "complex128", *(f"float8_{form}" for form in _FLOAT8)}
"""Names of the dtypes that can be moved as they are."""


@dataclass(frozen=True, slots=True)
class Verb:
    """One verb's properties.

    Args:
        moves: it moves data; else it has neither dtype nor shape.
        reduces: it has an op and factors, in which all ranks must agree.
        rooted: one rank sends or receives; all ranks must name the same one.
        by_rows: the first dimension is divided among the ranks, or concatenated from all ranks, so there must be one.
            For the other verbs the result has the tensor's shape.
        ragged: the ranks' first dimensions may differ.
        splits: each rank says how many rows it sends to each rank, and learns how many it receives from each.
        eager: a small tensor's values may be sent inside the announcement, ``runtime/steady/eager.py``.
        without_joined: it works without ranks that have joined; zeros replace their data.
    """

    moves: bool = True
    reduces: bool = False
    rooted: bool = False
    by_rows: bool = False
    ragged: bool = False
    splits: bool = False
    eager: bool = False
    without_joined: bool = False

    @property
    def dtypes(self) -> frozenset[str]:
        """Names of the dtypes that it takes."""
        return REDUCED if self.reduces else MOVED


VERBS = {
    Kind.ALLREDUCE: Verb(reduces=True, eager=True, without_joined=True),
    Kind.ALLGATHER: Verb(by_rows=True, ragged=True, eager=True),
    Kind.BROADCAST: Verb(rooted=True, eager=True),
    Kind.ALLTOALL: Verb(by_rows=True, ragged=True, splits=True, eager=True),
    Kind.REDUCESCATTER: Verb(reduces=True, by_rows=True, eager=True),
    Kind.BARRIER: Verb(moves=False, without_joined=True),
}


def forms(kind: Kind) -> tuple[str, ...]:
    """The names of a verb's functions, if a framework's tensors allow all of them.

    A verb works in place only if its result has the tensor's shape. A verb with a root, or with splits for each tensor,
    has no grouped form.

    Example:
        >>> forms(Kind.BROADCAST)
        ('broadcast', 'broadcast_', 'broadcast_async', 'broadcast_async_')
    """
    verb = VERBS[kind]
    if not verb.moves:
        return (kind.value,)
    groups = ("", "grouped_") if not (verb.rooted or verb.splits) else ("",)
    places = ("", "_") if not verb.by_rows else ("",)
    return tuple(f"{group}{kind.value}{wait}{place}" for group in groups for wait in ("", "_async") for place in places)


MESSAGE = Verb(rooted=True)  # from the root to the one other rank that announces it
OTHERS = Verb(moves=False)  # join, process sets


def verb(kind: Kind) -> Verb:
    """The properties of a verb."""
    return MESSAGE if kind is Kind.SEND else VERBS.get(kind, OTHERS)
