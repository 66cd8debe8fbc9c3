"""How long until a notebook's engines are ready, and the memory of each: ``benchmarks/engines.py --out FILE``.

``cluster.up`` is called again and again, as a notebook does: *cold*, each engine is a Python of its own; *warm*, all
are forked by the fork server; *first*, the same in a new process, which has still to import ipyparallel. Memory is read
from the system after ``import torch`` and a ``hvd.allreduce`` on each engine: what it has alone (private), and its part
of what it shares (PSS).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import machine
from report import table

from workbench import cluster
from workbench.launch.forks.find import Forks
from workbench.launch.start import mpi

USE = "import torch, workbench.torch as hvd; hvd.init(); hvd.allreduce(torch.ones(1000)); hvd.shutdown()"
FIRST = """
import time
begun = time.time()
from workbench import cluster
engines = cluster.up({n}, quiet=True)
print(time.time() - begun)
engines.down()
"""


def main() -> None:
    """Measure, print a table, and write the figures if a file is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--cold-rounds", type=int, default=100)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    others = machine.Others()
    seconds, memory = {}, {}
    for name in ("cold", "warm"):
        os.environ["WORKBENCH_FORK"] = "0" if name == "cold" else "1"
        if name == "warm":
            start_server(args.ranks)
        rounds = args.rounds if name == "warm" else args.cold_rounds
        seconds[name] = [one(args.ranks)[0] for _ in range(rounds)]
        memory[name] = one(args.ranks, use=True)[1]
    seconds["first"] = [first(args.ranks) for _ in range(max(1, args.rounds // 10))]
    rows = [[name, *(f"{call(values):.2f}" for call in (statistics.median, max))] for name, values in seconds.items()]
    print("\n".join(table([f"cluster.up({args.ranks}), s", "median", "worst"], rows)))
    rows = [[name, *(f"{value / 2**20:.0f}" for value in each.values())] for name, each in memory.items()]
    print("\n".join(table(["an engine with torch, MiB", *memory["warm"]], rows)))
    about = machine.about() | {"others_percent": others.percent()}
    if args.out:
        figures = {"section": "engines", "ranks": args.ranks, "seconds": seconds, "bytes": memory, "machine": about}
        args.out.write_text(json.dumps(figures, indent=1) + "\n")


def start_server(n: int) -> None:
    """Have a fork server that listens."""
    while not (forks := Forks(mpi.environment(mpi.threads_per_rank(n)))).found:
        forks.start()
        time.sleep(0.1)


def one(n: int, use: bool = False) -> tuple[float, dict[str, float]]:
    """Seconds of a start, and bytes of an engine."""
    begun = time.perf_counter()
    engines = cluster.up(n, quiet=True)
    took = time.perf_counter() - begun
    if use:
        engines.view.execute(USE)
    found = [memory_of(pid) for pid in engines.pids()]
    engines.down()
    return took, {name: statistics.mean(each[name] for each in found) for name in found[0]}


def first(n: int) -> float:
    """Seconds in a process of its own, with the import."""
    code = FIRST.format(n=n)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ)
    return float(done.stdout)


def memory_of(pid: int) -> dict[str, int]:
    """Bytes of a process."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]:
        name, _, text = line.partition(":")
        found[name] = int(text.split()[0]) << 10
    return {"private": found["Private_Clean"] + found["Private_Dirty"], "PSS": found["Pss"], "RSS": found["Rss"]}


if __name__ == "__main__":
    main()
