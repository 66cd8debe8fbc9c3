"""One gradient followed: every place is there, the lines are those that ran, and the way is the same on real ranks."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from workbench.config import child_environment
from workbench.course.followed.picture import way_picture
from workbench.course.followed.places import PLACES, STOPS, TracedFunction
from workbench.course.followed.records import from_ranks, made_up
from workbench.course.followed.source import excerpt, listing
from workbench.course.followed.trace import Follower, Passed
from workbench.observe.tracks import tracks

HERE = f"{__name__}:"


def test_every_place_is_there() -> None:
    """The function that a stop names exists; whoever moves or renames it learns that lesson 21 tells of it."""
    for place in PLACES:
        assert place.function.__qualname__ == place.name
        assert place.stop in STOPS


def test_places_stand_in_the_order_of_the_stops() -> None:
    """Each stop has at least two places, and they stand together."""
    stops = [place.stop for place in PLACES]
    assert list(dict.fromkeys(stops)) == list(STOPS)
    assert stops == sorted(stops, key=list(STOPS).index)
    assert all(stops.count(stop) >= 2 for stop in STOPS)


def passes(name: str, items: list[int]) -> int:
    """A function with branches, to be followed."""
    total = 0
    if not items:
        return -1
    for item in items:
        if item > 100:
            total += 1000
        elif item > 10:
            total += 10
        else:
            total += 1
    if len(items) > 100:
        total = 0
    try:
        inner(items)
    except ValueError:
        total += 5
    return total


def inner(items: list[int]) -> None:
    """Knows no name; it raises."""
    raise ValueError(items)


@contextmanager
def followed(*places: TracedFunction) -> Iterator[Follower]:
    """A follower that is closed, whatever happens."""
    if sys.gettrace() is not None:
        pytest.skip("needs sys.settrace for itself, and another program traces")
    follower = Follower(places)
    try:
        yield follower
    finally:
        follower.close()


PASSES = TracedFunction("hook", f"{HERE}passes", lambda values: [values["name"]])
INNER = TracedFunction("step", f"{HERE}inner", None)


def test_the_lines_are_those_that_ran() -> None:
    """Of a call with that name: its branches are told apart, and those that did not run are left out."""
    with followed(PASSES) as follower, follower.following("mine"):
        passes("another", [500])
        passes("mine", [50, 2])
    (call,) = follower.passed
    assert (call.name, call.stop, call.thread) == ("passes", "hook", "main")
    assert excerpt(call.path, call.lines).splitlines() == [
        "def passes(name: str, items: list[int]) -> int:",
        "    total = 0",
        "    …",
        "    for item in items:",
        "        if item > 100:",
        "            …",
        "        elif item > 10:",
        "            total += 10",
        "        else:",
        "            total += 1",
        "    if len(items) > 100:",
        "        …",
        "    try:",
        "        inner(items)",
        "    except ValueError:",
        "        total += 5",
        "    return total",
    ]


def test_a_function_without_a_name_belongs_to_its_caller() -> None:
    """It counts where a call for the gradient is below it on the stack, and nowhere else."""
    with followed(PASSES, INNER) as follower:
        with follower.following("mine"):
            passes("mine", [1])
        assert [call.name for call in follower.passed] == ["passes", "inner"]
        with follower.following("mine"):
            passes("another", [1])
        assert follower.passed == []


def test_nothing_is_followed_outside_of_the_block() -> None:
    """Afterwards the thread's own trace function is back."""
    before = sys.gettrace()
    with followed(PASSES) as follower:
        with follower.following("mine"):
            pass
        passes("mine", [1])
        assert follower.passed == []
        assert sys.gettrace() is before


# One step in which rank 1 is late, and one in the steady state; what rank 0 has seen, as JSON.
PROGRAM = """
import json, os, sys, time
os.environ |= {"HOROVOD_FUSION_THRESHOLD": "160000", "WORKBENCH_CALLER_RUNS": "0", "WORKBENCH_SLOTS": "0"}
from dataclasses import asdict
import torch
from workbench.course.followed.trace import Follower
import workbench.torch as hvd
follower = Follower()
hvd.init()
follower.close()
model = torch.nn.Sequential(torch.nn.Linear(100, 200), torch.nn.Tanh(), torch.nn.Linear(200, 100)).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
def step(late_s):
    time.sleep(late_s * hvd.rank())
    optimizer.zero_grad()
    model(torch.ones(3, 100).double()).sum().backward()
    open(sys.argv[1] + f".{hvd.rank()}", "w").close()
    optimizer.step()
while hvd.rank() == 1 and not os.path.exists(sys.argv[1] + ".0"):  # rank 0 has submitted all gradients
    time.sleep(0.01)
with follower.following("0.weight"):
    step(0.1)
first = follower.passed
step(0), step(0)
bucket = optimizer._distributed.grads.buckets["0.weight"].layout.name
for _ in range(20):
    with follower.following("0.weight", bucket):
        step(0.03)
    if hvd.broadcast_object("SteadyCoordinator._advance" in {one.name for one in follower.passed}, 0, name="steady?"):
        break
if hvd.rank() == 0:
    open(sys.argv[1], "w").write(json.dumps([[asdict(one) for one in calls] for calls in (first, follower.passed)]))
"""


