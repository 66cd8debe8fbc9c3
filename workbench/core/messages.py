"""The messages about tensors between the ranks and rank 0.

A rank sends *events* to rank 0: :class:`Announce` above all. Rank 0 decides, and sends each :class:`Decision` to every
rank. ``runtime/control/codec.py`` encodes both.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from workbench.core.verbs import Kind as Kind
from workbench.core.verbs import ReduceOp as ReduceOp
from workbench.errors import CollectiveError, from_wire

Key = tuple[int, str]  # a tensor's process set and name
Progress = tuple[tuple[str, float], ...]  # a rank's: (what, how much)
Values = dict[int, bytes]  # the elements of small tensors, by the index in a message of what they belong to


@dataclass(frozen=True, slots=True)
class Request:
    """A rank's notice that a tensor is ready.

    Args:
        name: the same on every rank, unique among what is in flight.
        kind: which verb.
        dtype, shape: the element type's name, ``"float32"``, and this rank's shape.
        op, root: the reduction, for allreduce and reducescatter; the sending rank, for broadcast.
        device: ``"cpu"`` or ``"cuda"``.
        prescale, postscale: factors applied before and after the reduction.
        process_set: id of the ranks that take part; 0 is all of them.
        splits: rows for each rank, for alltoall; the members, for a new process set; what tells a message from others.
        group, group_size: tensors of one group start together or not at all. Groups of two ranks have the same name
            only if they have the same members.
        absent: this rank has no data (a parameter without a gradient): it contributes zeros.
        offset: of the array in this rank's shared memory; -1 if it is not there.
        priority: 0 for most. Tensors with a negative priority may wait for others; of these the highest goes first.
        user: which object submits it, if another object has used the name before; see ``requests.OrderOfUse``. After a
            failed cell also the number of its steps.
        ranks: who announces it, where that is not the whole process set: the members of a set that they alone make;
            sender and receiver.
        progress: now and then, what must be equal on all ranks: numbers with names, of which one may have several; see
            ``training/progress.py``.
    """

    name: str
    kind: Kind
    dtype: str = ""
    shape: tuple[int, ...] = ()
    op: ReduceOp = ReduceOp.SUM
    root: int = -1
    device: str = "cpu"
    prescale: float = 1.0
    postscale: float = 1.0
    process_set: int = 0
    splits: tuple[int, ...] = ()
    group: str = ""
    group_size: int = 0
    absent: bool = False
    offset: int = -1
    priority: int = 0
    user: tuple[int, ...] = ()
    ranks: tuple[int, ...] = ()
    progress: Progress = ()

    def __hash__(self) -> int:
        return hash(self.name)  # a string remembers its hash; and few requests differ in all but the name

    @property
    def key(self) -> Key:
        return self.process_set, self.name


@dataclass(frozen=True, slots=True)
class Response:
    """What all ranks do about one tensor; the same bytes on every rank.

    Args:
        root: the sending rank (broadcast), the last rank to come (join), the new id (process sets), or the rank whose
            cell has failed.
        rows: first dimensions by rank (allgather, reducescatter), the matrix of splits with a row for each sender
            (alltoall), the members (process sets), or sender and receiver.
        offsets: the requests' ``offset``, in the order of the ranks; empty where one of them is -1.
        all_absent: no rank has data, so nothing moves and every handle finishes with ``None``.
        joined: ranks without data here, because they had called ``join()``. If such a rank has an entry of this name
            now, it belongs to the next collective.
        error: (class name, text), or empty when all is well.
        priority: the highest of the requests'.
        cache_id: the number that identifies this response from now on; None: there is none. ``cached``: only the
            number is sent.
        requests: the requests that this answers, by rank; only on rank 0.
        result: the elements of a small tensor's result, if they came with the response; for a reducescatter those of
            the whole reduced tensor, for an alltoall what all ranks have sent, in the order of the ranks.
    """

    name: str
    kind: Kind
    dtype: str = ""
    shape: tuple[int, ...] = ()
    op: ReduceOp = ReduceOp.SUM
    root: int = -1
    device: str = "cpu"
    prescale: float = 1.0
    postscale: float = 1.0
    process_set: int = 0
    rows: tuple[int, ...] = ()
    offsets: tuple[int, ...] = ()
    all_absent: bool = False
    joined: tuple[int, ...] = ()
    error: tuple[str, ...] = ()
    priority: int = 0
    cache_id: int | None = field(default=None, compare=False)
    cached: bool = field(default=False, compare=False)
    requests: dict[int, Request] = field(default_factory=dict, compare=False, repr=False)
    result: bytes = b""

    @property
    def key(self) -> Key:
        return self.process_set, self.name

    def exception(self) -> CollectiveError | None:
        return from_wire(self.error[0], self.error[1]) if self.error else None


@dataclass(frozen=True, slots=True)
class Decision:
    """The content of one message of rank 0, the same for every rank. It is false if there is nothing to do.

    Args:
        number: of the message; later ones have higher numbers.
        items: what all ranks do, in order: responses; on the wire a cache id for each response that the ranks know.
        results: of small tensors, by their index in ``items``; nothing else is sent for these.
        evicted: cache ids that are void from now on.
    """

    number: int = 0
    items: list[Response | int] = field(default_factory=list)
    results: Values = field(default_factory=dict)
    evicted: list[int] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.items)

    def __add__(self, later: Decision) -> Decision:
        if not (self and later):
            return later if later else self
        results = self.results | {len(self.items) + i: result for i, result in later.results.items()}
        return Decision(later.number, self.items + later.items, results, self.evicted + later.evicted)


# --- events, from a rank to the coordinator ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened on ``rank``. The events about failures and signs of life are in ``runtime/events.py``."""

    rank: int


@dataclass(frozen=True, slots=True)
class Announce(Event):
    """These tensors are ready on ``rank``.

    Args:
        items, values: requests, or cache ids of requests made before; values of small tensors, by index in ``items``.
        seen: number of the last decision that this rank has read.
    """

    items: tuple[Request | int, ...]
    seen: int = 0
    values: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Raised(Event):
    """``rank`` raised an exception.

    Args:
        final: its process ends with it (a script); otherwise a cell failed.
        failures: of a cell, as that of :class:`workbench.runtime.events.Began`.
    """

    traceback: str
    final: bool = True
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Left(Event):
    """``rank`` called shutdown() or its process ends. ``clean``: its data plane has ended with the others."""

    clean: bool = True


@dataclass(frozen=True, slots=True)
class Done(Event):
    """``rank``, which is 0, has finished the next response that has a priority."""


@dataclass(frozen=True, slots=True)
class Differs(Event):
    """``rank`` has seen that the ranks announce names in different orders: rank 0 has to count them."""


@dataclass(frozen=True, slots=True)
class Broke(Event):
    """On ``rank`` the data plane has broken: what is in flight on the others would wait for it. ``why``: a sentence."""

    why: str
