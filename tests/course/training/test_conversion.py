"""The lights of a conversion: each goes red for its own reason, and a script's failure is told."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workbench.course.build import ROOT
from workbench.course.tasks import task
from workbench.course.training import behaviour, trial
from workbench.course.training.behaviour import LIGHTS, BehaviourRecorder, Seen, title
from workbench.course.training.conversion import Watched, difference, table, turned_green, watch
from workbench.errors import RankFailedError

pytestmark = pytest.mark.usefixtures("warm_torch")
STEPS = sorted((ROOT / "lessons" / "steps").glob("*.py"))


def _seen(place: int = 0, n: int = 1, **changes: Any) -> Seen:
    """A rank of a training that is right: four samples, two epochs, one step of four in each."""
    orders = np.array([[0, 1, 2, 3], [2, 0, 3, 1]])
    values = {"start": np.ones(3), "state": np.ones(2), "gradient": np.arange(3.0), "end": np.arange(1.0, 4.0)}
    one = Seen(place, n, cores=2, batches=[order[place::n] for order in orders], samples=4, epochs=2, **values)
    one.reported = one.measured = 0.75
    one.files, one.lines, one.device = (["a.pt"], ["75 %"], 0) if place == 0 else ([], [], 0)
    return replace(one, **changes)


def _red(changes: dict[str, Any], rank: int = 1) -> set[str]:
    """Names of the lights that are red when one of two ranks differs."""
    ranks = [_seen(i, 2, **(changes if i == rank else {})) for i in range(2)]
    return {light.__name__ for light in (*LIGHTS, behaviour.own_device) if light(_seen(), ranks)}


def test_what_is_right_is_green() -> None:
    """No light is red for a training that does what it should."""
    assert _red({}) == set()


def test_one_light_goes_red() -> None:
    """A rank that differs in one thing turns off the light of that thing, and no other."""
    for changes, light in [
        ({"rank": 0, "size": 1}, "they_know_each_other"),
        ({"threads": 2}, "threads_fit"),
        ({"device": 1}, "own_device"),
        ({"device": None}, "own_device"),
        ({"batches": [np.array([0, 2]), np.array([0, 1])]}, "each_sample_once"),
        ({"start": np.zeros(3)}, "same_start"),
        ({"start": None}, "same_start"),
        ({"state": np.empty(0)}, "same_state"),
        ({"gradient": np.ones(3)}, "same_gradients"),
        ({"end": np.array([1.0, 2.0, 3.0 + 1e-6])}, "same_result"),
        ({"end": np.array([1.0, 2.0, np.nan])}, "same_result"),
        ({"reported": 0.5}, "same_accuracy"),
        ({"reported": None}, "same_accuracy"),
        ({"reported": 0.5, "measured": 0.5}, "same_accuracy"),
        ({"files": ["b.pt"]}, "one_rank_writes"),
        ({"lines": ["75 %"]}, "one_rank_writes"),
    ]:
        assert _red(changes) == {light}


def test_samples_and_steps() -> None:
    """A larger batch, an epoch like the one before, and a sum instead of an average have words of their own."""
    alone = _seen()
    double = [_seen(rank, 2, batches=alone.batches) for rank in range(2)]
    assert "sample 0 was seen 2 times" in behaviour.each_sample_once(alone, double)
    assert "step 0 takes 8 samples on all ranks, 4 in one process" in behaviour.same_global_batch(alone, double)
    fewer = [_seen(batches=[[0, 1], [2, 3]]), _seen(batches=[[0, 1]])]
    assert behaviour.same_global_batch(alone, fewer) == "rank 0 makes 2 steps, rank 1 1"
    again = [_seen(rank, 2, batches=[_seen(rank, 2).batches[0]] * 2) for rank in range(2)]
    assert "order of epoch 0" in behaviour.each_sample_once(alone, again)
    summed = [_seen(rank, 2, gradient=2 * np.arange(3.0)) for rank in range(2)]
    assert "a sum, not an average" in behaviour.same_gradients(alone, summed)
    diverged = [_seen(rank, 2, reported=float("nan")) for rank in range(2)]
    assert "rank 0 reports nan" in behaviour.same_accuracy(alone, diverged)
    nobody = [_seen(rank, 2, files=[]) for rank in range(2)]
    assert behaviour.one_rank_writes(alone, nobody) == "no rank saves"


def test_the_recorder_knows_training_samples() -> None:
    """It tells samples by their pixels, and takes no notice of evaluation and of modules within the model."""
    torch = pytest.importorskip("torch")
    images = np.arange(48, dtype=np.float32).reshape(6, 1, 2, 4)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(8, 2)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    recorder = BehaviourRecorder(images)
    recorder.attach(model, optimizer)
    model(torch.from_numpy(images[[4, 1]]).double()).sum().backward()
    with torch.no_grad():
        model(torch.from_numpy(images).double())
    model(torch.ones(1, 1, 2, 4).double())  # not one of them
    optimizer.step()
    assert [batch.tolist() for batch in recorder.seen.batches] == [[4, 1]]
    assert recorder.seen.gradient is not None
    assert recorder.seen.gradient.shape == (18,)


def test_the_serial_training_is_right_alone() -> None:
    """What learners are to convert trains, saves and prints on one rank."""
    found = trial.run("job", 1, lambda hvd, job: trial.train_alone(job))[0]
    assert found.reported == pytest.approx(found.measured)
    assert (found.files, len(found.lines), found.device) == (["checkpoint"], 1, 0)


def test_nothing_works_before_init() -> None:
    """The exercise's hvd is closed until init() was called."""
    words = trial.Trial("job", (2,)).runs(lambda hvd, job: hvd.size())
    assert "hvd.size() before hvd.init()" in words


