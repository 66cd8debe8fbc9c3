"""The bytes of events and decisions. JSON, so that a student can read a captured message, and decoding runs no code.

In a steady step a request and its response shrink to one cache id each, and a message to four bytes for each of them.
The values of small tensors follow the JSON's line as raw bytes (``runtime/steady/eager.py``).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import astuple, fields
from operator import attrgetter
from typing import Any

from workbench.core.messages import (
    Announce,
    Broke,
    Decision,
    Differs,
    Event,
    Kind,
    Left,
    Raised,
    ReduceOp,
    Request,
    Response,
    Values,
)
from workbench.runtime.events import Beat, Began, Blocked, Ended, Overdue, Sent, Stack

_LONGEST_TEXT = 64 << 10  # of a traceback, whose end says most
_SELDOM = ("ranks", "progress")  # fields that few requests have, which are sent behind the others if there are any
_LOCAL = ("cached", "requests", "result")  # fields of a response that are not sent

# As astuple(), which copies deeply and takes ten times as long.
_request_fields = attrgetter(*(field.name for field in fields(Request) if field.name not in _SELDOM))
_response_fields = attrgetter(*(field.name for field in fields(Response) if field.name not in _LOCAL))


def encode_event(event: Event) -> bytes:
    """One event as bytes."""
    if isinstance(event, Announce):
        if quick := _pack_ids(event.rank, event.seen, event.items, event.values):
            return quick
        items = [item if isinstance(item, int) else _plain(item) for item in event.items]
        return _with_values(["Announce", event.rank, items, event.seen], event.values)
    if isinstance(event, Raised) and len(event.traceback) > _LONGEST_TEXT:
        event = Raised(event.rank, "[…]\n" + event.traceback[-_LONGEST_TEXT:], event.final, event.failures)
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
            return Raised(rank, str(rest[0]), bool(rest[1]), int(rest[2]))
        if name == "Beat":
            return Beat(rank, str(rest[0]), int(rest[1]), int(rest[2]))
        if name == "Blocked":
            waits = tuple((int(pset), str(tensor), str(where)) for pset, tensor, where in rest[0])
            return Blocked(rank, waits, bool(rest[1]))
        if name == "Overdue":
            return Overdue(rank, int(rest[0]), str(rest[1]), float(rest[2]))
        if name == "Sent":
            engine, number, version, sent, idle = rest
            newest = tuple((int(each), int(cell)) for each, cell in sent)
            return Sent(rank, int(engine), int(number), int(version), newest, tuple(map(int, idle)))
        if name in ("Stack", "Broke"):
            return (Stack if name == "Stack" else Broke)(rank, str(rest[0]))
        if name == "Left":
            return Left(rank, bool(rest[0]))
        if name == "Began":
            return Began(rank, bool(rest[0]), int(rest[1]))
        return {"Ended": Ended, "Differs": Differs}[name](rank, *rest)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError, struct.error) as error:
        raise ValueError(f"not an event: {data[:80]!r} ({error})") from None


def encode_request(request: Request) -> bytes:
    """A request by itself; equal ones have equal bytes."""
    return _dump(_plain(request))


def decode_request(data: bytes) -> Request:
    """Undo :func:`encode_request`."""
    return _request(json.loads(data))


def encode_decision(decision: Decision) -> bytes:
    """One message from rank 0 to all. Of a response that the ranks know only the id is sent."""
    ids = [item.cache_id if isinstance(item, Response) and item.cached else item for item in decision.items]
    if not decision.evicted and (quick := _pack_ids(0, decision.number, ids, decision.results)):
        return quick
    plain = [item if isinstance(item, int) else _response_fields(item) for item in ids]
    return _with_values([decision.number, plain, decision.evicted], decision.results)


def decode_decision(data: bytes) -> Decision:
    """Undo :func:`encode_decision`, but for ids, which stay ids."""
    if data.startswith(_QUICK):
        _, number, ids, results = _unpack_ids(data)
        return Decision(number, list(ids), results)
    data, results = _split_values(data)
    number, plain, evicted = json.loads(data)
    return Decision(number, [item if isinstance(item, int) else _response(item) for item in plain], results, evicted)


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


def _plain(request: Request) -> tuple[Any, ...]:
    """Its fields; the last two, which few have, only if there are any."""
    found: tuple[Any, ...] = _request_fields(request)
    return (*found, request.ranks, request.progress) if request.ranks or request.progress else found


def _request(fields: list[Any]) -> Request:
    name, kind, dtype, shape, op, root, device, pre, post, pset, splits, group, size, absent, *rest = fields
    shape, splits, (offset, priority, user, *seldom) = tuple(map(int, shape)), tuple(map(int, splits)), rest
    ranks, progress = seldom or ((), ())
    return Request(
        str(name), Kind(kind), str(dtype), shape, ReduceOp(op), int(root), str(device),
        float(pre), float(post), int(pset), splits, str(group), int(size), bool(absent), int(offset), int(priority),
        tuple(map(int, user)), tuple(map(int, ranks)),
        tuple((str(what), float(value)) for what, value in progress),
    )  # fmt: skip


def _response(fields: list[Any]) -> Response:
    name, kind, dtype, shape, op, root, device, pre, post, pset, rows, offsets, absent, joined, error, *rest = fields
    return Response(
        name, Kind(kind), dtype, tuple(shape), ReduceOp(op), root, device, pre, post, pset, tuple(rows),
        tuple(offsets), absent, tuple(joined), tuple(error), *rest,
    )  # fmt: skip
