"""What ranks say to each other about tensors, and the bytes of it.

A rank sends *events* to rank 0 (:class:`Announce`, :class:`Raised`, :class:`Blocked`, :class:`Beat`, …);
rank 0 sends *responses* to every rank. The wire format is JSON: a student can read a captured message,
and decoding bytes never runs code. In a steady step a request and its response shrink to one integer
each (see ``cache.py``), and a message to four bytes for each. The values of small tensors ride along: raw bytes behind
the JSON's line (see ``riding.py``).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, fields
from enum import Enum
from operator import attrgetter
from typing import Any

from workbench.errors import CollectiveError, from_wire


class Kind(str, Enum):
    """The verbs that travel."""

    ALLREDUCE = "allreduce"
    ALLGATHER = "allgather"
    BROADCAST = "broadcast"
    ALLTOALL = "alltoall"
    REDUCESCATTER = "reducescatter"
    BARRIER = "barrier"
    JOIN = "join"
    ADD_SET = "add_process_set"
    REMOVE_SET = "remove_process_set"
    SHUTDOWN = "shutdown"
    STACKS = "stacks"
    """Rank 0 wants to know where every rank's main thread stands."""


class ReduceOp(str, Enum):
    """How values of different ranks become one. ``AVERAGE`` is the sum divided by the number of ranks."""

    AVERAGE = "average"
    SUM = "sum"
    MIN = "min"
    MAX = "max"
    PRODUCT = "product"
    ADASUM = "adasum"


@dataclass(frozen=True, slots=True)
class Request:
    """One rank's wish about one tensor.

    Args:
        name: the same on every rank, unique among what is in flight.
        kind: which verb.
        dtype: the element type's name, ``"float32"``.
        shape: this rank's shape.
        op: the reduction, for allreduce and reducescatter.
        root: the sending rank, for broadcast.
        device: ``"cpu"`` or ``"cuda"``.
        prescale, postscale: factors applied before and after the reduction.
        process_set: id of the ranks that take part; 0 is all of them.
        splits: rows for each rank, for alltoall; the members, for a new process set.
        group, group_size: tensors of one group start together or not at all. Two ranks' groups have one name only
            if they have the same members.
        absent: this rank has no data (a parameter without a gradient): it contributes zeros.
        place: where the array lies in memory that the other ranks can reach; -1: not in such.
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
    place: int = -1

    def __hash__(self) -> int:
        return hash(self.name)  # a string remembers its hash; and few requests differ in all but the name


@dataclass(frozen=True, slots=True)
class Response:
    """What all ranks do about one tensor; the same bytes on every rank.

    Args:
        root: the sending rank (broadcast), the last rank to come (join), or the new id (process sets).
        rows: first dimensions by rank (allgather, reducescatter), the matrix of splits, row by row of the
            sender (alltoall), or the members (process sets).
        places: each rank's, where all lie in memory that the others can reach.
        all_absent: no rank has data, so nothing moves and every handle finishes with ``None``.
        error: (class name, text), or empty when all is well.
        result: the elements of a small tensor's result, when they came with the response; not a part of its wire form.
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
    places: tuple[int, ...] = ()
    all_absent: bool = False
    error: tuple[str, ...] = ()
    result: bytes = b""

    def with_result(self, result: bytes) -> Response:
        """The same with the result that came with it."""
        return Response(*(*_response_fields(self), result))  # dataclasses.replace() takes five times as long

    def exception(self) -> CollectiveError | None:
        """The error as an exception, or None."""
        return from_wire(self.error[0], self.error[1]) if self.error else None


Values = dict[int, bytes]
"""The elements of small tensors, by the index in a message of what they belong to."""

# --- events, from a rank to the coordinator ---------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Announce:
    """These tensors are ready on ``rank``: whole requests, or cache ids of requests made before.

    Args:
        seen: number of the last response message that this rank has read; what was evicted from the
            cache before it can be forgotten.
        values: of small tensors, by their index in ``items``.
    """

    rank: int
    items: tuple[Request | int, ...]
    seen: int = 0
    values: Values = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Raised:
    """``rank`` raised an exception. ``final``: its process ends with it (a script); else a cell failed."""

    rank: int
    traceback: str
    final: bool = True


