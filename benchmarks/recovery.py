"""How long until a training goes on: ``python benchmarks/recovery.py --out results/recovery.json``.

A rank is killed (SIGKILL, another one each time) amid steps of 4 MiB each, with a commit after each. What is timed from
outside is the time from the kill to the survivors' next completed step; each survivor's own clock says which part it
spent on noticing, on leaving and joining, on the sync and on the step. Beside it torchrun's restart of all ranks
(``--max-restarts``) with Gloo doing the same steps, to the first step of the new processes, without reading a
checkpoint. Then: leave and init of all ranks, of 2 to 16.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import machine
from figures import Seconds, quartiles
from report import milliseconds, table

OURS = """
import os, sys, time
import numpy as np
import workbench as hvd
from workbench import elastic
from workbench.job.objects import broadcast_object

log = open(os.path.join(sys.argv[1], f"ours.{os.getpid()}"), "a", buffering=1)
note = lambda what: log.write(f"{time.time()} {what} {hvd.size() if hvd.is_initialized() else 0}\\n")

class State(elastic.ObjectState):
    def restore(self):
        note("noticed")
        super().restore()

hvd.init()
state = State(broadcast_object, hvd.rank, step=0)
state.register_reset_callbacks([lambda: note("begun")])

@elastic.run
def train(state):
    note("synced")
    while not os.path.exists(os.path.join(sys.argv[1], "stop")):
        hvd.allreduce(np.ones(1 << 20, np.float32), name="gradients")
        note("step")
        state.step += 1
        state.commit()

try:
    train(state)
except Exception:
    os._exit(0)  # another one has seen the stop file a step earlier
os._exit(0)
"""
THEIRS = """
import os, sys, time
import torch, torch.distributed as dist
log = open(os.path.join(sys.argv[1], f"theirs.{os.getpid()}"), "a", buffering=1)
dist.init_process_group("gloo")
log.write(f"{time.time()} begun {dist.get_world_size()}\\n")
while True:
    dist.all_reduce(torch.ones(1 << 20))
    log.write(f"{time.time()} step {dist.get_world_size()}\\n")
"""
AGAIN = """
import time, workbench as hvd
from workbench import api, elastic
from workbench.job.objects import broadcast_object
import numpy as np
hvd.init()
state = elastic.ObjectState(broadcast_object, hvd.rank, n=0)
@elastic.run
def train(state):
    for turn in range(ROUNDS + 1):
        api.barrier()
        begun = time.time()
        elastic.restart()
        took = api.allreduce(np.array([time.time() - begun]), op=api.Max)[0]
        if turn and hvd.rank() == 0:
            print("took", took, flush=True)
train(state)
"""
_DEADLINE_S = 60.0
PARTS = ("noticed", "begun", "synced", "step")


def main() -> None:
    """Measure, print tables, and write the figures if a file is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--their-kills", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--sizes", default="2,4,8,16")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    others = machine.Others()
    seconds = ours(args.ranks, args.kills)
    again = {size: leave_and_init(int(size), args.rounds) for size in args.sizes.split(",")}
    theirs_too = theirs(args.ranks, args.their_kills)
    if theirs_too:
        seconds["torchrun --max-restarts"] = theirs_too
    rows = [[name, milliseconds(quartiles(values)), f"{max(values) * 1000:.0f}"] for name, values in seconds.items()]
    print("\n".join(table([f"{args.ranks} ranks, from the kill to", "ms", "worst"], rows)))
    rows = [[size, milliseconds(quartiles(values)), f"{max(values) * 1000:.0f}"] for size, values in again.items()]
    print("\n".join(table(["ranks that leave and begin anew", "ms", "worst"], rows)))
    about = machine.about() | {"others_percent": others.percent()}
    if args.out:
        figures = {"section": "recovery", "ranks": args.ranks, "seconds": seconds, "again": again, "machine": about}
        args.out.write_text(json.dumps(figures, indent=1) + "\n")


def ours(n: int, kills: int) -> Seconds:
    """By part of the recovery, for each kill the slowest survivor's time since the kill."""
    words = [sys.executable, "-m", "workbench.cli.main", "run", "-np", str(n), "--min-np", "1"]
    words += ["--blacklist-cooldown-range", "2", "2", sys.executable]
    seconds: Seconds = {part: [] for part in PARTS}
    with Killing("ours", OURS, words, n) as job:
        for turn in range(kills):
            victim, at = job.kill(turn)
            job.wait(
                lambda victim=victim, at=at: all(  # type: ignore[misc]
                    len(job.since(pid, at)) == len(PARTS) for pid in job.alive() if pid != victim and pid in job.knew
                )
            )
            found = [job.since(pid, at) for pid in job.knew if pid != victim]
            for part in PARTS:
                seconds[part].append(max(each[part] for each in found) - at)
        job.stop()
    return seconds


