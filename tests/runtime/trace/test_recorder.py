"""The recorder: what it keeps, what it leaves out, and that nobody notices it."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

import workbench as wb
from workbench.core.handle import Handle
from workbench.core.messages import Kind, Request, Response
from workbench.core.pending import Entry
from workbench.errors import MismatchError
from workbench.job.context import HOLDER
from workbench.runtime.trace.recorder import OWN, Recorder, Snapshot
from workbench.runtime.trace.timeline import Timeline


@pytest.fixture(autouse=True)
def _quick_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKBENCH_HEARTBEAT_S", "0.1")


def response(name: str = "allreduce.x", kind: Kind = Kind.ALLREDUCE, **fields: Any) -> Response:
    """A response about a few floats."""
    return Response(name, kind, **{"dtype": "float32", "shape": (3,), **fields})


def record(recorder: Recorder, *batch: Response) -> None:
    """A batch without entries passes by."""
    recorder.begins()
    recorder.ended(list(batch), [None] * len(batch))


def snapshot() -> Snapshot:
    """Of the rank that calls it."""
    return HOLDER.get().timeline.recorder.snapshot(20)


def names(recorder: Recorder, last: int = 20) -> list[list[str]]:
    """Of the batches that it remembers."""
    return [one["names"] for one in recorder.snapshot(last)["collectives"]]


def test_the_oldest_make_room() -> None:
    """Only so many batches are kept, and of them the newest are given, in order, with numbers that go on."""
    recorder = Recorder(kept=3)
    for i in range(5):
        record(recorder, response(f"{i}"))
    assert names(recorder) == [["2"], ["3"], ["4"]]
    assert names(recorder, 2) == [["3"], ["4"]]
    assert names(recorder, 0) == []
    assert [one["index"] for one in recorder.snapshot(20)["collectives"]] == [2, 3, 4]


def test_sets_are_numbered_by_themselves() -> None:
    """Each process set counts its own batches, so that members agree whatever else they do."""
    recorder = Recorder()
    for process_set in (0, 7, 0):
        record(recorder, response(process_set=process_set))
    found = [(one["process_set"], one["index"], one["names"]) for one in recorder.snapshot(20)["collectives"]]
    assert found == [(0, 0, ["allreduce.x"]), (7, 0, ["allreduce.x (process set 7)"]), (0, 1, ["allreduce.x"])]


def test_off_means_nothing_is_kept() -> None:
    """While it is off nothing is kept, and the numbers go on."""
    recorder = Recorder(on=False)
    record(recorder, response())
    recorder.completed(0, [response()])
    assert recorder.snapshot(20) | {"wall_ns": 0, "host": ""} == {
        "wall_ns": 0, "host": "", "collectives": [], "answers": [],
    }  # fmt: skip
    recorder.on = True
    record(recorder, response())
    assert [one["index"] for one in recorder.snapshot(20)["collectives"]] == [1]


def test_what_is_not_a_collective_of_the_user() -> None:
    """The picture's own allgather, and what rank 0 says about no tensor, are not shown."""
    recorder = Recorder()
    for name in (f"allgather.{OWN}", "", "allreduce.x"):
        record(recorder, response(name))
    assert names(recorder) == [["allreduce.x"]]


@pytest.mark.parametrize(
    ("batch", "nbytes"),
    [
        ([response(), response(dtype="bfloat16", shape=(2, 2))], 12 + 8),
        ([response(shape=())], 4),
        ([response(kind=Kind.ALLGATHER, shape=(1, 5), rows=(1, 2))], 3 * 5 * 4),
        ([Response("b", Kind.BARRIER)], 0),
        ([response(all_absent=True)], 0),
        ([response(error=("MismatchError", "…"))], 0),
    ],
)
def test_bytes(batch: list[Response], nbytes: int) -> None:
    """Bytes are those on the wire, of all ranks' rows together, and none where nothing moves."""
    recorder = Recorder()
    record(recorder, *batch)
    assert recorder.snapshot(20)["collectives"][0]["bytes"] == nbytes


