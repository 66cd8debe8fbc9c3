"""The timeline's picture of real ranks: who came late is named, and each rank draws the same."""

from __future__ import annotations

import json
import time
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import workbench as hvd
from workbench.errors import MismatchError
from workbench.job.context import HOLDER
from workbench.observe.timeline_picture import Picture


def everyone_s(picture: Picture) -> set[bytes]:
    """The pictures of all ranks, without doubles."""
    width = 1 << 20
    mine = picture.svg.encode().ljust(width)
    assert len(mine) == width
    return {row.tobytes() for row in hvd.allgather(np.frombuffer(mine, np.uint8)[None])}


@pytest.mark.ranks(2)
def test_a_late_rank_is_the_one_waited_for(rank: int, n: int, tmp_path: Path) -> None:
    """Who comes 0.3 s late is marked as last, and the others' tracks show that they waited for it."""
    late = n - 1
    if rank == late:
        time.sleep(0.3)
    hvd.allreduce(np.ones(1000), name="x")
    picture = hvd.timeline(last=1)
    (bars,) = zip(*(track.bars for track in picture.tracks), strict=True)
    assert [bar.names for bar in bars] == [("allreduce.x",)] * n
    assert [bar.last for bar in bars] == [late] * n
    waits = [bar.took("wait") / 1e6 for bar in bars]
    assert waits[late] == 0
    assert all(0.2 < wait < 30 for wait in waits[:late]), waits
    assert picture.waited_s[late] == max(waits)
    assert f"for rank {late}:" in repr(picture)
    assert sum(span.end - span.begin for span in picture.tracks[late].compute) / 1e6 > 0.2
    picture.save(tmp_path / "x.svg")
    ElementTree.fromstring((tmp_path / "x.svg").read_bytes())
    picture.chrome_trace(tmp_path / "x.json")
    events = json.loads((tmp_path / "x.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == set(range(n))
    assert f"wait for rank {late}" in {event["name"] for event in events}


def test_every_rank_has_the_same_picture(rank: int, n: int) -> None:
    """All ranks get the same bytes; the picture's own allgather is in none."""
    for i in range(3):
        handles = [hvd.allreduce_async(np.full(1000, float(rank)), name=f"g{k}") for k in range(10)]
        for handle in handles:
            handle.wait()
        hvd.allgather(np.ones((1000 * (rank + 1), 2)), name=f"rows{i}")
    first = hvd.timeline()
    assert len(everyone_s(first)) == 1
    again = hvd.timeline(last=50)
    assert not any("workbench.timeline" in name for track in again.tracks for bar in track.bars for name in bar.names)
    assert {len(track.bars) for track in first.tracks} <= set(range(6, 21))
    for track in first.tracks:
        for bar in track.bars:
            assert bar.spans[-1].end > bar.spans[0].begin >= 0
            assert all(a.end == b.begin for a, b in zip(bar.spans, bar.spans[1:], strict=False))
            rode = bar.nbytes <= 4096 * len(bar.names)  # with the announcement, so nothing was left to move
            assert bar.took("reduce") > 0 or bar.kind == "barrier" or rode


def test_one_clock(rank: int, n: int) -> None:
    """On one machine a batch's transfer overlaps on all ranks, for nobody's part of it ends before another's begins."""
    for _ in range(5):
        hvd.allreduce(np.ones(100_000), name="big")
    picture = hvd.timeline(last=5)
    for bars in zip(*(track.bars for track in picture.tracks), strict=True):
        moved = [span for bar in bars for span in bar.spans if span.phase == "reduce"]
        assert len(moved) == n
        assert max(span.begin for span in moved) < min(span.end for span in moved)


@pytest.mark.ranks(3)
def test_sets_have_tracks_of_their_own_batches(rank: int, n: int) -> None:
    """A batch of some ranks is in their tracks only, with the last among them."""
    some = hvd.add_process_set([n - 2, n - 1])
    if some.included():
        if rank == n - 2:
            time.sleep(0.1)
        hvd.allreduce(np.ones(1), name="s", process_set=some)
    hvd.barrier()
    picture = hvd.timeline(last=4)
    found = {track.rank: bar.last for track in picture.tracks for bar in track.bars if "allreduce.s" in bar.names[0]}
    assert found == {n - 2: n - 2, n - 1: n - 2}
    hvd.remove_process_set(some)


def test_a_name_that_failed(rank: int, n: int) -> None:
    """A collective that failed is shown with its error."""
    if n == 1:
        pytest.skip("one rank agrees with itself")
    with pytest.raises(MismatchError):
        hvd.allreduce(np.ones(1 + rank % 2), name="m")
    picture = hvd.timeline(last=1)
    assert [track.bars[0].error for track in picture.tracks] == ["MismatchError"] * n
    assert "✕ MismatchError" in picture.svg


def test_off_and_on(rank: int, n: int) -> None:
    """A recorder that is off keeps nothing, and ranks that are switched one after the other still agree."""
    recorder = HOLDER.get().timeline.recorder
    recorder.on = rank % 2 == 0
    hvd.allreduce(np.ones(1), name="half")
    recorder.on = True
    hvd.allreduce(np.ones(1), name="whole")
    picture = hvd.timeline(last=2)
    by_rank = [{name for bar in track.bars for name in bar.names} for track in picture.tracks]
    assert ["allreduce.half" in names for names in by_rank] == [each % 2 == 0 for each in range(n)]
    whole = {bar.batch for track in picture.tracks for bar in track.bars if "allreduce.whole" in bar.names}
    assert len(whole) == 1
