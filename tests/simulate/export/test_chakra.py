"""Chakra traces: bytes by the schema's numbers, and true to the simulated step."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from workbench.core.buckets import Bucket, Piece, plan_buckets
from workbench.errors import LaunchError
from workbench.simulate.export import chakra
from workbench.simulate.export.chakra import NodeType, TraceNode, nodes, write_chakra
from workbench.simulate.models import parameters, vgg16
from workbench.simulate.steps import MIB, Overlap, Policy, Result, Span, TimedEvent, simulate, spans

parse_length_prefixed = pytest.importorskip("google.protobuf.proto").parse_length_prefixed

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


def delimited(*fields: str) -> bytes:
    """A message as it stands in a file, of fields that are written in hexadecimal, behind its length in one byte."""
    raw = bytes.fromhex("".join(fields))
    return bytes([len(raw)]) + raw


def test_the_bytes_are_the_schema_s(tmp_path: Path) -> None:
    """Each field's key is number << 3 | kind of et_def.proto; of a layer that takes 1 and 2 µs, and 3 µs on the way."""
    one = [Span("a", forward_s=1e-6, backward_s=2e-6, values=1)]
    paths = write_chakra(tmp_path / "one", simulate(one, lambda nbytes: 3e-6), one, ranks=3)
    assert [path.name for path in paths] == ["one.0.et", "one.1.et", "one.2.et"]
    name = {
        word: f"0a{len(word):02x}{word.encode().hex()}" for word in ("nodes", "is_cpu_op", "comm_type", "comm_size")
    }
    on_gpu = f"520e{name['is_cpu_op']}d80100"  # attr = 10, of 14 bytes: name = 1, bool_val = 27
    assert paths[2].read_bytes() == b"".join(
        [
            delimited("0a05", b"0.0.4".hex(), "1209", name["nodes"], "4803"),  # version = 1; attr = 2: int64_val = 9
            delimited("1209", b"forward a".hex(), "1804", "3801", on_gpu),  # name = 2, type = 3, duration_micros = 7
            delimited(
                "0801", "120a", b"backward a".hex(), "1804", "2a0100", "3001", "3802", on_gpu
            ),  # id, data_deps = 5
            delimited(
                *("0802", "1208", b"reduce a".hex(), "1807", "2a0101", "3003", "3803", on_gpu),
                *(f"520d{name['comm_type']}4800", f"520d{name['comm_size']}4804"),
            ),
        ]
    )


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


def test_it_comes_back(tmp_path: Path) -> None:
    """From the file, by protobuf: how many nodes there are, and each of them."""
    made, classes = nodes(simulate(LAYERS, network), LAYERS), chakra._classes()
    with write_chakra(tmp_path / "step", simulate(LAYERS, network), LAYERS, ranks=1)[0].open("rb") as file:
        assert parse_length_prefixed(classes["GlobalMetadata"], file).attr[0].int64_val == len(made)
        assert list(iter(lambda: parse_length_prefixed(classes["Node"], file), None)) == [
            chakra._message(classes["Node"], node) for node in made
        ]


def test_without_protobuf_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing is written."""
    chakra._classes.cache_clear()
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    with pytest.raises(LaunchError, match=r"pip install '\.\[chakra\]'"):
        write_chakra("x", simulate(LAYERS, network), LAYERS, ranks=1)


def test_events_of_another_step_are_refused() -> None:
    """Layers that were not simulated, and no rank to write for."""
    other = [Span("other", 1.0, 1.0, 10)]
    with pytest.raises(ValueError, match="not a step of these layers"):
        nodes(simulate(LAYERS, network), other)
    with pytest.raises(ValueError, match="not a step of these layers"):
        nodes(Result(1.0, [TimedEvent("forward", ("other",), 0.0, 1.0)]), other)
    with pytest.raises(ValueError, match="0 ranks"):
        write_chakra("x", simulate(other, network), other, ranks=0)
