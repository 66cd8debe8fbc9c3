"""``kill -9`` amid exact training: the final weights are, bit for bit, those of a run that nothing happened to."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

pytest.importorskip("torch")
pytestmark = pytest.mark.timeout(200)
TRAIN = """
import hashlib, os, sys, time
import torch
import torch.nn.functional as F
import workbench.torch as hvd

torch.set_num_threads(1)
hvd.init()
steps, pause = int(sys.argv[1]), float(sys.argv[2])
g = torch.Generator().manual_seed(1)
X, Y = torch.randn(100, 1, 8, 8, generator=g), torch.randint(0, 3, (100,), generator=g)
torch.manual_seed(int(os.environ.get("WORKBENCH_WORKER", 0)))  # the first sync makes them alike, from rank 0 on
if hvd.rank() == 0:
    torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(1, 6, 3), torch.nn.BatchNorm2d(6), torch.nn.ReLU(), torch.nn.Dropout(0.3),
                            torch.nn.Flatten(), torch.nn.Linear(216, 3))
optimizer = hvd.DistributedOptimizer(torch.optim.Adam(model.parameters(), lr=0.01), model.named_parameters())
state = hvd.elastic.TorchState(model, optimizer, taken=[])
samples = hvd.elastic.ShardBatches(X, shards=4, batch_size=3)

@hvd.elastic.run(exact=True, shards=4)
def train(state):
    print(f"begins with {hvd.size()} at {state.exact.step}", flush=True)
    while state.exact.step < steps:
        step = state.exact.step
        for shard in state.shards():
            part = samples(step, shard)
            if len(part):
                (F.cross_entropy(model(X[part]), Y[part]) * samples.weight(step, shard)).backward()
        optimizer.step()
        state.taken.append(step)
        state.commit()
        time.sleep(pause)

train(state)
assert state.taken == list(range(steps))  # each step counts once
trained = [value.reshape(-1).view(torch.uint8).numpy().tobytes() for value in model.state_dict().values()]
digest = hashlib.sha256(b"".join(trained))
for each in optimizer.state.values():
    digest.update(each["exp_avg"].numpy().tobytes())
print(f"digest {digest.hexdigest()} rank {hvd.rank()}", flush=True)
"""
STEPS = 150


class Job:
    """A running ``workbench run``."""

    def __init__(self, folder: Path, words: list[str], steps: int, pause_s: float) -> None:
        folder.mkdir()
        self.script, self.out = folder / "train.py", folder / "out"
        self.script.write_text(TRAIN)
        command = [sys.executable, "-m", "workbench.launch.cli", "run", *words]
        with self.out.open("wb") as out:
            train = ["python", str(self.script), str(steps), str(pause_s)]
            self.process = subprocess.Popen([*command, *train], stdout=out, stderr=subprocess.STDOUT, cwd=folder)

    def text(self) -> str:
        """What came so far."""
        return self.out.read_text(errors="replace")

    def wait_for(self, pattern: str, limit_s: float = 90.0) -> None:
        """Until this was printed."""
        until = time.monotonic() + limit_s
        while not re.search(pattern, self.text()):
            assert time.monotonic() < until, self.text()
            assert self.process.poll() is None, self.text()
            time.sleep(0.02)

    def ranks(self) -> list[int]:
        """The ranks' processes."""
        found = []
        for process in psutil.Process(self.process.pid).children(recursive=True):
            try:
                if process.cmdline()[1:2] == [str(self.script)]:
                    found.append(process.pid)
            except psutil.Error:
                continue
        return sorted(found)

    def digests(self) -> list[str]:
        """Wait for the end; what each rank that came to it has trained."""
        assert self.process.wait(150) == 0, self.text()
        found = re.findall(r"digest (\w+) rank", self.text())
        assert found, self.text()
        return found


Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """``start("-np", "3", …)`` starts the training script."""
    jobs: list[Job] = []

    def begin(*words: str, steps: int = STEPS, pause_s: float = 0.01) -> Job:
        jobs.append(Job(tmp_path / str(len(jobs)), list(words), steps, pause_s))
        return jobs[-1]

    yield begin
    for job in jobs:
        if job.process.poll() is None:
            job.process.kill()
            job.process.wait(10)


def test_kills_change_no_bit(start: Start) -> None:
    """Of four ranks seeded ones are killed at seeded moments, two of them at once; others come in their place."""
    (undisturbed,) = set(start("-np", "2", pause_s=0.0).digests())
    choose = random.Random(7)
    job = start("-np", "4", "--min-np", "1", "--reset-limit", "100", "--blacklist-cooldown-range", "0", "0")
    job.wait_for("begins with 4 at 0")
    for count in (1, 2, 1):
        time.sleep(choose.uniform(0.1, 0.5))
        for pid in choose.sample(job.ranks(), count):
            os.kill(pid, signal.SIGKILL)
        time.sleep(0.3)
    digests = job.digests()
    assert "was killed by SIGKILL" in job.text()
    assert set(digests) == {undisturbed}, job.text()


def test_one_rank_is_left(start: Start) -> None:
    """All but one die at once, and nobody comes: it has the buffers of all shards."""
    (undisturbed,) = set(start("-np", "1", pause_s=0.0).digests())
    job = start("-np", "3", "--min-np", "1", "--blacklist-cooldown-range", "60", "60")
    job.wait_for("begins with 3 at 0")
    time.sleep(0.3)
    for pid in job.ranks()[1:]:
        os.kill(pid, signal.SIGKILL)
    job.wait_for("begins with 1 at")
    assert set(job.digests()) == {undisturbed}, job.text()


CHAOS = str(Path(__file__).parent / "scripts" / "exact_chaos.py")
KILLS = int(os.environ.get("WORKBENCH_TEST_KILLS", "300"))  # of all cases together


def digest_of(ranks: int, steps: int, *words: str, limit_s: float) -> tuple[int, str]:
    """Train with :data:`CHAOS`; the steps and the digest on which all ranks agree that came to the end."""
    run = [sys.executable, "-m", "workbench.launch.cli", "run", "-np", str(ranks), *words, "python", CHAOS, str(steps)]
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
@pytest.mark.parametrize("backend", ["auto", "gloo"])
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_kills_at_all_states_change_no_bit(ranks: int, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seeded kills at all named states, over shared memory and Gloo."""
    monkeypatch.setenv("WORKBENCH_BACKEND", backend)
    elastic = ["--min-np", "1", "--max-np", str(ranks), "--blacklist-cooldown-range", "0", "0"]
    chaos = ["--chaos", f"seed={ranks},kills={-(-KILLS // 6)}"]
    steps, digest = digest_of(ranks, 0, *elastic, *chaos, limit_s=1400)
    monkeypatch.delenv("WORKBENCH_BACKEND")
    assert digest_of(1, steps, limit_s=300) == (steps, digest)
