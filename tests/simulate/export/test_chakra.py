"""Chakra traces: read by protobuf's own parser with the schema's fields, and true to the simulated step."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from workbench.core.buckets import Bucket, Piece, plan_buckets
from workbench.simulate.export.chakra import (
    VERSION,
    NodeType,
    TraceNode,
    decode,
    encode,
    nodes,
    read_chakra,
    write_chakra,
)
from workbench.simulate.export.wire import delimited, messages, number, read_varint, text, varint
from workbench.simulate.models import parameters, vgg16
from workbench.simulate.steps import MIB, Overlap, Policy, Result, Span, TimedEvent, simulate, spans

LAYERS = spans(vgg16(), step_s=0.4)
POLICIES = {
    "plain": Policy(),
    "nothing overlaps": Policy(Overlap.NOTHING, fusion_bytes=0),
    "float16": Policy(value_bytes=2),
    "buckets": Policy(bucket_bytes=32 * MIB),
    "priority": Policy(Overlap.FORWARD, priority=True, fusion_bytes=4 * MIB, piece_bytes=4 * MIB),
}


def network(nbytes: float) -> float:
    """1 GB/s."""
    return 1e-4 + nbytes * 1e-9


def trace(name: str) -> list[TraceNode]:
    """A step of VGG-16."""
    return nodes(simulate(LAYERS, network, POLICIES[name]), LAYERS, POLICIES[name])


def buckets(policy: Policy) -> list[Bucket]:
    """As the package lays them out."""
    return plan_buckets([Piece(layer.name, layer.values, "float32") for layer in LAYERS], policy.bucket_bytes)


def schema() -> tuple[Any, Any]:
    """``GlobalMetadata`` and ``Node`` of et_def.proto, as protobuf's own classes."""
    pytest.importorskip("google.protobuf")
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="et.proto", package="ChakraProtoMsg", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    enum = file.enum_type.add(name="NodeType")
    for name, value in [("INVALID_NODE", 0), ("COMP_NODE", 4), ("COMM_COLL_NODE", 7)]:
        enum.value.add(name=name, number=value)

    def message(name: str, rows: list[tuple[str, int, int, str, bool, bool]]) -> None:
        made = file.message_type.add(name=name)
        if any(one_of for *_, one_of in rows):
            made.oneof_decl.add(name="value")
        for field, key, kind, of, repeated, one_of in rows:
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            added = made.field.add(name=field, number=key, type=kind, label=label)
            if of:
                added.type_name = f".ChakraProtoMsg.{of}"
            if one_of:
                added.oneof_index = 0

    message(
        "AttributeProto",
        [
            ("name", 1, kinds.TYPE_STRING, "", False, False),
            ("double_val", 3, kinds.TYPE_DOUBLE, "", False, True),
            ("int64_val", 9, kinds.TYPE_INT64, "", False, True),
            ("bool_val", 27, kinds.TYPE_BOOL, "", False, True),
            ("string_val", 29, kinds.TYPE_STRING, "", False, True),
        ],
    )
    attributes = ("attr", kinds.TYPE_MESSAGE, "AttributeProto", True, False)
    message(
        "GlobalMetadata", [("version", 1, kinds.TYPE_STRING, "", False, False), (attributes[0], 2, *attributes[1:])]
    )
    message(
        "Node",
        [
            ("id", 1, kinds.TYPE_UINT64, "", False, False),
            ("name", 2, kinds.TYPE_STRING, "", False, False),
            ("type", 3, kinds.TYPE_ENUM, "NodeType", False, False),
            ("ctrl_deps", 4, kinds.TYPE_UINT64, "", True, False),
            ("data_deps", 5, kinds.TYPE_UINT64, "", True, False),
            ("start_time_micros", 6, kinds.TYPE_UINT64, "", False, False),
            ("duration_micros", 7, kinds.TYPE_UINT64, "", False, False),
            (attributes[0], 10, *attributes[1:]),
        ],
    )
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    found = (pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}") for name in ("GlobalMetadata", "Node"))
    metadata, node = map(message_factory.GetMessageClass, found)
    return metadata, node


@pytest.mark.parametrize("name", POLICIES)
def test_protobuf_reads_what_is_written(name: str, tmp_path: Path) -> None:
    """Every field of every node; and what protobuf writes for it are the same bytes."""
    metadata, theirs = schema()
    made = trace(name)
    paths = write_chakra(
        tmp_path / "vgg", simulate(LAYERS, network, POLICIES[name]), LAYERS, ranks=3, policy=POLICIES[name]
    )
    assert [path.name for path in paths] == ["vgg.0.et", "vgg.1.et", "vgg.2.et"]
    head, *rest = messages(paths[2].read_bytes())
    assert metadata.FromString(head).version == VERSION
    assert len(rest) == len(made)
    for raw, node in zip(rest, made, strict=True):
        found = theirs.FromString(raw)
        assert (found.id, found.name, found.type) == (node.id, node.name, node.type)
        assert (tuple(found.ctrl_deps), tuple(found.data_deps)) == (node.ctrl_deps, node.data_deps)
        assert (found.start_time_micros, found.duration_micros) == (node.start_us, node.duration_us)
        values = {attr.name: getattr(attr, attr.WhichOneof("value")) for attr in found.attr}
        assert values == node.attributes
        assert found.SerializeToString() == raw


