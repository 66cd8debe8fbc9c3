"""Scripts as users of Elastic Horovod have them, unchanged, in every framework; ranks are killed, join and leave.

Each script holds by itself that all ranks end with the same weights, and with those of one process that nothing
happened to: no step was lost, and none done twice.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
from elastic_jobs import Job

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

SCRIPTS = Path(__file__).resolve().parent / "scripts"
TF_KERAS = "--keras", "tensorflow.keras", "--hvd", "horovod.tensorflow.keras"
OVERLAP = {"WORKBENCH_PIECE_BYTES": "2000", "WORKBENCH_EAGER_BYTES": "0"}
Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start("torch", "--steps", "400", run=["-np", "3"])``."""
    jobs: list[Job] = []

    def begin(which: str, *words: str, run: tuple[str, ...] = ("-np", "3", "--min-np", "1"), **env: str) -> Job:
        script = SCRIPTS / f"{which}_elastic.py"
        needed = {"tensorflow2": ["tensorflow"], "pytorch": ["torch"], "jax": ["jax", "optax"]}.get(which, [])
        for module in [*needed, *([env["KERAS_BACKEND"], "keras"] if "KERAS_BACKEND" in env else [])]:
            if find_spec(module) is None:
                pytest.skip(f"needs {module}")
        command = ["--as-horovod", "--blacklist-cooldown-range", "0", "0", "python", str(script), *words]
        jobs.append(Job(tmp_path, [*run, *command], script, {"TF_CPP_MIN_LOG_LEVEL": "3", **env}))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.close()


def steps_of(job: Job, most: int, limit_s: float = 120.0) -> set[str]:
    """The job ends well; the numbers of ranks with which steps were done, one answer from each rank at the end."""
    text = job.end(limit_s)
    assert job.code == 0, text
    done = re.findall(r"<stdout>:done (\d+) (\d+) (\[.*\]) worst", text)
    assert done, text
    assert {(int(steps), int(counted)) for steps, counted, _ in done} == {(most, most)}, text
    return {sizes for *_, sizes in done}


def kill_each(job: Job, workers: tuple[int, ...], pause_s: float = 0.3) -> None:
    """One after the other, and wait until another has come in its place."""
    job.wait_for(r"stdout>:begins with 3 at 0", 90, times=3)
    for worker in workers:
        time.sleep(pause_s)
        printed = job.kill(worker)
        job.wait_for(r"stdout>:begins with 3 at", 90, times=3, after=printed)


FRAMEWORKS = [
    ("pytorch", {}, ("--steps", "900")),
    ("jax", {}, ("--steps", "900")),
    ("tensorflow2", {}, ("--steps", "1400")),
    ("keras", {"KERAS_BACKEND": "tensorflow"}, ("--epochs", "40")),
    ("pytorch", {}, ("--steps", "900", "--wide", "400", "--commit-every", "5")),
    ("pytorch", {"HOROVOD_FUSION_THRESHOLD": "0", "HOROVOD_CACHE_CAPACITY": "0"}, ("--steps", "900")),
    ("pytorch", {"WORKBENCH_BACKEND": "gloo"}, ("--steps", "900")),
    ("pytorch", {}, ("--steps", "900", "--sharded")),
    ("pytorch", OVERLAP, ("--steps", "900", "--overlap-forward", "--wide", "64", "--commit-every", "5")),
    ("tensorflow2", {}, ("--steps", "1400", "--variables")),
    ("keras", {"KERAS_BACKEND": "torch"}, ("--epochs", "40")),
    ("keras", {"KERAS_BACKEND": "jax"}, ("--epochs", "40")),
    ("keras", {"KERAS_BACKEND": "tensorflow"}, ("--epochs", "40", *TF_KERAS)),
    ("keras", {"TF_USE_LEGACY_KERAS": "1"}, ("--epochs", "40", *TF_KERAS)),
]


@pytest.mark.thorough
def test_rank_0_dies(start: Start) -> None:
    """PyTorch's optimizer goes on with two ranks, and with three again; each epoch's timeline is whole."""
    job = start("pytorch", "--steps", "500", run=("-np", "3", "--min-np", "1", "--timeline-filename", "line.json"))
    kill_each(job, (0,))
    assert steps_of(job, 500) == {"[2, 3]"}
    lines = sorted(job.out.parent.glob("line*.json"))
    assert [each.name for each in lines] == ["line.epoch2.json", "line.epoch3.json", "line.json"]
    for each in lines:
        assert any("ALLREDUCE" in event.get("name", "") for event in json.loads(each.read_text())), each


@pytest.mark.thorough
@pytest.mark.parametrize(("which", "env", "words"), FRAMEWORKS)
def test_ranks_die(start: Start, which: str, env: dict[str, str], words: tuple[str, ...]) -> None:
    """Rank 0 first, then its successor, then a newcomer; another comes each time."""
    job = start(which, *words, **env)
    kill_each(job, (0, 1, 3))
    expected = int(words[1]) * (30 if which == "keras" else 1)
    assert all("3" in sizes for sizes in steps_of(job, expected))


@pytest.mark.thorough
@pytest.mark.parametrize(("which", "env", "words"), FRAMEWORKS[:4])
def test_a_host_joins_and_one_leaves(
    start: Start, tmp_path: Path, which: str, env: dict[str, str], words: tuple[str, ...]
) -> None:
    """As the discovery script says: one rank, three, two; none is lost, and no step is done again."""
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost:1\n")
    run = "-np", "1", "--min-np", "1", "--max-np", "3", "--host-discovery-script", f"cat {hosts}"
    job = start(which, *words, run=run, **env)
    job.wait_for("stdout>:begins with 1 at 0", 90)
    hosts.write_text("localhost:1\n127.0.0.1:2\n")
    job.wait_for("stdout>:begins with 3 at", 90, times=3)
    hosts.write_text("localhost:1\n127.0.0.1:1\n")
    job.wait_for("1 worker will leave", 60)
    job.wait_for("stdout>:begins with 2 at", 60, times=2, after=job.text().index("1 worker will leave"))
    expected = int(words[1]) * (30 if which == "keras" else 1)
    assert steps_of(job, expected) <= {"[1, 2, 3]", "[1, 3, 2]"}
    assert "was lost" not in job.text()


@pytest.mark.thorough
@pytest.mark.parametrize("samples", [900, 1001])
def test_every_sample_is_used_once(start: Start, samples: int) -> None:
    """Of each epoch, among the steps that were committed: over kills of ranks that had used others since a commit."""
    job = start("sampler", "--samples", str(samples), "--epochs", "4")
    kill_each(job, (0, 1, 2), 0.7)
    assert all("3" in sizes for sizes in steps_of(job, 4))