@pytest.mark.parametrize("name", ["10.convert", "13.capstone"])
def test_the_judge_runs_a_function_anew(name: str) -> None:
    """The first property runs the function each time; the others look at that run."""
    runs, first = task(name).properties[:2]  # type: ignore[attr-defined]
    assert not runs(task(name).reference)
    assert not first(task(name).reference)
    assert "ValueError: no" in runs(_raises)


def _raises(*args: Any) -> None:
    raise ValueError("no")


def test_table_and_difference(tmp_path: Path) -> None:
    """One row for each light, one column for each script; a difference shows changed lines only."""
    red = Watched("00_a.py", _seen(), [_seen(rank, 2, threads=3) for rank in range(2)])
    green = Watched("01_b.py", _seen(), [_seen(rank, 2) for rank in range(2)])
    rows = table([red, green]).splitlines()
    assert [rows[0].split(), len(rows)] == [["00", "01"], 1 + len(LIGHTS)]
    assert rows[2].endswith("✗   ✓")
    assert turned_green(red, green) == [title(behaviour.threads_fit)]
    assert "  ✗ The ranks share the cores: together" in str(red)
    for name, text in (("a", "x\ny\n"), ("b", "x\nz\n")):
        (tmp_path / name).write_text(text)
    assert difference(tmp_path / "a", tmp_path / "b") == "- y\n+ z"


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    ("line", "lights"),
    [
        ("    train_sampler.set_epoch(epoch)", {behaviour.each_sample_once}),
        (
            "hvd.broadcast_optimizer_state(optimizer, root_rank=0)",
            {behaviour.same_state, behaviour.same_accuracy, behaviour.same_result},
        ),
    ],
)
def test_a_line_less_turns_its_lights_red(line: str, lights: set[Any], tmp_path: Path) -> None:
    """The finished script without one line."""
    lines = STEPS[-1].read_text().splitlines()
    script = tmp_path / "less.py"
    script.write_text("\n".join(one for one in lines if one != line))
    found = watch([script])[0].lights()
    assert {name for name, wrong in found.items() if wrong} == {title(light) for light in lights}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("EPOCHS = 1\nraise SystemExit(0)\n", r"ValueError: \S+ calls sys\.exit\(\)"),
        ("EPOCHS, model = 1, None\n", r"NameError: \S+ has no accuracy"),
        ("def f(:\n", "Rank . raised SyntaxError"),
    ],
)
def test_a_script_that_cannot_be_judged_is_told_why(text: str, said: str, tmp_path: Path) -> None:
    """At once, and not at the deadline."""
    (tmp_path / "a.py").write_text(text)
    with pytest.raises(RankFailedError, match=said):
        watch([tmp_path / "a.py"])


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_collective_on_rank_0_only_is_told(tmp_path: Path) -> None:
    """A script that would hang ends, with the name of the rank that has left."""
    text = STEPS[-1].read_text().replace("right, seen = hvd", "if hvd.rank() == 0:\n    right, seen = hvd")
    text = text.replace("CHECKPOINT = 72, 2,", "CHECKPOINT = 720, 1,")
    script = tmp_path / "hangs.py"
    script.write_text(text)
    with pytest.raises(RankFailedError, match="Rank 1 has left the job"):
        watch([script], deadline_s=100)
