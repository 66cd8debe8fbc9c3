"""How long until a job's ranks run, and a notebook's engines: ``python benchmarks/start.py --out results/start.json``.

Everything is started as a user would start it, in turns, round by round, and timed from outside. A figure is from the
command to its end, for a script that does nothing; a *first line* is what the slowest rank's script prints. What a
Python alone takes, and MPI's launcher alone, stands beside it: less is not possible.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import machine
from figures import Seconds, quartiles, rotated
from report import milliseconds, table

from workbench.launch.start import mpi

NOTHING = "pass"
FIRST_LINE = "import time; print(time.time(), flush=True)"
INIT = "import time, workbench; workbench.init; t = time.time(); workbench.init(); print(time.time() - t, flush=True)"
UP = """
import time
t = time.time()
from workbench import cluster
engines = cluster.up({n}, quiet=True)
print(time.time() - t, flush=True)
engines.down()
"""
PLAIN_CLUSTER = """
import time
t = time.time()
import ipyparallel
cluster = ipyparallel.Cluster(engines="mpi", n={n}, log_level=40)
client = cluster.start_and_connect_sync()
print(time.time() - t, flush=True)
client.close()
cluster.stop_cluster_sync()
"""
_DEADLINE_S = 120.0


def main() -> None:
    """Measure, print a table, and write the figures if a file is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--cluster-rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    others = machine.Others()
    seconds = in_turns(commands(args.ranks), args.rounds) | in_turns(clusters(args.ranks), args.cluster_rounds)
    rows = [[name, milliseconds(quartiles(values))] for name, values in seconds.items()]
    print("\n".join(table([f"{args.ranks} ranks", "ms"], rows)))
    about = machine.about() | {"others_percent": others.percent()}
    if args.out:
        figures = {"section": "start", "ranks": args.ranks, "seconds": seconds, "machine": about}
        args.out.write_text(json.dumps(figures, indent=1) + "\n")


def commands(n: int) -> dict[str, Callable[[], float]]:
    """What is timed, by name."""
    python, ours = [sys.executable, "-c"], [sys.executable, "-m", "workbench.cli.main", "run", "-np", str(n)]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(n)]
    plain = [mpi.find_mpiexec(), "-n", str(n)]
    found: dict[str, Callable[[], float]] = {
        "python": lambda: whole([*python, NOTHING]),
        "python, import workbench": lambda: whole([*python, "import workbench"]),
        "mpiexec": lambda: whole([*plain, *python, NOTHING]),
        "workbench run": lambda: whole([*ours, *python, NOTHING]),
        "workbench run --gloo": lambda: whole([*ours, "--gloo", *python, NOTHING]),
        "mpiexec, first line": lambda: first_line([*plain, *python, FIRST_LINE]),
        "workbench run, first line": lambda: first_line([*ours, *python, FIRST_LINE]),
        "workbench.init()": lambda: slowest([*ours, *python, INIT]),
    }
    if find_spec("torch"):
        found["torchrun"] = lambda: whole([*torchrun, "--no-python", *python, NOTHING])
    return found


def clusters(n: int) -> dict[str, Callable[[], float]]:
    """A notebook's engines: ours, and ipyparallel's as they come."""
    return {
        "cluster.up()": lambda: slowest([sys.executable, "-c", UP.format(n=n)]),
        "ipyparallel.Cluster": lambda: slowest([sys.executable, "-c", PLAIN_CLUSTER.format(n=n)]),
    }


def in_turns(every: dict[str, Callable[[], float]], rounds: int) -> Seconds:
    """Seconds by name and round; the first round of all only warms the file system's cache."""
    seconds: Seconds = {name: [] for name in every}
    for turn in range(-1, rounds):
        for name in rotated(list(every), turn):
            took = every[name]()
            if turn >= 0:
                seconds[name].append(took)
    return seconds


def whole(command: list[str]) -> float:
    """From the command to its end."""
    begun = time.time()
    output(command)
    return time.time() - begun


def first_line(command: list[str]) -> float:
    """From the command to the time that the slowest rank prints."""
    begun = time.time()
    return slowest(command) - begun


def slowest(command: list[str]) -> float:
    """The largest number that a rank prints."""
    return max(float(line.rpartition(":")[2]) for line in output(command).split())


def output(command: list[str]) -> str:
    """What it prints; it must not fail."""
    env = mpi.environment(1)
    with tempfile.TemporaryDirectory() as folder:
        env |= {"IPYTHONDIR": folder}
        done = subprocess.run(command, env=env, stdin=subprocess.DEVNULL, capture_output=True, timeout=_DEADLINE_S)
    if done.returncode:
        raise SystemExit(f"{command} ended with exit code {done.returncode}:\n{done.stderr.decode()[-2000:]}")
    return done.stdout.decode()


if __name__ == "__main__":
    main()