@pytest.fixture(scope="module")
def ways(warm_torch: None, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Passed], list[Passed]]:
    """A gradient's way in the first step, and in a steady one, on two ranks."""
    folder = tmp_path_factory.mktemp("followed")
    program, out = folder / "program.py", folder / "way.json"
    program.write_text(PROGRAM)
    command = [sys.executable, "-m", "workbench.cli.main", "run", "-np", "2", sys.executable, str(program), str(out)]
    subprocess.run(command, check=True, timeout=50, env=child_environment(), cwd=Path(__file__).parents[3])
    first, steady = ([_passed(one) for one in calls] for calls in json.loads(out.read_text()))
    return first, steady


def _passed(one: dict[str, Any]) -> Passed:
    return Passed(**{**one, "lines": tuple(one["lines"])})


@pytest.mark.parallel
def test_the_first_step_passes_all_five_stops(ways: tuple[list[Passed], list[Passed]]) -> None:
    """In the order of time, each on its thread; the response is the work of rank 0's coordinator."""
    first, _ = ways
    at = {one.name: one.begin_ns for one in first}
    chain = ["Hook.__call__", "PendingTable.add", "Engine._announce", "CountingCoordinator._complete", "respond"]
    chain += ["Engine._execute", "ShmCollectives.allreduce", "Entry.deliver", "Grads.store"]
    assert sorted(chain, key=at.__getitem__) == chain
    threads = {one.name: one.thread for one in first}
    assert {threads[name] for name in chain[:2]} == {"main"}
    assert {threads[name] for name in ("Engine._announce", *chain[5:8])} == {"engine"}
    assert {threads[name] for name in chain[3:5]} == {"coordinator"}
    assert "self._staged(array, reduction, given)" in listing(first, "reduction")


@pytest.mark.parallel
def test_a_steady_step_compares_nothing_and_copies_to_no_stage(ways: tuple[list[Passed], list[Passed]]) -> None:
    """It is announced by its id, and reduced where it lies."""
    _, steady = ways
    called = {one.name for one in steady}
    assert {"SteadyCoordinator._advance", "reduce_across", "GradBucket.take", "Engine._announce"} <= called
    assert called.isdisjoint({"respond", "CountingCoordinator._announce"})
    assert "self._in_place(array, reduction, offsets)" in listing(steady, "reduction")


@pytest.mark.parallel
def test_the_lines_are_told_with_their_thread(ways: tuple[list[Passed], list[Passed]]) -> None:
    """What a listing says of the first step is in the source: the hook hands the name to its owner."""
    text = listing(ways[0], "hook")
    assert text.startswith("Hook.__call__   [main thread]\ndef __call__(self, param: torch.Tensor) -> None:")
    assert "        owner.ready(self.name)" in text
    picture = way_picture(ways[0], "One gradient")
    assert "response on the coordinator's thread" in picture.alt
    assert picture.svg.count("<title>") == len(ways[0])


@pytest.mark.parametrize("n", [2, 3, 4])
def test_records_that_are_made_up_are_as_recorders_keep_them(n: int) -> None:
    """The timeline draws them, and finds the last rank that they were made with."""
    shown = tracks(made_up(n, 3), 20)
    assert [track.rank for track in shown] == list(range(n))
    known = [bar for bar in shown[0].bars if bar.batch[1] >= n - 1]  # by all: rank n - 1 has forgotten those before
    assert [bar.last for bar in known] == [index % n for index in range(n - 1, 6)]


def test_records_of_ranks_that_have_run() -> None:
    """Three ranks' recorders, all with the same collectives, and answers on rank 0 alone."""
    snapshots = from_ranks()
    assert [len(one["collectives"]) for one in snapshots] == [6, 6, 6]
    assert [bool(one["answers"]) for one in snapshots] == [True, False, False]
