"""What it costs a training to be looked at: ms a step with output at the end, as it comes, and with the live panel.

::

    python benchmarks/notebook_output.py [--ranks 2 4] [--rounds 8] [--out results/notebook_output.json]

A real kernel and real engines train a small CNN and print the loss of each step. The three ways take turns; each figure
is the median of rank 0's steps, and the CPU time of all processes (ranks, hub, kernel) for a step, which other load
changes less. Then: how long a line takes from ``print`` on a rank to the message for the frontend, eight
ranks that print 1,000 lines each, and the kernel's CPU time for an update of the panel, of idle engines.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from jupyter_client.manager import start_new_kernel
from machine import about, load

STEPS = 150
SETUP = """%%px
import time, torch, workbench.torch as hvd
hvd.init()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Conv2d(1, 16, 3), torch.nn.ReLU(), torch.nn.Conv2d(16, 32, 3), torch.nn.ReLU(),
                            torch.nn.Flatten(), torch.nn.Linear(32 * 24 * 24, 10))
named = list(model.named_parameters())
optimizer = hvd.DistributedOptimizer(torch.optim.SGD(model.parameters(), 0.01), named_parameters=named)
x, y = torch.randn(32, 1, 28, 28), torch.randint(0, 10, (32,))
def train(steps):
    times = []
    for step in range(steps):
        begun = time.perf_counter()
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        print('step', step, 'loss', float(loss))
        times.append(time.perf_counter() - begun)
    return times
"""


class Kernel:
    """Runs cells as JupyterLab does."""

    def __init__(self) -> None:
        self.manager, self.client = start_new_kernel(kernel_name="python3")

    def run(self, code: str, got: Callable[[dict[str, Any]], None] = lambda message: None) -> None:
        """Run one, and wait for it."""
        reply = self.client.execute_interactive(code, timeout=300, output_hook=got)
        assert reply["content"]["status"] == "ok", reply["content"]

    def value(self, code: str) -> Any:
        """What an expression in the notebook is, a plain one."""
        reply = self.client.execute("", user_expressions={"value": code}, reply=True, timeout=60)
        return eval(reply["content"]["user_expressions"]["value"]["data"]["text/plain"])

    def cpu_s(self) -> float:
        """Of it and all that it has started."""
        own = psutil.Process(self.manager.provisioner.pid)
        times = [each.cpu_times() for each in (own, *own.children(recursive=True))]
        return float(sum(each.user + each.system for each in times))

    def close(self) -> None:
        """End it."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def steps(kernel: Kernel, option: str) -> tuple[list[float], float]:
    """Milliseconds of each step on rank 0, and of CPU time of all processes for a step."""
    begun = kernel.cpu_s()
    kernel.run(f"%%px {option}\ntimes = train({STEPS})")
    cpu = 1e3 * (kernel.cpu_s() - begun) / STEPS
    return [1e3 * each for each in kernel.value("c.view.pull('times', targets=0, block=True)")[10:]], cpu


def cost(ranks: int, rounds: int) -> list[dict[str, Any]]:
    """The medians of the three ways, and their ratios to the first."""
    kernel = Kernel()
    kernel.run(f"from workbench import cluster\nc = cluster.up({ranks}, quiet=True)")
    kernel.run(SETUP)
    kernel.run("%%px\ntimes = train(20)")
    ways: dict[str, list[tuple[list[float], float]]] = {"at the end": [], "as it comes": [], "with the panel": []}
    for _ in range(rounds):
        ways["at the end"].append(steps(kernel, "--no-stream"))
        ways["as it comes"].append(steps(kernel, "--stream"))
        kernel.run("panel = cluster.watch()")
        ways["with the panel"].append(steps(kernel, "--stream"))
        kernel.run("panel.close()")
    kernel.close()
    rows, base = list[dict[str, Any]](), (1.0, 1.0)
    for name, runs in ways.items():
        ms, cpu = statistics.median(each for times, _ in runs for each in times), statistics.median(c for _, c in runs)
        base = base if rows else (ms, cpu)
        row = {
            "ranks": ranks,
            "output": name,
            "ms": ms,
            "ratio": ms / base[0],
            "cpu_ms": cpu,
            "cpu_ratio": cpu / base[1],
        }
        rows.append(row)
        both = f"{ms:7.2f} ms a step, {row['ratio']:.3f}; {cpu:7.2f} ms CPU, {row['cpu_ratio']:.3f}"
        print(f"{ranks} ranks, {name:15} {both}")
    return rows


def idle(ranks: int, seconds: float = 10.0) -> dict[str, float]:
    """Milliseconds of the kernel's CPU time for an update of the panel, and for a second without it."""
    kernel = Kernel()
    kernel.run(f"from workbench import cluster\nc = cluster.up({ranks}, quiet=True)")
    own = psutil.Process(kernel.manager.provisioner.pid)

    def used() -> float:
        times = own.cpu_times()
        begun = times.user + times.system
        time.sleep(seconds)
        times = own.cpu_times()
        return 1e3 * (times.user + times.system - begun)

    without = used() / seconds
    kernel.run("panel = cluster.watch()")
    time.sleep(2)
    beats, took = kernel.value("panel.beat"), used()
    updates = kernel.value("panel.beat") - beats
    kernel.close()
    each = (took - without * seconds) / updates
    print(f"{ranks} idle engines: {each:.2f} ms of the kernel's CPU an update, {updates / seconds:.1f} a second")
    return {"ranks": ranks, "ms_an_update": each, "updates_a_second": updates / seconds, "ms_a_second_without": without}


def latency() -> dict[str, float]:
    """How long a line takes, and a thousand lines of eight ranks."""
    kernel = Kernel()
    kernel.run("from workbench import cluster\nc = cluster.up(8, quiet=True)")
    kernel.run("%px import time")
    delays = []

    def got(message: dict[str, Any]) -> None:
        text = message["content"].get("data", {}).get("text/plain", "")
        if message["msg_type"].endswith("display_data") and "at" in text:
            delays.append(time.time() - float(text.split()[-1]))

    for _ in range(20):
        count = len(delays)
        kernel.run("%%rank 0\nprint('at', time.time())\ntime.sleep(0.5)", got)
        del delays[count + 1 :]
    print(
        f"a line: median {1e3 * statistics.median(delays):.0f} ms, slowest of {len(delays)} {1e3 * max(delays):.0f} ms"
    )
    times = []
    for _ in range(5):
        begun = time.perf_counter()
        kernel.run("%%px\nfor i in range(1000): print('line', i, 'of a rank', time.time())")
        times.append(time.perf_counter() - begun)
    print(f"8 ranks x 1,000 lines: median {statistics.median(times):.2f} s")
    kernel.close()
    return {
        "line_ms": 1e3 * statistics.median(delays),
        "slowest_line_ms": 1e3 * max(delays),
        "lines": len(delays),
        "thousand_lines_s": statistics.median(times),
    }


def main() -> None:
    """Print a table, and write it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--idle", type=int, nargs="+", default=[16])
    parser.add_argument("--out", type=Path, help="a JSON file, such as results/notebook_output.json")
    given = parser.parse_args()
    found: dict[str, Any] = {"machine": about(), "load_before": load()}
    found["cost"] = [row for ranks in given.ranks for row in cost(ranks, given.rounds)]
    found["latency"] = latency()
    found["panel"] = [idle(ranks) for ranks in given.idle]
    found["load_after"] = load()  # with our own ranks
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