@dataclass(frozen=True, slots=True)
class Began:
    """``rank`` began a notebook cell."""

    rank: int


@dataclass(frozen=True, slots=True)
class Ended:
    """``rank`` finished a notebook cell, so nothing comes from it until it begins the next one."""

    rank: int


@dataclass(frozen=True, slots=True)
class Blocked:
    """All that could submit on ``rank`` waits.

    Args:
        waits: for each waiting thread the process set, the name and the place in the user's code; empty when a
            thread goes on.
    """

    rank: int
    waits: tuple[tuple[int, str, str], ...]


@dataclass(frozen=True, slots=True)
class Stack:
    """Where the main thread of ``rank`` stands, asked for by ``Kind.STACKS``."""

    rank: int
    text: str


@dataclass(frozen=True, slots=True)
class Left:
    """``rank`` called shutdown() or its process ends. Not ``clean``: its data plane has ended without the others."""

    rank: int
    clean: bool = True


@dataclass(frozen=True, slots=True)
class Beat:
    """``rank`` is alive. The first beat tells who it is: its host, process id and namespace.

    Args:
        seen: as in :class:`Announce`, for a rank that announces nothing.
    """

    rank: int
    host: str = ""
    pid: int = 0
    seen: int = 0


@dataclass(frozen=True, slots=True)
class Broke:
    """On the GPU of ``rank`` the data plane has broken; what is in flight on the others' would wait for it."""

    rank: int
    why: str


@dataclass(frozen=True, slots=True)
class Lost:
    """Rank 0's watch over the beats: ``rank`` is gone, ``why`` says how that is known. Never on the wire."""

    rank: int
    why: str


_LONGEST_TEXT = 64 << 10  # of a traceback, whose end says most

Event = Announce | Raised | Began | Ended | Blocked | Stack | Left | Beat | Broke | Lost


# --- bytes ------------------------------------------------------------------------------------------


# As astuple(), which copies deeply and takes ten times as long.
_request_fields = attrgetter(*(field.name for field in fields(Request)))
_response_fields = attrgetter(*(field.name for field in fields(Response) if field.name != "result"))


def encode_event(event: Event) -> bytes:
    """One event as bytes."""
    if isinstance(event, Announce):
        if quick := _pack_ids(event.rank, event.seen, event.items, event.values):
            return quick
        items = [item if isinstance(item, int) else _request_fields(item) for item in event.items]
        return _with_values(["Announce", event.rank, items, event.seen], event.values)
    if isinstance(event, Raised) and len(event.traceback) > _LONGEST_TEXT:
        event = Raised(event.rank, "[…]\n" + event.traceback[-_LONGEST_TEXT:], event.final)
    return _dump([type(event).__name__, *astuple(event)])


def decode_event(data: bytes) -> Event:
    """The event in ``data``.

    Raises:
        ValueError: these bytes are not an event.
    """
    try:
        if data.startswith(_QUICK):
            rank, seen, ids, values = _unpack_ids(data)
            return Announce(rank, ids, seen, values)
        data, values = _split_values(data)
        name, rank, *rest = json.loads(data)
        if type(rank) is not int:
            raise TypeError("the rank must be a number")
        if name == "Announce":
            items, seen = rest
            found = tuple(item if type(item) is int else _request(item) for item in items)
            return Announce(rank, found, int(seen), values)
        if name == "Raised":
            return Raised(rank, str(rest[0]), bool(rest[1]))
        if name == "Beat":
            return Beat(rank, str(rest[0]), int(rest[1]), int(rest[2]))
        if name == "Blocked":
            return Blocked(rank, tuple((int(pset), str(tensor), str(where)) for pset, tensor, where in rest[0]))
        if name in ("Stack", "Broke"):
            return (Stack if name == "Stack" else Broke)(rank, str(rest[0]))
        if name == "Left":
            return Left(rank, bool(rest[0]))
        bare: dict[str, type[Began] | type[Ended]] = {"Began": Began, "Ended": Ended}
        return bare[name](rank, *rest)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError, struct.error) as error:
        raise ValueError(f"not an event: {data[:80]!r} ({error})") from None


