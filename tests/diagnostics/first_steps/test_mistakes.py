"""The rules of ``--check`` on events as ranks record them: each finds its mistake, and nothing in a right run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from workbench.diagnostics.first_steps.mistakes import Event, find
from workbench.diagnostics.first_steps.recorder import Recorder
from workbench.diagnostics.first_steps.torch_steps import without_optimizer

MADE = ["train.py", 9, "optimizer = SGD(model.parameters(), lr=0.1)"]
LOOP = ["train.py", 11, "for x, y in loader:"]


def step(rank: int, number: int, **other: Any) -> Event:
    """A step of a job that is right: equal weights and averaged gradients, another batch on each rank."""
    usual: Event = {"what": "step", "at": ["train.py", 14, "optimizer.step()"], "optimizer": 0, "framework": "torch"}
    usual |= {"size": 2, "others": 0, "wrapped": True, "sharded": False, "missing": [], "known": 2, "device": ""}
    return usual | {"weights": number, "gradients": number, "batch": 10 * number + rank} | other


def loop(**other: Any) -> Event:
    """The beginning of an epoch."""
    return {"what": "loop", "at": LOOP, "loader": 7, "length": 20, "epoch": 0, "shuffles": True, "steps": 0} | other


def run(rank: int, **other: Any) -> list[Event]:
    """Two epochs of a job that is right, with the same change in each step."""
    made = {"what": "optimizer", "at": MADE, "optimizer": 0, "kind": "SGD"}
    first = [loop(), step(rank, 1, **other), step(rank, 2, **other)]
    return [made, *first, loop(epoch=1), step(rank, 3, **other), step(rank, 4, **other)]


def changed(rank: int, what: str) -> list[Event]:
    """A right run in which one number of each step is different on each rank."""
    return [each | {what: 100 * rank + each[what]} if what in each else each for each in run(rank)]


def test_each_optimizer_has_a_number_of_its_own(tmp_path: Path) -> None:
    """Whatever framework has made it; one that is made anew by a wrapper stays itself."""
    torch = pytest.importorskip("torch")
    recorder, one, other, model = Recorder(tmp_path / "0.jsonl"), {1}, {2}, torch.nn.Linear(1, 1)
    list(map(recorder.made, (one, other, one)))
    recorder.step(other, weights=1, gradients=2, framework="keras", sharded=False)
    recorder.saw_batch(3, model)
    assert without_optimizer(recorder) == ([], 0), "neither has groups of parameters"
    recorder._file.close()
    events = [json.loads(line) for line in (tmp_path / "0.jsonl").read_text().splitlines()]
    assert [(each["what"], each["optimizer"]) for each in events] == [("optimizer", 0), ("optimizer", 1), ("step", 1)]


def test_a_right_run_has_no_mistake() -> None:
    """Of two ranks and of three."""
    assert find([run(0), run(1)]) == find([run(rank, size=3) for rank in range(3)]) == []


@pytest.mark.parametrize("by", [{"wrapped": False, "others": 2, "size": 0}, {"wrapped": False}])
def test_gradients_averaged_by_others_are_averaged(by: dict[str, Any]) -> None:
    """DistributedDataParallel, or allreduce by hand: what counts is that they are equal."""
    assert find([run(0, **by), run(1, **by)]) == []


def test_a_scheduler_that_gets_different_numbers_is_a_mistake() -> None:
    """In its line; equal numbers are right."""
    ranks = [[*run(rank), {"what": "metric", "at": LOOP, "value": 0.5 + rank}] for rank in (0, 1)]
    (found,) = find(ranks)
    assert "rank 0: 0.5, rank 1: 1.5" in found.text
    assert find([[*run(rank), ranks[0][-1]] for rank in (0, 1)]) == []


def test_epochs_of_different_lengths_are_right_with_join() -> None:
    """After each of them the ranks with fewer batches wait there."""
    joined = {"what": "join", "at": LOOP}
    assert find([[*with_loops(rank, length=20 + rank), joined] for rank in (0, 1)]) == []


def test_weights_that_are_averaged_later_are_no_mistake() -> None:
    """Local SGD: gradients of their own, equal weights at the next step."""
    ranks = [[each | {"wrapped": False} for each in changed(r, "gradients") if each.get("wrapped")] for r in (0, 1)]
    assert find(ranks) == []


def test_weights_that_are_broadcast_after_the_first_step_are_no_mistake() -> None:
    """Keras makes an optimizer's variables in the first step, and scripts broadcast after it."""
    ranks = [run(0), run(1)]
    ranks[1][2] = ranks[1][2] | {"weights": 77}
    assert find(ranks) == []


