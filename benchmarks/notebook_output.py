"""What it costs a training to be looked at: ms a step with output at the end, as it comes, and with the live panel.

::

    python benchmarks/notebook_output.py [RANKS]

A real kernel and real engines train a small CNN and print the loss of each step. The three ways take turns; each figure
is the median of rank 0's steps. Then: how long a line takes from ``print`` on a rank to the message for the frontend,
and eight ranks that print 1,000 lines each.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from jupyter_client.manager import start_new_kernel

ROUNDS, STEPS = 5, 60
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

    def close(self) -> None:
        """End it."""
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


def steps(kernel: Kernel, option: str) -> list[float]:
    """Milliseconds of each step on rank 0."""
    kernel.run(f"%%px {option}\ntimes = train({STEPS})")
    return [1e3 * each for each in kernel.value("c.view.pull('times', targets=0, block=True)")[10:]]


def cost(ranks: int) -> None:
    """Print the medians of the three ways, and their ratio to the first."""
    kernel = Kernel()
    kernel.run(f"from workbench import cluster\nc = cluster.up({ranks}, quiet=True)")
    kernel.run(SETUP)
    kernel.run("%%px\ntimes = train(20)")
    ways: dict[str, list[float]] = {"at the end": [], "as it comes": [], "with the panel": []}
    for _ in range(ROUNDS):
        ways["at the end"] += steps(kernel, "--no-stream")
        ways["as it comes"] += steps(kernel, "--stream")
        kernel.run("panel = cluster.watch()")
        ways["with the panel"] += steps(kernel, "--stream")
        kernel.run("panel.close()")
    base = statistics.median(ways["at the end"])
    for name, times in ways.items():
        print(
            f"{ranks} ranks, {name:15} {statistics.median(times):7.2f} ms a step, {statistics.median(times) / base:.3f}"
        )
    kernel.close()


def latency() -> None:
    """Print how long a line takes, and a thousand lines of eight ranks."""
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


if __name__ == "__main__":
    for ranks in [int(word) for word in sys.argv[1:]] or [2, 4]:
        cost(ranks)
    latency()
