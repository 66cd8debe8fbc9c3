"""A simulated step as Chakra execution traces, the format that ASTRA-sim and others replay on networks of their own.

One file for each rank, ``PREFIX.RANK.et``, of MLCommons' schema ``et_def.proto``: ``GlobalMetadata``, then ``Node`` by
``Node``. Ranks are alike, and so are their files::

    forward 1 ─► forward 2 ─► backward 2 ─► backward 1          COMP_NODE, each with its duration in µs
                                  │              │              ─► data_deps
                                  ▼              ▼
                              reduce 2 ┄┄┄┄┄► reduce 1          COMM_COLL_NODE, ALL_REDUCE of comm_size bytes
                                                                ┄► ctrl_deps: the engine reduces one batch at a time

A reduction depends on the backward of its layers; with ``Overlap.NOTHING``, on the end of backward. So a replay with
other links moves what the network does, and keeps what must come first. What it cannot move is which layers travel
together: that was planned here. The files are read back by protobuf's own parser; no replay has been tried yet.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from workbench.simulate.export.wire import CutError, delimited, double, fields, messages, number, packed, text, unpacked
from workbench.simulate.steps import Overlap, Policy, Result, Span, TimedEvent

VERSION = "0.0.4"
ALL_REDUCE = 0

Value = bool | int | float | str
_BOOL, _INT64, _DOUBLE, _STRING = 27, 9, 3, 29  # of AttributeProto


class NodeType(IntEnum):
    """As in the schema; others are read as they are."""

    COMP_NODE = 4
    COMM_COLL_NODE = 7


@dataclass(frozen=True)
class TraceNode:
    """A node of a trace.

    Args:
        id: of it, in its file.
        name: for people.
        type: a :class:`NodeType`.
        ctrl_deps, data_deps: ids of nodes that come before.
        start_us, duration_us: in the simulation.
        attributes: by name.
    """

    id: int
    name: str
    type: int
    ctrl_deps: tuple[int, ...] = ()
    data_deps: tuple[int, ...] = ()
    start_us: int = 0
    duration_us: int = 0
    attributes: dict[str, Value] = field(default_factory=dict)


def nodes(result: Result, layers: Sequence[Span], policy: Policy | None = None) -> list[TraceNode]:
    """The last step of a simulation, in an order in which each node comes after what it depends on.

    Args:
        result: of :func:`workbench.simulate.steps.simulate`.
        layers: that were simulated.
        policy: with which they were.

    Raises:
        ValueError: the events are not those of a step of these layers.

    Example:
        >>> from workbench.simulate.steps import simulate
        >>> one = [Span("fc", forward_s=1e-3, backward_s=2e-3, values=1000)]
        >>> for node in nodes(simulate(one, lambda nbytes: 5e-4), one):
        ...     print(node.id, node.name, node.data_deps, node.duration_us, node.attributes.get("comm_size"))
        0 forward fc () 1000 None
        1 backward fc (0,) 2000 None
        2 reduce fc (1,) 500 4000
    """
    policy = policy or Policy()
    computed = [event for event in result.events if event.what != "reduce"]
    wanted = [("forward", one.name) for one in layers] + [("backward", one.name) for one in reversed(layers)]
    if [(event.what, event.names[0]) for event in computed] != wanted:
        raise ValueError("The events are not a step of these layers: give the result and the layers of one simulate().")
    start = min(event.begin_s for event in computed)
    made = [_computation(i, event, start) for i, event in enumerate(computed)]
    after = {event.names[0]: i for i, event in enumerate(computed) if event.what == "backward"}
    for event in sorted((one for one in result.events if one.what == "reduce"), key=lambda one: one.begin_s):
        last = policy.overlap is Overlap.NOTHING
        deps = {len(computed) - 1} if last else {after[name] for name in event.names}
        made.append(_reduction(len(made), event, start, sorted(deps), len(computed), policy.value_bytes))
    return made


def _computation(i: int, event: TimedEvent, start: float) -> TraceNode:
    deps = (i - 1,) if i else ()
    name = f"{event.what} {event.names[0]}"
    return TraceNode(i, name, NodeType.COMP_NODE, (), deps, *_times(event, start), {"is_cpu_op": False})


def _reduction(
    i: int, event: TimedEvent, start: float, deps: Sequence[int], computed: int, value_bytes: int
) -> TraceNode:
    attributes: dict[str, Value] = {
        "is_cpu_op": False,
        "comm_type": ALL_REDUCE,
        "comm_size": value_bytes * event.values,
    }
    before = (i - 1,) if i > computed else ()
    name = f"reduce {', '.join(event.names)}"
    return TraceNode(i, name, NodeType.COMM_COLL_NODE, before, tuple(deps), *_times(event, start), attributes)


def _times(event: TimedEvent, start: float) -> tuple[int, int]:
    return round(1e6 * (event.begin_s - start)), round(1e6 * (event.end_s - event.begin_s))


def write_chakra(
    prefix: str | Path, result: Result, layers: Sequence[Span], ranks: int, policy: Policy | None = None
) -> list[Path]:
    """Write a file for each rank.

    Args:
        prefix: of the files' paths.
        result, layers, policy: as for :func:`nodes`.
        ranks: how many.

    Returns:
        The files.

    Raises:
        OSError: one cannot be written.
        ValueError: there is no rank, or as :func:`nodes`.
    """
    if ranks < 1:
        raise ValueError(f"{ranks} ranks: at least one is needed.")
    made = nodes(result, layers, policy)
    raw = delimited(_metadata(len(made))) + b"".join(delimited(encode(node)) for node in made)
    paths = [Path(f"{prefix}.{rank}.et") for rank in range(ranks)]
    for path in paths:
        path.write_bytes(raw)
    return paths


def _metadata(count: int) -> bytes:
    """With the number of nodes, so that a file that ends between two of them is known to be cut."""
    return text(1, VERSION) + text(2, _attribute("nodes", count))


def encode(node: TraceNode) -> bytes:
    """The message ``Node``."""
    plain = [(6, node.start_us), (7, node.duration_us)]
    return b"".join(
        [
            number(1, node.id) if node.id else b"",
            text(2, node.name),
            number(3, node.type),
            packed(4, node.ctrl_deps),
            packed(5, node.data_deps),
            *(number(key, value) for key, value in plain if value),
            *(text(10, _attribute(name, value)) for name, value in node.attributes.items()),
        ]
    )


def _attribute(name: str, value: Value) -> bytes:
    if isinstance(value, bool):
        return text(1, name) + number(_BOOL, value)
    if isinstance(value, int):
        return text(1, name) + number(_INT64, value)
    return text(1, name) + (double(_DOUBLE, value) if isinstance(value, float) else text(_STRING, value))


def read_chakra(path: str | Path) -> list[TraceNode]:
    """Read a rank's file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is cut off, is something else, or a node depends on one that is not there.
    """
    raw = Path(path).read_bytes()
    try:
        head, *rest = messages(raw)
        count = next((_value(each) for key, each in fields(head) if key == 2 and _name(each) == "nodes"), None)
        found = [decode(each) for each in rest]
    except CutError as error:
        raise ValueError(f"{path} is cut off: {error}. Write it again.") from None
    except (ValueError, TypeError, struct.error) as error:
        raise ValueError(f"{path} is no Chakra trace: {error}.") from None
    if count is not None and count != len(found):
        raise ValueError(f"{path} is cut off: it has {len(found)} of {count} nodes. Write it again.")
    known = {node.id for node in found}
    for node in found:
        missing = {*node.ctrl_deps, *node.data_deps} - known
        if missing:
            raise ValueError(f"{path}: node {node.id} ({node.name}) depends on {sorted(missing)}, not in the file.")
    return found


def decode(raw: bytes) -> TraceNode:
    """The message ``Node``, of any writer: repeated numbers may be packed or not, other fields are passed over.

    Raises:
        ValueError: it is none.
    """
    numbers, deps = dict.fromkeys((1, 3, 6, 7), 0), {4: list[int](), 5: list[int]()}
    name, attributes = "", dict[str, Value]()
    for key, value in fields(raw):
        if key in numbers and isinstance(value, int):
            numbers[key] = value
        elif key in deps:
            deps[key] += [value] if isinstance(value, int) else unpacked(value)
        elif key == 2 and isinstance(value, bytes):
            name = value.decode()
        elif key == 10:
            attributes[_name(value)] = _value(value)
    return TraceNode(numbers[1], name, numbers[3], tuple(deps[4]), tuple(deps[5]), numbers[6], numbers[7], attributes)


def _name(raw: int | bytes) -> str:
    return next((value.decode() for key, value in _inside(raw) if key == 1 and isinstance(value, bytes)), "")


def _value(raw: int | bytes) -> Value:
    """Of the kinds that are written here; any other as it lies in the file."""
    for key, value in _inside(raw):
        if key in (1, 2):
            continue
        if isinstance(value, int):
            return bool(value) if key == _BOOL else value - (1 << 64) * (key == _INT64 and value >> 63)
        if key == _DOUBLE:
            return float(struct.unpack("<d", value)[0])
        return value.decode(errors="replace")
    return ""


def _inside(raw: int | bytes) -> list[tuple[int, int | bytes]]:
    if isinstance(raw, int):
        raise TypeError("an attribute is a number, not a message")
    return list(fields(raw))


__all__ = ["ALL_REDUCE", "VERSION", "NodeType", "TraceNode", "decode", "encode", "nodes", "read_chakra", "write_chakra"]
