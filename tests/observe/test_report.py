"""The report of a job: a page from what the ranks have written, and several side by side."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from installed import needs
from thorough import once_more

from workbench.cli.job_report import reported
from workbench.errors import LaunchError
from workbench.observe.report import against_prediction, compared, html, ranks, read, sentences
from workbench.simulate.measured.fit import Constant, Fit
from workbench.simulate.measured.links import Links
from workbench.simulate.measured.prediction import Measured, predict
from workbench.simulate.steps import Span

TRAINING = """
import time
import torch
import workbench.torch as hvd

hvd.init()
model = torch.nn.Linear(4, 1)
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model.named_parameters())
for step in range(30):
    if hvd.rank() == 1:
        time.sleep(0.06)
    optimizer.zero_grad()
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
"""


def part(rank: int, size: int = 2, **other: Any) -> dict[str, Any]:
    """What a rank writes that has done nothing."""
    snapshot = {"host": "a", "wall_ns": 0, "collectives": [], "answers": []}
    found = {"rank": rank, "size": size, "epoch": 0, "host": "a", "cores": 2, "command": [], "versions": {}}
    found |= {"began": 10.0, "ended": 12.0, "together": True, "error": "", "steps": 0, "step_s": []}
    return {**found, "memory": 1 << 20, "gpu_memory": 0, "snapshot": snapshot, **other}


def start(folder: Path, program: str) -> subprocess.CompletedProcess[str]:
    """Two ranks of a program, with a report."""
    script = folder / "train.py"
    script.write_text(program)
    rank = ["--report", str(folder / "report.html"), sys.executable, str(script)]
    return workbench("run", "-np", "2", *rank)


def workbench(*words: str) -> subprocess.CompletedProcess[str]:
    """The command."""
    command = [sys.executable, "-m", "workbench.cli.main", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=100)


FAILS = """
import numpy as np
import workbench as hvd

hvd.init()
hvd.allreduce(np.ones(1), name="x")
if hvd.rank() == 1:
    raise ValueError("of rank 1")
hvd.allreduce(np.ones(1), name="y")
"""


@pytest.mark.integration
def test_a_job_that_fails_has_a_page(tmp_path: Path) -> None:
    """Of those ranks that left by themselves; the exit code is the job's. No fork of ours: it is Python that ends."""
    done = start(tmp_path, FAILS)
    assert done.returncode == 1
    assert "Rank 1 ended with ValueError: of rank 1" in (tmp_path / "report.html").read_text()
    assert not (tmp_path / "report.html.ranks").exists()


@pytest.mark.integration
@pytest.mark.slow
def test_a_job_has_a_page(warm_torch: None, tmp_path: Path) -> None:
    """Steps and shares of each rank, who was waited for, a picture; nothing else stays."""
    done = start(tmp_path, TRAINING)
    assert done.returncode == 0, done.stderr
    page = (tmp_path / "report.html").read_text()
    data = json.loads(page.partition('id="job">')[2].partition("</script>")[0])
    slow = data["ranks"][1]
    assert [row["steps"] for row in data["ranks"]] == [30, 30]
    assert all(row["step_s"] > 0.05 for row in data["ranks"])  # rank 1 sleeps, and rank 0 waits for it
    assert slow["waited_for_s"] > data["ranks"][0]["waited_for_s"]
    assert "Others waited most for rank 1" in page
    assert page.count("<polyline") == 2
    assert "came last" in page  # the timeline's legend
    assert not {*tmp_path.iterdir()} - {tmp_path / "report.html", tmp_path / "train.py"}
    told = workbench("report", *[str(tmp_path / "report.html")] * 2)
    assert told.stdout.count("report.html") == 2
    assert " 1.00 " in told.stdout


GRAPHS = {
    "tensorflow": """
import tensorflow as tf
import workbench.tensorflow as hvd
import workbench.tensorflow.keras as hvd_keras

hvd.init()
model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
model.compile(loss="mse", optimizer=hvd_keras.DistributedOptimizer(tf.keras.optimizers.SGD(0.1)))
model.fit(tf.ones((8, 2)), tf.ones((8, 1)), batch_size=2, verbose=0)
w = tf.Variable(1.0)

def step():
    with tf.GradientTape() as tape:
        loss = w * w
    w.assign_sub(0.1 * hvd.DistributedGradientTape(tape).gradient(loss, w))

graph = tf.function(step)
for each in (graph, graph, graph, step, step):
    each()
""",
    "jax": """
import jax, optax
import workbench.jax as hvd

hvd.init()
optimizer = hvd.DistributedOptimizer(optax.sgd(0.1))
w, state = jax.numpy.ones(2), None
state = optimizer.init(w)

@jax.jit
def step(w, state):
    updates, state = optimizer.update(jax.grad(lambda w: (w * w).sum())(w), state, w)
    return optax.apply_updates(w, updates), state

for _ in range(5):
    w, state = step(w, state)
loss = jax.jit(hvd.distributed_value_and_grad(lambda w: (w * w).sum()))
jax.block_until_ready([loss(w) for _ in range(4)])
""",
}


@pytest.mark.integration
@pytest.mark.slow
@pytest.mark.parametrize("framework", [once_more("tensorflow"), "jax"])
def test_steps_within_a_graph_are_counted(tmp_path: Path, framework: str) -> None:
    """Those of ``fit``, of ``tf.function`` and of ``jit``, and of a tape; each once."""
    needs(framework)
    env = {**os.environ, "WORKBENCH_REPORT": str(tmp_path)}
    subprocess.run([sys.executable, "-c", GRAPHS[framework]], env=env, check=True, timeout=100)
    assert json.loads((tmp_path / "0.0.json").read_text())["steps"] == 9