def test_answers_reach_as_far_back_as_the_batches() -> None:
    """Who came last is told for the batches that are given, and for all if there are no older ones."""
    recorder = Recorder()
    for i in range(4):
        entry = Entry(Request(f"{i}", Kind.ALLREDUCE), None, None, Handle(""), submitted=time.perf_counter_ns())
        recorder.completed(i, [response(f"{i}")])
        recorder.begins()
        recorder.ended([response(f"{i}")], [entry])
    assert [(name, rank) for name, rank, _ in recorder.snapshot(2)["answers"]] == [("2", 2), ("3", 3)]
    assert len(recorder.snapshot(4)["answers"]) == 4


def test_an_observer_is_no_obstacle() -> None:
    """An error in a batch passes through unchanged, and the next batch is recorded as if nothing had been."""
    timeline = Timeline(Recorder())
    with (
        pytest.raises(ZeroDivisionError),
        timeline.batch([response()], [None]),
        timeline.activity([response("allreduce.x")], "MPI_ALLREDUCE"),
    ):
        raise ZeroDivisionError
    with timeline.batch([response("y")], [None]):
        pass
    first, second = timeline.recorder.snapshot(20)["collectives"]
    assert [phase[0] for phase in first["phases"]] == ["MPI_ALLREDUCE"]
    assert (second["names"], second["phases"]) == (["y"], [])


def test_ranks_record_in_order_of_time() -> None:
    """On every rank: submitted, announced, answered, packed, moved, unpacked, done; one batch has one number."""

    def job() -> Snapshot:
        wb.allreduce(np.ones(5000), name="alone")
        together = [wb.allreduce_async(np.ones(4000), name=f"x{i}") for i in range(3)]
        assert all((handle.wait() == 1.0).all() for handle in together)
        wb.allgather(np.ones(3000 * (wb.rank() + 1)), name="g")
        wb.barrier()
        return snapshot()

    records = wb.run_threads(2, job, timeout_s=20.0)
    for found in records:
        for one in found["collectives"]:
            ends = [time for _, *begin_and_end in one["phases"] for time in begin_and_end]
            times = [*one["submitted"], one["announced"], one["arrived"], one["begun"], *ends, one["done"]]
            assert times == sorted(times), one
            assert times[0] > 0
        by_name = {name: one for one in found["collectives"] for name in one["names"]}
        assert [phase[0] for phase in by_name["allreduce.alone"]["phases"]] == ["THREADS_ALLREDUCE"]
        assert "THREADS_ALLGATHER" in [phase[0] for phase in by_name["allgather.g"]["phases"]]
        assert by_name["allgather.g"]["bytes"] == 72_000
        assert {f"allreduce.x{i}" for i in range(3)} <= by_name.keys()
    numbered = [[(one["index"], one["names"]) for one in found["collectives"]] for found in records]
    assert numbered[0] == numbered[1]
    assert {name for name, _, _ in records[0]["answers"]} == {name for _, every in numbered[0] for name in every}
    assert records[1]["answers"] == []


def test_who_came_last_in_sets_that_share_a_name() -> None:
    """Two sets that use one name at the same time are kept apart."""

    def job() -> Snapshot:
        sets = [wb.add_process_set([0, 1]), wb.add_process_set([2, 3])]
        if wb.rank() in (1, 2):
            time.sleep(0.1)
        wb.allreduce(np.ones(1), name="x", process_set=sets[wb.rank() // 2])
        wb.barrier()
        return snapshot()

    answers = wb.run_threads(4, job, timeout_s=20.0)[0]["answers"]
    assert {name: rank for name, rank, _ in answers if name.startswith("allreduce.x")} == {
        "allreduce.x (process set 1)": 1,
        "allreduce.x (process set 2)": 2,
    }


def test_errors_are_recorded() -> None:
    """A collective that failed has the error's class, and nothing moved."""

    def job() -> Snapshot:
        with pytest.raises(MismatchError):
            wb.allreduce(np.ones(2 + wb.rank()), name="m")
        return snapshot()

    for found in wb.run_threads(2, job, timeout_s=20.0):
        assert [(one["error"], one["phases"], one["bytes"]) for one in found["collectives"]] == [
            ("MismatchError", [], 0)
        ]
