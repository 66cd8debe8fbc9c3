"""Random faults of hosts and processes during a training of 2 × 2 ranks: no hang, the right name, nothing left."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from hosts import Hosts
from running import environment
from test_run_in_slurm import WORKBENCH
from thorough import once_more

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(200)]

PEER_TIMEOUT_S = 4.0
ENDS_WITHIN_S = 35.0  # from the fault: detection, 5 s for the others' last words, signals, and a slow machine
GONE_WITHIN_S = 30.0  # from the launcher's end; a host whose cable is out hears of it when it is plugged in again
STEPS = 60
# Rows of one batch are dealt out to the ranks, so the averages are those of a training by one process.
SCRIPT = f"""
import os, sys, time, torch, workbench.torch as hvd
hvd.init()
rank, size = hvd.rank(), hvd.size()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
if size > 1:
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
data = torch.Generator().manual_seed(2)
for step in range({STEPS}):
    x = torch.randn(16, 32, generator=data)
    y = x.sum(1, keepdim=True)
    optimizer.zero_grad()
    torch.nn.functional.mse_loss(model(x[rank::size]), y[rank::size]).backward()
    optimizer.step()
    sys.stdout.write(f"step {{step}} {{os.getpid()}}\\n")
    sys.stdout.flush()
    time.sleep(0.05 if size > 1 else 0)
