"""Many ranks on one machine: ``python benchmarks/scale.py --ranks 2,4,8,16,32,64 --out results/scale.json``.

For each number of ranks one job is started as users start it, and four things are measured: the seconds from the
command until every rank has come back from ``init()``; the memory of a rank that is its own (PSS: a page that n ranks
share counts an n-th for each), beside a Python that has only imported numpy; the time of a small and of a large
allreduce; and the CPU that idle ranks use. More ranks than cores share them, so a time grows at least with the ranks.

What grows with the square of the ranks would stand out: the last column is the exponent between neighbours, 1 for
what grows with the ranks, 2 with their square.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import machine
from report import number, table

from workbench.launch.start import mpi

SIZES = {"4 KiB": 4 << 10, "1 MiB": 1 << 20}
_IDLE_S = 5.0
_ALLREDUCE_S = 4.0  # of one size
_DEADLINE_S = 300.0
FIGURES = {
    "start_s": "start, s",
    "pss_mib": "memory of a rank, MiB",
    "4 KiB": "allreduce of 4 KiB, ms",
    "1 MiB": "allreduce of 1 MiB, ms",
    "idle_percent": "CPU of all idle ranks, %",
}


def main() -> None:
    """Start one job after the other, and write what their ranks have found."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", default="2,4,8,16,32,64")
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.rank:
        return measure()
    others, rows, plain = machine.Others(), [], plain_python_mib()
    for n in map(int, args.ranks.split(",")):
        rows.append(job(n))
        print(f"{n} ranks: {rows[-1]}", file=sys.stderr, flush=True)
    print("\n".join(shown(rows)), f"A Python with numpy alone: {plain:.1f} MiB", sep="\n\n")
    if args.out:
        about = machine.about() | {"others_percent": others.percent()}
        figures = {"section": "scale", "rows": rows, "plain_python_mib": plain, "machine": about}
        args.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
        draw(rows, args.out.with_suffix(".svg"))


def job(n: int) -> dict[str, float]:
    """The figures of a job of n ranks."""
    command = [sys.executable, "-m", "workbench.cli.main", "run", "-np", str(n), sys.executable, __file__, "--rank"]
    begun = time.time()
    done = subprocess.run(
        command, env=mpi.environment(1), stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_DEADLINE_S
    )
    if done.returncode:
        raise SystemExit(f"{n} ranks ended with exit code {done.returncode}:\n{done.stderr[-2000:]}")
    found: dict[str, float] = json.loads(done.stdout[done.stdout.index("{") :].splitlines()[0])
    ready = found.pop("ready")
    return {"ranks": n, "start_s": ready - begun, **found}


def measure() -> None:
    """On a rank; rank 0 prints a line of JSON."""
    import numpy as np

    import workbench as wb

    wb.init()
    ready = float(wb.allreduce(np.array([time.time()]), op=wb.Max, name="ready")[0])
    found: dict[str, float] = {"ready": ready}
    for title, nbytes in SIZES.items():
        found[title] = 1e3 * each_s(nbytes)
    held = wb.allgather(np.array([pss_mib()]), name="memory")
    wb.barrier()
    before = sum(os.times()[:2])
    time.sleep(_IDLE_S)
    spent = np.array([100 * (sum(os.times()[:2]) - before) / _IDLE_S])
    idle = wb.allreduce(spent, op=wb.Sum, name="idle")
    if wb.rank() == 0:
        found |= {"pss_mib": float(held.mean()), "pss_mib_most": float(held.max()), "idle_percent": float(idle[0])}
        print(json.dumps(found), flush=True)
    wb.shutdown()


def each_s(nbytes: int) -> float:
    """The median time of an allreduce, one after the other, of the slowest rank."""
    import numpy as np

    import workbench as wb

    array = np.ones(nbytes // 4, np.float32)
    once = lambda: wb.allreduce(array, name=f"{nbytes} bytes")  # noqa: E731
    for _ in range(3):
        once()
    begun = time.perf_counter()
    once()
    took = wb.allreduce(np.array([time.perf_counter() - begun]), op=wb.Max, name="once")
    rounds = int(min(300, max(5, _ALLREDUCE_S / took[0])))
    seconds = []
    for _ in range(rounds):
        begun = time.perf_counter()
        once()
        seconds.append(time.perf_counter() - begun)
    return float(wb.allreduce(np.array([statistics.median(seconds)]), op=wb.Max, name="median")[0])


def pss_mib() -> float:
    """This process's share of the memory that it uses."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def plain_python_mib() -> float:
    """The same of a Python that has imported numpy."""
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import numpy, scale; print(scale.pss_mib())"
    )
    return float(subprocess.check_output([sys.executable, "-c", script], env=mpi.environment(1)))


def exponent(rows: list[dict[str, float]], figure: str) -> float:
    """Of the ranks, between the last two rows."""
    (a, b) = rows[-2:]
    return math.log(b[figure] / a[figure]) / math.log(b["ranks"] / a["ranks"])


def shown(rows: list[dict[str, float]]) -> list[str]:
    """A table."""
    head = ["", *[f"{row['ranks']:.0f} ranks" for row in rows], "exponent"]
    lines = []
    for figure, title in FIGURES.items():
        known = len(rows) > 1 and min(row[figure] for row in rows[-2:]) > 0
        power = f"{exponent(rows, figure):.1f}" if known else ""
        lines.append([title, *[number(row[figure]) for row in rows], power])
    return table(head, lines)


def draw(rows: list[dict[str, float]], path: Path) -> None:
    """A panel for each figure, with both axes in powers; beside it the slopes of n and of its square."""
    from matplotlib.figure import Figure

    ranks = [row["ranks"] for row in rows]
    figure = Figure(figsize=(4 * len(FIGURES), 3.6), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(1, len(FIGURES)), FIGURES.items(), strict=True):
        values: list[Any] = [row[name] for row in rows]
        axes.plot(ranks, values, marker="o")
        for power, style in ((1, "--"), (2, ":")):
            line = [values[0] * (n / ranks[0]) ** power for n in ranks]
            axes.plot(ranks, line, style, color="gray", label=f"ranks$^{power}$" if power > 1 else "ranks")
        axes.set(title=title, xlabel="ranks", ylim=(min(values) / 2, max(values) * 2))
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(ranks, [f"{n:.0f}" for n in ranks])
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
    figure.savefig(path, format="svg")


if __name__ == "__main__":
    main()