def test_ranks_that_are_missing_are_named() -> None:
    """And the page does without a picture of all."""
    found = [part(0, 3, steps=3, step_s=[0.25, 0.5]), part(2, 3, together=False)]
    rows = ranks(found)
    assert sentences(rows, found) == [
        "Nothing came from rank 1: killed, or on a host without this folder.",
        "The ranks did not end together: an error, or a rank that was gone.",
        "A step took 375 ms (median of rank 0, the slowest).",
    ]
    assert "came last" not in html(found, ["python", "<train>.py"])
    assert "&lt;train&gt;" in html(found, ["python", "<train>.py"])


def test_steps_are_compared_with_a_prediction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its step is what ``predict`` says; without a measurement the page says how to make one."""
    monkeypatch.chdir(tmp_path)
    way = Fit(Constant(1e-3, 1e-3, 1e-3), Constant(1e-9, 1e-9, 1e-9), doubt=0)
    layers = (Span("layer", 0.04, 0.06, values=1000),)
    measured = Measured(Links(1, 2, way, None, announce_s=0.0), layers)
    measured.save("measured.json")
    found = [part(0, steps=2, step_s=[0.2]), part(1, steps=2, step_s=[0.15])]
    predicted = predict(measured, [2], 1).rows[0].step_s
    assert predicted > 0.1
    said = against_prediction(ranks(found), found, "measured.json")
    assert f"Efficiency: {predicted / 0.2:.0%} of the prediction, 50% of ranks that compute alone." in said
    assert said in html(found, ["python"], "measured.json")
    assert "--measured measured.json" in html(found, ["python"])
    assert not against_prediction(ranks([part(0)]), [part(0)], "measured.json")
    Path("other.json").write_text("{}")
    assert against_prediction(ranks(found), found, "other.json").startswith("other.json cannot be used: ")
    with pytest.raises(LaunchError, match=r"--measured none\.json: no such file"), reported("a.html", [], "none.json"):
        raise AssertionError("the job is not started")


def test_without_a_rank_it_says_so() -> None:
    """A command that never calls ``init()``."""
    assert "there is nothing to report" in html([], ["hostname"])


def test_the_last_epoch_counts(tmp_path: Path) -> None:
    """By rank, whatever the order of the files."""
    for each in (part(1), part(0), part(0, epoch=1, size=1)):
        (tmp_path / f"{each['epoch']}.{each['rank']}.json").write_text(json.dumps(each))
    assert [(each["epoch"], each["rank"]) for each in read(tmp_path)] == [(1, 0)]


@pytest.mark.parametrize(
    ("path", "says"),
    [("missing/report.html", "give a file in an existing folder"), (".", "give a file"), ("there.html", "delete")],
)
def test_where_it_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, says: str) -> None:
    """Before a rank is started."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.html.ranks").mkdir()
    with pytest.raises(LaunchError, match=says), reported(path, ["python"]):
        raise AssertionError("the job is not started")


@pytest.mark.process
def test_what_is_there_stays(tmp_path: Path) -> None:
    """An earlier page where no job has run, and the ranks' parts where the page cannot be made, which the code says."""
    page = tmp_path / "there.html"
    page.write_text("the last one")
    with pytest.raises(LaunchError, match="two hosts"), reported(str(page), ["python"]):
        raise LaunchError("no two hosts")
    assert [each.name for each in tmp_path.iterdir()] == ["there.html"]
    with reported(str(page), ["python"]) as job:
        broken = Path(job.variables["WORKBENCH_REPORT"], "0.0.json")
        assert broken.parent.stat().st_mode & 0o777 == 0o700
        broken.write_text("{")
    assert job.code == 1
    assert broken.exists()
    assert page.read_text() == "the last one"


def test_a_job_without_a_step_says_so(tmp_path: Path) -> None:
    """On its page, and below the comparison, which goes on: no step, one step, no rank at all."""
    jobs = {
        "trained": ([part(0, steps=2, step_s=[0.2])], "A step took"),
        "none": ([part(0)], "No training step was seen"),
        "one": ([part(0, steps=1)], "There was one step"),
        "alone": ([], "none has called init()"),
    }
    for name, (found, says) in jobs.items():
        (tmp_path / name).write_text(html(found, ["python"]), encoding="utf-8")
        assert says in (tmp_path / name).read_text(encoding="utf-8")
    lines = compared([str(tmp_path / name) for name in jobs])
    assert len(lines) == 1 + len(jobs) + 3
    for line, (name, (_, says)) in zip(lines[-3:], list(jobs.items())[1:], strict=True):
        assert line.startswith(f"{tmp_path / name}: ")
        assert says in line


def test_what_is_no_report_is_not_compared(tmp_path: Path) -> None:
    """With its name."""
    other = tmp_path / "other.html"
    for text, says in (
        ("<html></html>", "is no report"),
        ('<script type="application/json" id="job">{</script>', "read"),
    ):
        other.write_text(text)
        with pytest.raises(LaunchError, match=f"{other}.*{says}"):
            compared([str(other)])
    with pytest.raises(LaunchError, match="cannot be read"):
        compared([str(tmp_path / "missing.html")])