weights = torch.cat([each.detach().reshape(-1) for each in model.parameters()]).double()
sys.stdout.write(f"weights {{weights.norm():.4f}} {{weights.sum():.4f}}\\n")
sys.stdout.flush()
hvd.shutdown()
"""


@dataclass(frozen=True)
class Fault:
    """What happens.

    Args:
        kind: see :func:`strike`.
        target: a host, or a rank for ``rank …``; counted from 0.
        after_s: from the ranks' third step.
        heals_s: after so long it is over; 0: never.
    """

    kind: str
    target: int
    after_s: float
    heals_s: float = 0.0

    def __str__(self) -> str:
        over = f" for {self.heals_s:.1f} s" if self.heals_s else ""
        return f"{self.kind} {self.target} after {self.after_s:.1f} s{over}"

    @property
    def harmless(self) -> bool:
        """The job is to go on."""
        return self.heals_s > 0 or self.kind == "kill listener"

    @property
    def said(self) -> str:
        """What the launcher has to say about it."""
        if "rank" in self.kind:
            host = rf"wb{self.target // 2 + 1}"
            return rf"[Rr]ank {self.target}\b.* on (host )?{host}\b"
        return rf"Host wb{self.target + 1} was lost with ranks {2 * self.target}, {2 * self.target + 1}"


def drawn(seed: int) -> Fault:
    """A fault; the first ones differ in kind."""
    kinds = ["kill rank", "stop agent", "cut", "stop rank", "kill agent", "kill sshd", "kill listener"]
    dice = random.Random(seed)
    kind = kinds[seed] if seed < len(kinds) else dice.choice(kinds)
    # The launcher is on the first host, where it needs no ssh; who pulls a cable is all the same to two hosts.
    target = dice.randrange(4) if "rank" in kind else dice.randrange(2) if "agent" in kind else 1
    heals = (kind == "cut" or "stop" in kind) and dice.random() < 0.5
    return Fault(kind, target, dice.uniform(0.0, 1.5), dice.uniform(0.2, 1.5) if heals else 0.0)


class Job:
    """A training that runs, and what belongs to it."""

    def __init__(self, hosts: Hosts, folder: Path) -> None:
        self.hosts, self.folder = hosts, folder
        self._networks = [hosts.run(i, "readlink", "/proc/self/ns/net").stdout.strip() for i in range(2)]
        self._listeners = [int((hosts.folder / name / "sshd.pid").read_text()) for name in hosts.names]
        variables = {"WORKBENCH_PEER_TIMEOUT_S": f"{PEER_TIMEOUT_S:g}", "TMPDIR": str(folder)}
        words = hosts.words(0, WORKBENCH, "run", "-H", "wb1:2,wb2:2", sys.executable, "-c", SCRIPT)
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            self.process = subprocess.Popen(
                words, env=environment() | variables, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )

    def text(self) -> str:
        """All that was written."""
        return (self.folder / "out").read_text() + (self.folder / "err").read_text()

    def pids(self, step: int) -> dict[int, int]:
        """By rank the process id, of those that have come to this step."""
        found = re.findall(rf"^\[(\d+)@wb\d\]<stdout>:step {step} (\d+)$", self.text(), re.MULTILINE)
        return {int(rank): int(pid) for rank, pid in found}

    def on(self, host: int) -> list[psutil.Process]:
        """The job's processes on a host."""
        found = []
        for process in psutil.process_iter(["name", "cmdline"]):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{process.pid}/ns/net") == self._networks[host]:
                    found.append(process)
        return [each for each in found if each.pid != self._listeners[host] and each.status() != "zombie"]

    def agents(self, host: int) -> list[psutil.Process]:
        """Those on a host."""
        return [each for each in self.on(host) if "hosts.agent" in " ".join(each.info["cmdline"]) and _python(each)]

    def victims(self, fault: Fault) -> list[int]:
        """The processes that it is about."""
        if "rank" in fault.kind:
            return [self.pids(3)[fault.target]]
        if "agent" in fault.kind:
            return [each.pid for each in self.agents(fault.target)]
        if fault.kind == "kill listener":
            return [self._listeners[fault.target]]
        return [each.pid for each in self.on(fault.target) if each.info["name"].startswith("sshd")]

    def wait(self, limit_s: float) -> int:
        """The exit code."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the job hangs:\n{self.text()[-6000:]}")

    def left(self) -> list[str]:
        """What is there of it, on both hosts."""
        found = [f"{each.pid} {each.info['cmdline']}" for host in (0, 1) for each in self.on(host)]
        found += map(str, self.folder.glob("workbench-job-*"))
        for i in () if found else (0, 1):  # ls is a process of the host, too
            found += self.hosts.run(i, "ls", "-A", "/dev/shm").stdout.split()
        return found


def _python(process: psutil.Process) -> bool:
    return "python" in process.info["name"]


def strike(job: Job, fault: Fault) -> None:
    """Let it happen, and heal."""
    if fault.kind == "cut":
        job.hosts.cut(fault.target)
        if fault.heals_s:
            time.sleep(fault.heals_s)
            job.hosts.heal(fault.target)
        return
    victims = job.victims(fault)
    assert victims, f"nothing to {fault.kind}"
    number = signal.SIGSTOP if "stop" in fault.kind else signal.SIGKILL
    for pid in victims:
        os.kill(pid, number)
    if fault.heals_s:
        time.sleep(fault.heals_s)
        for pid in victims:
            os.kill(pid, signal.SIGCONT)


def wait_until_gone(job: Job) -> None:
    """Nothing is left of it, on no host."""
    until = time.monotonic() + GONE_WITHIN_S
    while left := job.left():
        assert time.monotonic() < until, "\n".join(left)
        time.sleep(0.1)


@pytest.fixture
def job(hosts: Hosts, tmp_path: Path) -> Iterator[Job]:
    """A training at its third step."""
    running = Job(hosts, tmp_path)
    try:
        until = time.monotonic() + 60.0
        while len(running.pids(3)) < 4:
            assert time.monotonic() < until, running.text()
            assert running.process.poll() is None, running.text()
            time.sleep(0.02)
        yield running
    finally:
        running.process.kill()
        running.process.wait()


@pytest.fixture(scope="module")
def right() -> str:
    """What the weights come to in one process."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment(), capture_output=True, text=True, timeout=60.0
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("seed", [1, *map(once_more, (0, *range(2, 50)))])
def test_a_fault(seed: int, job: Job, right: str) -> None:
    """It ends in time; what heals does no harm, and what does not is named with its host; nothing is left."""
    fault = drawn(seed)
    time.sleep(fault.after_s)
    begun = time.monotonic()
    strike(job, fault)
    code = job.wait(ENDS_WITHIN_S)
    took = time.monotonic() - begun
    if fault.kind == "cut":
        job.hosts.heal(fault.target)
    text = job.text()
    print(f"fault {seed}: {fault}: exit code {code} after {took:.1f} s")
    if fault.harmless:
        assert code == 0, f"{fault}\n{text[-6000:]}"
        assert re.findall(r"^\[\d@wb\d\]<stdout>:(weights .*)$", text, re.MULTILINE) == [right] * 4, str(fault)
    else:
        assert code != 0, f"{fault}\n{text[-6000:]}"
        assert re.search(fault.said, text), f"{fault}: not said: {fault.said}\n{text[-6000:]}"
    wait_until_gone(job)
