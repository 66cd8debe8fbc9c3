"""The timeline's file: whole at any moment, one for each recording, and true to what was done."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from workbench.core.messages import Decision, Kind, Request, Response
from workbench.runtime.trace.timeline import Timeline

WRITES = """
import itertools, sys
from workbench.core.messages import Decision, Kind, Request, Response
from workbench.runtime.trace.timeline import Timeline

timeline = Timeline()
timeline.open(sys.argv[1])
print("writing", flush=True)
for i in itertools.count():
    name = f"allreduce.Größe {i % 50}"
    timeline.announced(0, [Request(name, Kind.ALLREDUCE)])
    decision = Decision(1, [Response(name, Kind.ALLREDUCE)])
    timeline.responded(decision)
    with timeline.activity(decision.items, "ALLREDUCE"):
        pass
"""


def decided(name: str) -> Decision:
    """All ranks are ready with this tensor."""
    return Decision(1, [Response(name, Kind.ALLREDUCE)])


def read(path: Path) -> list[dict[str, Any]]:
    """All events but those that introduce a tensor, which have the tensor's name under ``tensor``."""
    events = json.loads(path.read_text())
    names = {
        e["pid"]: e["args"].get("name", "") for e in events if e["name" if "name" in e else "ph"] == "process_name"
    }
    assert len(set(names.values())) == len(names), "one tensor, one process"
    return [e | {"tensor": names[e["pid"]]} for e in events if e["ph"] != "M"]


def story(events: list[dict[str, Any]], tensor: str) -> list[str]:
    """What happened to a tensor, in order of time: ``NAME`` where it began, ``/NAME`` where it ended."""
    lines, stack = [], list[str]()
    for event in sorted((e for e in events if e["tensor"] == tensor), key=lambda e: e["ts"]):
        if event["ph"] == "B":
            stack.append(event["name"])
            lines.append(event["name"])
        elif event["ph"] == "E":
            lines.append("/" + stack.pop())
        else:
            lines.append(event["name"])
    assert not stack
    return lines


def one_step(timeline: Timeline, name: str) -> None:
    """Two ranks announce a tensor, and it is reduced."""
    for rank in (1, 0):
        timeline.announced(rank, [Request(name, Kind.ALLREDUCE)])
    timeline.responded(decided(name))
    with timeline.activity(decided(name).items, "ALLREDUCE"), timeline.activity(decided(name).items, "MPI_ALLREDUCE"):
        pass


STEP = ["NEGOTIATE_ALLREDUCE", "1", "0", "/NEGOTIATE_ALLREDUCE"]
STEP += ["ALLREDUCE", "QUEUE", "/QUEUE", "MPI_ALLREDUCE", "/MPI_ALLREDUCE", "/ALLREDUCE"]


def test_a_tensor_s_story(tmp_path: Path) -> None:
    """Each phase begins, and ends within the one around it; the second step looks like the first."""
    timeline = Timeline()
    timeline.open(str(tmp_path / "t.json"), mark_cycles=True)
    timeline.cycle()
    for name in ("x", "y", "x"):
        one_step(timeline, name)
    timeline.close()
    events = read(tmp_path / "t.json")
    assert story(events, "x") == STEP * 2
    assert story(events, "y") == STEP
    assert next(e for e in events if e["tensor"] == "") | {"ts": 0} == {
        "ph": "i", "name": "CYCLE_START", "s": "g", "pid": 0, "tid": 0, "ts": 0, "tensor": "",
    }  # fmt: skip
    first = json.loads((tmp_path / "t.json").read_text())[0]
    assert abs(first["args"]["start_time_since_epoch_in_micros"] / 1e6 - time.time()) < 60