def unaveraged(rank: int) -> list[Event]:
    """Each rank steps with gradients of its own, so after the first step it has weights of its own."""
    own = changed(rank, "gradients")
    return [
        each | {"wrapped": False, "weights": each["weights"] + 9 * rank * (k > 2)} if "weights" in each else each
        for k, each in enumerate(own)
    ]


def with_loops(rank: int, **other: Any) -> list[Event]:
    """A right run whose loops are other ones."""
    return [each | other if each["what"] == "loop" else each for each in run(rank)]


@pytest.mark.parametrize(
    ("ranks", "line", "words"),
    [
        ([run(r, size=0) for r in (0, 1)], 14, "without init(): each one trains alone"),
        ([run(r, size=1) for r in (0, 1)], 14, "in a job of 1 rank"),
        ([run(r, batch=None) for r in (0, 1)], 0, ""),
        ([run(0), run(0)], 11, "the same samples"),
        ([changed(r, "weights") for r in (0, 1)], 9, "begin with different weights"),
        ([unaveraged(r) for r in (0, 1)], 9, "gradients are not averaged"),
        ([run(r, missing=["fc.weight"], known=0) for r in (0, 1)], 9, "has no parameter of the model"),
        ([run(r, device="GPU-1") for r in (0, 1)], 9, "Ranks 0, 1 train on the same GPU"),
        ([run(0), with_loops(1, length=19)], 11, "rank 0: 20, rank 1: 19"),
        ([with_loops(r, epoch=0) for r in (0, 1)], 11, "same order"),
    ],
)  # fmt: skip
def test_each_mistake_is_found(ranks: list[list[Event]], line: int, words: str) -> None:
    """And it alone, in its line."""
    found = [each for each in find(ranks) if not each.note]
    assert [each.at[1] for each in found] == [line] * bool(line), found
    assert all(words in each.text for each in found)


@pytest.mark.parametrize(
    ("other", "words"),
    [({"missing": ["fc.weight"], "known": 1}, "No optimizer has these parameters"), ({"batch": 5}, "the same input")],
)
def test_what_may_be_meant_is_a_note(other: dict[str, Any], words: str) -> None:
    """Parameters that are left out, and a benchmark on one batch."""
    (found,) = find([run(0, **other), run(1, **other)])
    assert found.note
    assert words in found.text


def test_a_file_of_all_ranks() -> None:
    """Written by all, appended to by some; not one that only rank 0 writes."""
    at, path = ["train.py", 20, "save()"], "/home/me/model.pt"
    write = {"what": "write", "at": at, "path": path, "appends": False}
    (found,) = find([[*run(0), write], [*run(1), write]])
    assert (found.at[1], found.text) == (20, f"All 2 ranks write the same file, {path}.")
    runs = [run(rank, size=3) for rank in range(3)]
    (found,) = find([[*runs[0], write | {"appends": True}], [*runs[1], write | {"appends": True}], runs[2]])
    assert found.text == f"2 of the 3 ranks append to the same file, {path}."
    assert find([[*run(0), write], run(1)]) == []


def test_a_second_world() -> None:
    """init() with another number of ranks than before, or for others than the job has."""
    init = {"what": "init", "at": ["train.py", 3, "hvd.init()"], "size": 2, "rank": 0, "asked": 2, "again": False}
    assert find([[init, init | {"again": True}, *run(rank)] for rank in (0, 1)]) == []
    for second, words in [({"size": 1}, "leads to 1 rank"), ({"again": True, "asked": 1}, "asks for 1 rank")]:
        (found,) = find([[init, init | second, *run(rank)] for rank in (0, 1)])
        assert words in found.text


def test_nothing_is_said_of_what_was_not_seen() -> None:
    """No events of a rank, or none at all."""
    assert find([[], []]) == find([run(0), []]) == []
