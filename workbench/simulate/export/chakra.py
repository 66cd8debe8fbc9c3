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
together: that was planned here. No replay has been tried yet. The package protobuf writes, by a part of the schema.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cache
from pathlib import Path
from typing import Any

from workbench.common.extras import cure
from workbench.errors import LaunchError
from workbench.simulate.steps import Overlap, Policy, Result, Span, TimedEvent

VERSION = "0.0.4"
ALL_REDUCE = 0

_PACKAGE = "ChakraProtoMsg"
# (kind, name, number) of the fields of each message. An enum travels as an int32.
_FIELDS = {
    "AttributeProto": [
        ("string", "name", 1),
        ("int64", "int64_val", 9),  # of the kinds of values, the two that are written
        ("bool", "bool_val", 27),
    ],
    "GlobalMetadata": [("string", "version", 1), ("AttributeProto", "attr", 2)],
    "Node": [
        ("uint64", "id", 1),
        ("string", "name", 2),
        ("int32", "type", 3),
        ("uint64", "ctrl_deps", 4),
        ("uint64", "data_deps", 5),
        ("uint64", "start_time_micros", 6),
        ("uint64", "duration_micros", 7),
        ("AttributeProto", "attr", 10),
    ],
}
_REPEATED = ("attr", "ctrl_deps", "data_deps")


class NodeType(IntEnum):
    """As in the schema."""

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
    attributes: dict[str, int] = field(default_factory=dict)


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
    size = value_bytes * event.values
    attributes: dict[str, int] = {"is_cpu_op": False, "comm_type": ALL_REDUCE, "comm_size": size}
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
        LaunchError: protobuf is not installed.
        OSError: one cannot be written.
        ValueError: there is no rank, or as :func:`nodes`.
    """
    if ranks < 1:
        raise ValueError(f"{ranks} ranks: at least one is needed.")
    made, classes, raw = nodes(result, layers, policy), _classes(), io.BytesIO()
    from google.protobuf import proto

    # With the number of nodes, so that a reader knows of a file that is cut between two of them.
    head = classes["GlobalMetadata"](version=VERSION, attr=[_attribute("nodes", len(made))])
    for message in [head, *(_message(classes["Node"], node) for node in made)]:
        proto.serialize_length_prefixed(message, raw)
    paths = [Path(f"{prefix}.{rank}.et") for rank in range(ranks)]
    for path in paths:
        path.write_bytes(raw.getvalue())
    return paths


@cache
def _classes() -> dict[str, Any]:
    """Protobuf's classes of the messages, by name."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError:
        raise LaunchError(f"Chakra traces need protobuf: {cure('chakra')}") from None
    file = descriptor_pb2.FileDescriptorProto(name="et_def.proto", package=_PACKAGE, syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    for message, fields in _FIELDS.items():
        made = file.message_type.add(name=message)
        for kind, name, number in fields:
            label = kinds.LABEL_REPEATED if name in _REPEATED else kinds.LABEL_OPTIONAL
            added = made.field.add(name=name, number=number, label=label)
            if kind in _FIELDS:
                added.type_name = f".{_PACKAGE}.{kind}"
            else:
                added.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
            if name.endswith("_val"):
                added.oneof_index = 0
        if message == "AttributeProto":
            made.oneof_decl.add(name="value")  # so that a False or a 0 is written, too
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(file.SerializeToString())
    found = (pool.FindMessageTypeByName(f"{_PACKAGE}.{name}") for name in _FIELDS)
    return {each.name: message_factory.GetMessageClass(each) for each in found}


def _message(kind: Any, node: TraceNode) -> Any:
    same = {name: getattr(node, name) for name in ("id", "name", "type", "ctrl_deps", "data_deps")}
    attributes = [_attribute(*each) for each in node.attributes.items()]
    return kind(**same, start_time_micros=node.start_us, duration_micros=node.duration_us, attr=attributes)


def _attribute(name: str, value: int) -> dict[str, Any]:
    return {"name": name, "bool_val" if isinstance(value, bool) else "int64_val": value}