def test_queue_is_the_time_between_response_and_begin(tmp_path: Path) -> None:
    """A tensor that waits for the one before it spends that time in QUEUE."""
    timeline = Timeline()
    timeline.open(str(tmp_path / "t.json"))
    for name in ("x", "y"):
        timeline.announced(0, [Request(name, Kind.ALLREDUCE)])
        timeline.responded(decided(name))
    with timeline.activity(decided("x").items, "ALLREDUCE"):
        time.sleep(0.05)
    with timeline.activity(decided("y").items, "ALLREDUCE"):
        pass
    timeline.close()
    events = [e for e in read(tmp_path / "t.json") if e["tensor"] == "y"]
    began = next(e["ts"] for e in events if e.get("name") == "QUEUE")
    ended = next(e["ts"] for e in events if e["ph"] == "E" and e["ts"] > began)
    assert 50_000 <= ended - began < 5_000_000  # µs
    assert next(e["ts"] for e in events if e.get("name") == "ALLREDUCE") == began


def test_recordings_do_not_mix(tmp_path: Path) -> None:
    """Started and stopped again and again: each file has its own events, whatever was going on in between."""
    timeline = Timeline()
    one_step(timeline, "before")
    timeline.close()
    timeline.announced(0, [Request("across", Kind.ALLREDUCE)])
    for i in range(5):
        with timeline.activity(decided(f"amid {i}").items, "ALLREDUCE"):  # begun in one recording, ended in the next
            timeline.open(str(tmp_path / f"{i}.json"))  # ends the one before, too
        assert timeline.on
        timeline.responded(decided("across"))  # announced before this recording
        one_step(timeline, f"x{i}")
        timeline.announced(0, [Request("across", Kind.ALLREDUCE)])
        if i == 2:
            timeline.close()
            timeline.close()
            assert not timeline.on
    timeline.close()
    one_step(timeline, "after")
    for i in range(5):
        events = read(tmp_path / f"{i}.json")
        stories = {tensor: story(events, tensor) for tensor in {e["tensor"] for e in events}}
        amid = {f"amid {i + 1}": ["ALLREDUCE", "/ALLREDUCE"]} if i not in (2, 4) else {}
        assert stories.pop("across") == ["NEGOTIATE_ALLREDUCE", "0", "/NEGOTIATE_ALLREDUCE"]
        assert stories == {f"x{i}": STEP, **amid}


def test_threads_write_at_the_same_time(tmp_path: Path) -> None:
    """Events of several threads about many tensors: none is lost, and no two tensors share a process."""
    timeline = Timeline()
    timeline.open(str(tmp_path / "t.json"))
    threads = [
        threading.Thread(target=lambda t=t: [one_step(timeline, f"{t}.{i % 100}") for i in range(300)])
        for t in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    timeline.close()
    events = read(tmp_path / "t.json")
    assert story(events, "3.7") == STEP * 3
    assert len(events) == 4 * 300 * len(STEP)


@pytest.mark.timeout(120)
def test_a_killed_process_leaves_a_whole_file(tmp_path: Path) -> None:
    """Killed at any moment, in full flight: what the file holds is JSON, and holds what was written long before."""
    lengths = []
    for i in range(3):
        path = tmp_path / f"{i}.json"
        with subprocess.Popen([sys.executable, "-c", WRITES, str(path)], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"writing\n"
            json.loads(path.read_text())  # from the first moment on
            time.sleep(random.uniform(0.0, 0.3))
            process.send_signal(signal.SIGKILL)
        lengths.append(len(json.loads(path.read_text())))
    assert max(lengths) > 100, lengths


def test_a_file_that_cannot_be_written(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is an OSError at the start; a disk that is full later ends the recording, not the training."""
    timeline = Timeline()
    for path in (tmp_path, tmp_path / "missing" / "t.json", Path("/dev/full")):
        with pytest.raises(OSError, match=r"directory|space"):
            timeline.open(str(path))
        assert not timeline.on
    timeline.open(str(tmp_path / "t.json"))

    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    for i in range(1000):
        one_step(timeline, f"{i}")
    timeline.close()
    assert "timeline stops here" in caplog.text
    assert json.loads((tmp_path / "t.json").read_text())