@pytest.mark.parametrize("name", POLICIES)
def test_a_trace_is_the_step(name: str) -> None:
    """Two nodes a layer and one a reduction; bytes are the model's (and a bucket's padding), computing the step's."""
    made, policy = trace(name), POLICIES[name]
    computed = [node for node in made if node.type == NodeType.COMP_NODE]
    reduced = [node for node in made if node.type == NodeType.COMM_COLL_NODE]
    events = simulate(LAYERS, network, policy).events
    assert len(computed) == 2 * len(LAYERS)
    assert len(reduced) == sum(event.what == "reduce" for event in events)
    values = sum(int(node.attributes["comm_size"]) for node in reduced) // policy.value_bytes
    padding = 0 if not policy.bucket_bytes else sum(bucket.length for bucket in buckets(policy)) - parameters(vgg16())
    assert 0 <= padding < 64 * len(LAYERS)
    assert values == parameters(vgg16()) + padding
    assert sum(node.duration_us for node in computed) == pytest.approx(0.4e6, abs=len(computed))


@pytest.mark.parametrize("name", POLICIES)
def test_dependencies_are_acyclic_and_kept(name: str) -> None:
    """Each points to a node before it, which ends before it begins; each gradient waits for its own backward."""
    made = trace(name)
    by_id = {node.id: node for node in made}
    assert list(by_id) == list(range(len(made)))
    for node in made:
        for dep in (*node.ctrl_deps, *node.data_deps):
            assert dep < node.id
            assert by_id[dep].start_us + by_id[dep].duration_us <= node.start_us + 2, "to rounding"
        if node.type == NodeType.COMM_COLL_NODE:
            names = {by_id[dep].name for dep in node.data_deps}
            wanted = {f"backward {layer}" for layer in node.name.removeprefix("reduce ").split(", ")}
            assert names == ({f"backward {LAYERS[0].name}"} if name == "nothing overlaps" else wanted)


@pytest.mark.parametrize("seed", range(20))
def test_any_node_comes_back(seed: int) -> None:
    """With numbers of any size, text beyond ASCII, and attributes of each kind."""
    chance = random.Random(seed)
    ids = [chance.getrandbits(chance.choice([1, 7, 8, 32, 63, 64])) for _ in range(chance.randrange(6))]
    attributes: dict[str, Any] = {"b": chance.random() < 0.5, "i": -chance.getrandbits(40), "f": chance.random()}
    attributes |= {"s": "Größe ·", "zero": 0, "": "unnamed"}
    node = TraceNode(chance.getrandbits(64), "größer", 7, tuple(ids), tuple(reversed(ids)), 0, 2**60, attributes)
    assert decode(encode(node)) == node


def test_traces_of_other_writers_are_read() -> None:
    """Dependencies that are not packed, and fields that are not known here."""
    raw = (
        number(1, 5)
        + text(2, "x")
        + number(3, 9)
        + number(5, 1)
        + number(5, 300)
        + text(8, b"\x0a\x01v")
        + b"\xf5\x07abcd"
    )
    assert decode(raw) == TraceNode(5, "x", 9, data_deps=(1, 300))
    assert read_varint(varint(-1), 0) == (2**64 - 1, 10)


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    """A rank's file."""
    return write_chakra(tmp_path / "step", simulate(LAYERS, network), LAYERS, ranks=1)[0]


def test_it_comes_back(whole: Path) -> None:
    """From the file."""
    assert read_chakra(whole) == nodes(simulate(LAYERS, network), LAYERS)


def test_a_trace_that_is_cut_off_anywhere_is_refused(whole: Path) -> None:
    """At every byte: amid a length, amid a node, and between two; the error says so, and what to do."""
    raw = whole.read_bytes()
    for end in range(1, len(raw)):
        whole.write_bytes(raw[:end])
        with pytest.raises(ValueError, match=r"is cut off: .* Write it again"):
            read_chakra(whole)


@pytest.mark.parametrize("raw", [b"", b"\xff" * 20, b"\x02\x0b\x0c", b'{"traceEvents": []}', delimited(number(2, 3))])
def test_something_else_is_no_trace(raw: bytes, tmp_path: Path) -> None:
    """An empty file, noise, groups, JSON, an attribute that is none: the file is named."""
    path = tmp_path / "other.et"
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=r"other\.et is (no Chakra trace|cut off)"):
        read_chakra(path)


def test_a_dependency_on_nothing_is_refused(tmp_path: Path) -> None:
    """The node and what it wants are named."""
    path = tmp_path / "hole.et"
    path.write_bytes(delimited(text(1, VERSION)) + delimited(encode(TraceNode(3, "sum", 7, data_deps=(1,)))))
    with pytest.raises(ValueError, match=r"node 3 \(sum\) depends on \[1\]"):
        read_chakra(path)


def test_events_of_another_step_are_refused() -> None:
    """Layers that were not simulated, and no rank to write for."""
    other = [Span("other", 1.0, 1.0, 10)]
    with pytest.raises(ValueError, match="not a step of these layers"):
        nodes(simulate(LAYERS, network), other)
    with pytest.raises(ValueError, match="not a step of these layers"):
        nodes(Result(1.0, [TimedEvent("forward", ("other",), 0.0, 1.0)]), other)
    with pytest.raises(ValueError, match="0 ranks"):
        write_chakra("x", simulate(other, network), other, ranks=0)
