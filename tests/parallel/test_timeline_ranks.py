"""The timeline of real ranks: every verb's events, recordings that follow each other, and values that do not change."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import workbench.torch as hvd
from workbench.job.context import HOLDER


def stories(path: Path) -> dict[str, list[str]]:
    """What happened to each tensor, in order of time: ``NAME`` where it began, ``/NAME`` where it ended."""
    events: list[dict[str, Any]] = json.loads(path.read_text())
    names = {e["pid"]: e["args"].get("name", "") for e in events if e.get("name") == "process_name"}
    found: dict[str, list[str]] = {name: [] for name in names.values() if name}
    open_: dict[str, list[str]] = {name: [] for name in found}
    for event in sorted((e for e in events if e["ph"] in "BEX"), key=lambda e: e["ts"]):
        name = names[event["pid"]]
        if event["ph"] == "B":
            open_[name].append(event["name"])
        found[name].append("/" + open_[name].pop() if event["ph"] == "E" else event["name"])
    assert not any(open_.values())
    return found


def tensor_s(path: Path, name: str, n: int) -> list[str]:
    """One tensor's story, with the ranks' ticks, which come in any order, counted and left out."""
    story = stories(path)[name]
    assert sorted(each for each in story if each.isdigit()) == sorted(map(str, range(n)))
    return [each for each in story if not each.isdigit()]


def phases(verb: str, *activities: str) -> list[str]:
    """Negotiation, then the verb with QUEUE and the activities inside."""
    inside = [line for each in ("QUEUE", *activities) for line in (each, f"/{each}")]
    return [f"NEGOTIATE_{verb}", f"/NEGOTIATE_{verb}", verb, *inside, f"/{verb}"]


def test_every_verb_is_written(rank: int, n: int, tmp_path: Path) -> None:
    """On rank 0, each verb has its negotiation with all ranks' ticks, its time in the queue, and its transfer."""
    path = tmp_path / "t.json"
    hvd.start_timeline(str(path), mark_cycles=True)
    hvd.barrier()  # from here on rank 0 records
    whole = torch.ones(n, 1500 // n)  # not eager, and short enough to be packed
    hvd.allreduce(whole, name="one", op=hvd.Sum)
    hvd.grouped_allreduce([whole, whole], name="two")
    hvd.allgather(whole, name="g")
    hvd.broadcast(whole, 0, name="b")
    hvd.alltoall(whole, name="a")
    hvd.reducescatter(whole, name="r")
    hvd.barrier()
    hvd.stop_timeline()
    if rank != 0:
        assert not path.exists()
        return
    by = HOLDER.get().sets.backend(0).name
    memory = ("INIT_FUSION_BUFFER", "MEMCPY_IN_FUSION_BUFFER", f"{by}_ALLREDUCE", "MEMCPY_OUT_FUSION_BUFFER")
    assert tensor_s(path, "allreduce.one", n) == phases("ALLREDUCE", f"{by}_ALLREDUCE")
    for i in range(2):
        assert tensor_s(path, f"allreduce.two_{i}of2", n) == phases("ALLREDUCE", *memory)
    assert tensor_s(path, "allgather.g", n) == phases("ALLGATHER", "ALLOCATE_OUTPUT", f"{by}_ALLGATHER")
    assert tensor_s(path, "broadcast.b", n) == phases("BROADCAST", f"{by}_BCAST")
    assert tensor_s(path, "alltoall.a", n) == phases("ALLTOALL", "ALLOCATE_OUTPUT", f"{by}_ALLTOALL")
    assert tensor_s(path, "reducescatter.r", n) == phases("REDUCESCATTER", "ALLOCATE_OUTPUT", f"{by}_REDUCESCATTER")
    assert '"CYCLE_START"' in path.read_text()


@pytest.mark.ranks(3)
def test_one_name_in_two_sets(rank: int, n: int, tmp_path: Path) -> None:
    """Two sets that use one name at the same time are two stories, each with its own members' ticks."""
    path = tmp_path / "t.json"
    sets = [hvd.add_process_set([0, 1]), hvd.add_process_set([0, 2])]
    hvd.start_timeline(str(path))
    hvd.barrier()
    mine = [each for each in sets if each.included()]
    handles = [hvd.allreduce_async(torch.ones(2000), name="x", process_set=each) for each in mine]
    assert all((handle.wait() == 1.0).all() for handle in handles)
    hvd.barrier()
    hvd.stop_timeline()
    if rank == 0:
        by = HOLDER.get().sets.backend(0).name
        for each, other in zip(sets, (1, 2), strict=True):
            story = stories(path)[f"allreduce.x (process set {each.process_set_id})"]
            assert sorted(word for word in story if word.isdigit()) == ["0", str(other)]
            assert [word for word in story if not word.isdigit()] == phases("ALLREDUCE", f"{by}_ALLREDUCE")
    hvd.barrier()
    for each in sets:
        hvd.remove_process_set(each)


def test_recordings_follow_each_other(rank: int, n: int, tmp_path: Path) -> None:
    """Five recordings while tensors are in flight all the time: each file is whole, and the sums are right."""
    for i in range(5):
        handles = [hvd.allreduce_async(torch.full((3,), float(rank + k)), op=hvd.Sum, name=f"x{k}") for k in range(20)]
        if i == 3:
            hvd.start_timeline(str(tmp_path / "replaced.json"))
        hvd.start_timeline(str(tmp_path / f"{i}.json"))
        sums = [handle.wait(30)[0].item() for handle in handles]
        assert sums == [n * (n - 1) / 2 + n * k for k in range(20)]
        hvd.allreduce(torch.ones(1), name=f"inside {i}")
        if i != 2:
            hvd.stop_timeline()
            hvd.stop_timeline()
        hvd.barrier()
        hvd.allreduce(torch.ones(1), name=f"outside {i}")
    if rank == 0:
        for i in range(5):
            found = stories(tmp_path / f"{i}.json")
            assert "/ALLREDUCE" in found[f"allreduce.inside {i}"]
            assert (f"allreduce.outside {i}" in found) is (i == 2)
        stories(tmp_path / "replaced.json")


def test_an_error_is_seen_too(rank: int, n: int, tmp_path: Path) -> None:
    """A tensor that the ranks disagree about has its phases as well, without a transfer."""
    if n == 1:
        pytest.skip("one rank agrees with itself")
    path = tmp_path / "t.json"
    hvd.start_timeline(str(path))
    hvd.barrier()
    with pytest.raises(hvd.HorovodInternalError, match="Mismatched"):
        hvd.allreduce(torch.ones(2 + rank % 2), name="m")
    hvd.barrier()
    hvd.stop_timeline()
    if rank == 0:
        assert tensor_s(path, "allreduce.m", n) == phases("ALLREDUCE")