def theirs(n: int, kills: int) -> list[float]:
    """For each kill the slowest new process's first step since the kill."""
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)]
    words += ["--max-restarts", str(kills + 2)]
    seconds = []
    with Killing("theirs", THEIRS, words, n) as job:
        for turn in range(kills):
            _, at = job.kill(turn)
            before = set(job.knew)
            try:
                job.wait(lambda before=before: len(set(job.stepping()) - before) == n)  # type: ignore[misc]
            except SystemExit as error:  # its restart has failed: what was measured before counts
                sys.stderr.write(f"torchrun, kill {turn + 1}: {error}\n")
                break
            seconds.append(max(job.first_step(pid) for pid in set(job.stepping()) - before) - at)
    return seconds


class Killing:
    """A running job, whose ranks write down when they have done what.

    Args:
        name: of its ranks' files.
        script: of a rank.
        words: that start it.
        n: how many ranks there are before a kill.
    """

    def __init__(self, name: str, script: str, words: list[str], n: int) -> None:
        self._name, self._n = name, n
        self._folder = tempfile.TemporaryDirectory()
        self.path = Path(self._folder.name)
        (self.path / "rank.py").write_text(script)
        self._process = subprocess.Popen(
            [*words, str(self.path / "rank.py"), str(self.path)],
            stdout=(self.path / "out").open("wb"),
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"} if name == "theirs" else None,
        )
        self.knew: list[int] = []

    def __enter__(self) -> Killing:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._folder.cleanup()

    def kill(self, turn: int) -> tuple[int, float]:
        """Kill a rank, when there are as many as there should be: its process, and when."""
        self.wait(lambda: len(self.complete()) == self._n)
        time.sleep(0.4 + 0.037 * (turn % 10))  # at another point of a step each time
        self.knew = self.complete()
        victim = self.knew[turn % self._n]
        at = time.time()
        os.kill(victim, signal.SIGKILL)
        return victim, at

    def wait(self, until: Callable[[], bool]) -> None:
        """For it to be so."""
        deadline = time.monotonic() + _DEADLINE_S
        while not until():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise SystemExit(f"{self._name}: it does not go on:\n{(self.path / 'out').read_text()[-3000:]}")
            time.sleep(0.1)

    def alive(self) -> list[int]:
        """Processes that have written and are there, in the order in which they came."""
        files = sorted(self.path.glob(f"{self._name}.*"), key=lambda each: each.stat().st_ctime_ns)
        found = [int(each.suffix[1:]) for each in files]
        return sorted(pid for pid in found if _running(pid))

    def complete(self) -> list[int]:
        """Those of them that have just done a step with all ranks."""
        found = []
        for pid in self.alive():
            last = self._lines(pid)[-1:]
            steps = [line for line in self._lines(pid)[-3:] if line[1] == "step"]
            if last and steps and steps[-1][2] == self._n:
                found.append(pid)
        return found

    def stepping(self) -> list[int]:
        """Those that have done a step."""
        return [pid for pid in self.alive() if any(line[1] == "step" for line in self._lines(pid))]

    def first_step(self, pid: int) -> float:
        """When."""
        return next(line[0] for line in self._lines(pid) if line[1] == "step")

    def since(self, pid: int, at: float) -> dict[str, float]:
        """When a survivor had come to each part since ``at``."""
        found: dict[str, float] = {}
        for when, what, _ in self._lines(pid):
            if when > at and (what == "noticed" or found) and what not in found:
                found[what] = when
        return found

    def stop(self) -> None:
        """Let it come to its end."""
        (self.path / "stop").touch()
        self._process.wait(60)
        for pid in self.alive():  # torchrun leaves ranks of a restart that has failed
            os.kill(pid, signal.SIGKILL)

    def _lines(self, pid: int) -> list[tuple[float, str, int]]:
        text = (self.path / f"{self._name}.{pid}").read_text()
        lines = [line.split() for line in text[: text.rfind("\n") + 1].splitlines()]
        return [(float(when), what, int(size)) for when, what, size in lines]


def _running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def leave_and_init(n: int, rounds: int) -> list[float]:
    """The slowest rank's time from the call to the new job, round by round."""
    words = [sys.executable, "-m", "workbench.cli.main", "run", "-np", str(n), "--min-np", str(n)]
    script = AGAIN.replace("ROUNDS", str(rounds))
    done = subprocess.run(
        [*words, sys.executable, "-c", script], capture_output=True, text=True, timeout=2 * _DEADLINE_S
    )
    if done.returncode:
        raise SystemExit(f"{n} ranks: exit code {done.returncode}:\n{done.stderr[-3000:]}")
    return [float(line.rpartition(" ")[2]) for line in done.stdout.splitlines() if "took" in line]


if __name__ == "__main__":
    main()
