"""Chrome traces: valid JSON whose events are the simulated step's."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pytest

from workbench.simulate.export.chrome import chrome_trace, write_chrome_trace
from workbench.simulate.models import parameters, resnet101
from workbench.simulate.steps import MIB, Overlap, Policy, Result, Span, simulate, spans

LAYERS = spans(resnet101(), step_s=0.6)


def network(nbytes: float) -> float:
    """1 GB/s."""
    return 1e-4 + nbytes * 1e-9


@pytest.mark.parametrize(
    "policy", [Policy(), Policy(Overlap.FORWARD, priority=True, piece_bytes=MIB), Policy(value_bytes=2)]
)
def test_a_file_is_the_step(policy: Policy, tmp_path: Path) -> None:
    """Each event once, with its begin and length; the bytes add up to the model's; nothing overlaps on a thread."""
    result = simulate(LAYERS, network, policy)
    write_chrome_trace(tmp_path / "step.json", result, LAYERS, policy)
    events = json.loads((tmp_path / "step.json").read_text())["traceEvents"]
    complete = [event for event in events if event["ph"] == "X"]
    assert {event["args"]["name"] for event in events if event["name"] == "thread_name"} == {"compute", "network"}
    assert sum(e["args"]["bytes"] for e in complete if e["cat"] == "reduce") == policy.value_bytes * parameters(
        resnet101()
    )
    assert len(complete) == len(result.events)
    for found, event in zip(complete, result.events, strict=True):
        assert found["dur"] == pytest.approx(1e6 * (event.end_s - event.begin_s), abs=1e-3)
        assert all(name in found["name"] for name in event.names)
    assert min(event["ts"] for event in complete) == 0
    for thread in (0, 1):
        one = sorted((event["ts"], event["ts"] + event["dur"]) for event in complete if event["tid"] == thread)
        assert all(end <= begin + 0.01 for (_, end), (begin, _) in pairwise(one))


def test_events_without_their_layers_are_refused() -> None:
    """Other layers', or none at all."""
    with pytest.raises(ValueError, match=r"Events of .*conv1"):
        chrome_trace(simulate(LAYERS, network), [Span("fc", 1.0, 1.0, 1)])
    with pytest.raises(ValueError, match="Events of no layer"):
        chrome_trace(Result(1.0), LAYERS)
