"""``kill -9`` amid exact training: the final weights are, bit for bit, those of a run that nothing happened to."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from elastic_jobs import LAUNCHER, Job
from installed import needs

needs("torch")
pytestmark = pytest.mark.timeout(200)
SCRIPT = Path(__file__).parent / "scripts" / "exact_training.py"
STEPS = 150


class Training(Job):
    """A running ``workbench run`` of :data:`SCRIPT`."""

    def digests(self) -> list[str]:
        """Wait for the end; what each rank that came to it has trained."""
        text = self.end(150)
        assert self.code == 0, text
        found = re.findall(r"digest \d+ (\w+) rank", text)
        assert found, text
        return found


Start = Callable[..., Training]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start("-np", "3", …)`` starts the training script."""
    jobs: list[Training] = []

    def begin(*words: str, steps: int = STEPS, pause_s: float = 0.01) -> Training:
        folder = tmp_path / str(len(jobs))
        folder.mkdir()
        jobs.append(Training(folder, [*words, "python", str(SCRIPT), str(steps), str(pause_s)], SCRIPT))
        return jobs[-1]

    yield begin
    for job in jobs:
        job.close()


@pytest.mark.thorough
def test_kills_change_no_bit(start: Start) -> None:
    """Of three ranks seeded ones are killed at seeded moments, two of them at once; others come in their place."""
    (undisturbed,) = set(start("-np", "1", pause_s=0.0).digests())
    choose = random.Random(7)
    job = start("-np", "3", "--min-np", "1", "--reset-limit", "100", "--blacklist-cooldown-range", "0", "0")
    job.wait_for("begins with 3 at 0", limit_s=90)
    for count in (1, 2):
        time.sleep(choose.uniform(0.1, 0.5))
        for pid in choose.sample(sorted(job.ranks().values()), count):
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.3)
    digests = job.digests()
    assert "was killed by SIGKILL" in job.text()
    assert set(digests) == {undisturbed}, job.text()


@pytest.mark.thorough
def test_one_rank_is_left(start: Start) -> None:
    """All but one die at once, and nobody comes: it has the buffers of all shards."""
    (undisturbed,) = set(start("-np", "1", pause_s=0.0).digests())
    job = start("-np", "3", "--min-np", "1", "--blacklist-cooldown-range", "60", "60")
    job.wait_for("begins with 3 at 0", limit_s=90)
    time.sleep(0.3)
    for pid in sorted(job.ranks().values())[1:]:
        os.kill(pid, signal.SIGKILL)
    job.wait_for("begins with 1 at")
    assert set(job.digests()) == {undisturbed}, job.text()


KILLS = int(os.environ.get("WORKBENCH_TEST_KILLS", "300"))  # of all cases together


def digest_of(ranks: int, steps: int, *words: str, limit_s: float) -> tuple[int, str]:
    """Train with :data:`SCRIPT`; the steps and the digest on which all ranks agree that came to the end."""
    run = [*LAUNCHER, "-np", str(ranks), *words, "python", str(SCRIPT), str(steps)]
    done = subprocess.run(run, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_s)
    found = set(re.findall(r"<stdout>:digest (\d+) (\w+) rank", done.stdout))
    assert (done.returncode, len(found)) == (0, 1), done.stdout[-6000:]
    if "--chaos" in words:
        happened = re.search(r"chaos: (\d+) of (\d+) faults happened", done.stdout)
        assert happened, done.stdout[-6000:]
        assert happened[1] == happened[2], done.stdout[-6000:]
    ((count, digest),) = found
    return int(count), digest


@pytest.mark.thorough
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("backend", ["auto", "sockets"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_kills_at_all_states_change_no_bit(ranks: int, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeded kills at all named states, over shared memory and TCP."""
    monkeypatch.setenv("WORKBENCH_BACKEND", backend)
    elastic = ["--min-np", "1", "--max-np", str(ranks), "--blacklist-cooldown-range", "0", "0"]
    chaos = ["--chaos", f"seed={ranks},kills={-(-KILLS // 6)}"]
    steps, digest = digest_of(ranks, 0, *elastic, *chaos, limit_s=1400)
    monkeypatch.delenv("WORKBENCH_BACKEND")
    assert digest_of(1, steps, limit_s=300) == (steps, digest)