Outgoing = tuple[Response, int] | int
"""What a response message holds: (response, its new cache id or -1), or the id of a cached response."""


Message = tuple[list[Outgoing], list[int], Values]
"""What one message of rank 0 says: what to do, in order, which cache ids are void, and results that came with it."""


def encode_responses(number: int, items: list[Outgoing], evicted: list[int], results: Values | None = None) -> bytes:
    """One message from rank 0 to all: its number, what to do, and which cache ids are void from now on.

    Args:
        results: of small tensors, by their index in ``items``; nothing is to be done for these any more.
    """
    if not evicted and (quick := _pack_ids(0, number, items, results or {})):
        return quick
    plain = [item if isinstance(item, int) else [*_response_fields(item[0]), item[1]] for item in items]
    return _with_values([number, plain, evicted], results or {})


def decode_responses(data: bytes) -> tuple[int, Message]:
    """Undo :func:`encode_responses`."""
    if data.startswith(_QUICK):
        _, number, ids, results = _unpack_ids(data)
        return number, (list(ids), [], results)
    data, results = _split_values(data)
    number, plain, evicted = json.loads(data)
    items = [item if isinstance(item, int) else (_response(item[:-1]), item[-1]) for item in plain]
    return number, (items, evicted, results)


_QUICK = b"\x01"  # no JSON begins with it
_IDS = struct.Struct("<cIQII")  # that, the rank, a number, how many ids, and how many of them have values


def _pack_ids(rank: int, number: int, items: Sequence[object], values: Values) -> bytes:
    """What a steady step says, cache ids alone: numbers, each with 4 bytes. Empty if there is anything else."""
    lengths = [part for index, value in values.items() for part in (index, len(value))]
    try:
        ids = struct.pack(f"<{len(items) + len(lengths)}I", *items, *lengths)
    except struct.error:
        return b""
    return b"".join((_IDS.pack(_QUICK, rank, number, len(items), len(values)), ids, *values.values()))


def _unpack_ids(data: bytes) -> tuple[int, int, tuple[int, ...], Values]:
    _, rank, number, n, with_values = _IDS.unpack_from(data)
    end = _IDS.size + 4 * (n + 2 * with_values)
    numbers = struct.unpack_from(f"<{n + 2 * with_values}I", data, _IDS.size)
    values: Values = {}
    for i in range(n, len(numbers), 2):
        values[numbers[i]], end = data[end : end + numbers[i + 1]], end + numbers[i + 1]
    if end != len(data) or max(values, default=-1) >= n:
        raise ValueError("the lengths do not fit")
    return rank, number, numbers[:n], values


def _with_values(value: list[Any], values: Values) -> bytes:
    """The JSON; behind it, if there are values, a line with their indices and lengths, and they themselves."""
    if not values:
        return _dump(value)
    lengths = _dump([[index, len(each)] for index, each in values.items()])
    return b"\n".join([_dump(value), lengths, b"".join(values.values())])


def _split_values(data: bytes) -> tuple[bytes, Values]:
    plain, line, rest = data.partition(b"\n")
    values: Values = {}
    if line:
        lengths, _, rest = rest.partition(b"\n")
        for index, length in json.loads(lengths):
            values[int(index)], rest = rest[:length], rest[length:]
    return plain, values


def _dump(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def _request(fields: list[Any]) -> Request:
    name, kind, dtype, shape, op, root, device, pre, post, pset, splits, group, size, absent, place = fields
    shape, splits = tuple(map(int, shape)), tuple(map(int, splits))
    return Request(
        str(name), Kind(kind), str(dtype), shape, ReduceOp(op), int(root), str(device),
        float(pre), float(post), int(pset), splits, str(group), int(size), bool(absent), int(place),
    )  # fmt: skip


def _response(fields: list[Any]) -> Response:
    name, kind, dtype, shape, op, root, device, pre, post, pset, rows, places, absent, error = fields
    return Response(
        name, Kind(kind), dtype, tuple(shape), ReduceOp(op), root, device, pre, post, pset, tuple(rows),
        tuple(places), absent, tuple(error),
    )  # fmt: skip
