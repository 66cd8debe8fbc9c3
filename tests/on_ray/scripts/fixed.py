"""A driver: everything that a RayExecutor can do, and what comes of its ranks' failures. It prints one line of JSON."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from typing import Any

import numpy as np
import psutil
import ray

from workbench.errors import WorkbenchError
from workbench.ray import RayExecutor, ray_logger

STEPS, ROWS, LR = 20, 32, 0.1


def train(seed: int, steps: int = STEPS) -> dict[str, Any]:
    """Linear regression by gradient descent, each rank with its part of the rows."""
    import workbench as hvd

    began = time.monotonic()
    hvd.init()
    rng = np.random.default_rng(seed)
    x, y, weights = rng.normal(size=(ROWS, 5)), rng.normal(size=ROWS), np.zeros(5)
    x, y = x[hvd.rank() :: hvd.size()], y[hvd.rank() :: hvd.size()]
    first_s = 0.0
    for _ in range(steps):
        gradient = 2 * x.T @ (x @ weights - y) / len(x)
        weights -= LR * hvd.allreduce(gradient, name="gradient")
        first_s = first_s or time.monotonic() - began
    ray_logger.log({"rank": hvd.rank()})
    return {"weights": weights.tolist(), "first_s": first_s}


def who() -> dict[str, Any]:
    """What a rank knows of itself, and where its process listens."""
    import workbench as hvd

    said = {name: int(os.environ[f"HOROVOD_{name}"]) for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")}
    said |= {name: int(os.environ[f"HOROVOD_{name}"]) for name in ("CROSS_RANK", "CROSS_SIZE")}
    numbers = {"RANK": hvd.rank(), "SIZE": hvd.size(), "LOCAL_RANK": hvd.local_rank(), "LOCAL_SIZE": hvd.local_size()}
    numbers |= {"CROSS_RANK": hvd.cross_rank(), "CROSS_SIZE": hvd.cross_size()}
    listens = [each for each in psutil.Process().net_connections("inet") if each.status == psutil.CONN_LISTEN]
    return {
        "said": said,
        "numbers": numbers,
        "host": socket.gethostname(),
        "listens": sorted({(each.laddr.ip, each.laddr.port) for each in listens}),
        "board": int(os.environ["WORKBENCH_RENDEZVOUS_PORT"]),
        "address": os.environ["WORKBENCH_HOST_ADDRESS"],
        "mark": os.environ.get("MARK", ""),
        "pid": os.getpid(),
    }


class Counter:
    """The object that each rank keeps between calls."""

    def __init__(self, start: int, step: int = 1) -> None:
        self.value, self.step = start, step

    def count(self) -> int:
        """One more."""
        self.value += self.step
        return self.value


def raise_on(rank: int) -> None:
    """A rank raises, while the others wait for it."""
    import workbench as hvd

    if hvd.rank() == rank:
        raise ValueError(f"there is no data on {rank}")
    hvd.allreduce(np.ones(3), name="never")


def die_on(rank: int) -> None:
    """A rank is killed amid many allreduces."""
    import workbench as hvd

    for step in range(10_000):
        if hvd.rank() == rank and step == 200:
            os.kill(os.getpid(), signal.SIGKILL)
        hvd.allreduce(np.ones(100_000), name="mean")


def failure(call: Any) -> dict[str, Any]:
    """What a call raises, and when."""
    began = time.monotonic()
    try:
        call()
    except (WorkbenchError, TypeError, ValueError) as error:
        seconds, cause = time.monotonic() - began, type(error.__cause__).__name__
        return {"kind": type(error).__name__, "text": str(error), "cause": cause, "seconds": seconds}
    return {"kind": "", "text": "", "cause": "", "seconds": 0.0}


def main() -> None:
    """Run it all."""
    found: dict[str, Any] = {}
    executor = RayExecutor(RayExecutor.create_settings(timeout_s=60), num_hosts=2, num_workers_per_host=2)
    found["early"] = failure(lambda: executor.run(train, (0,)))
    found["no ray"] = failure(executor.start)
    ray.init(address="auto")
    began = time.monotonic()
    executor.start(Counter, [10], {"step": 2}, extra_env_vars={"MARK": 7})
    found["start_s"] = time.monotonic() - began
    heard: list[Any] = []
    found["trained"] = executor.run(train, (1,), callbacks=[heard.append])
    found["heard"] = sorted(each["rank"] for each in heard)
    found["again"] = executor.run(train, kwargs={"seed": 2})
    found["who"] = executor.run(who)
    found["counted"] = [executor.execute(lambda counter: counter.count()) for _ in range(2)]
    found["single"] = executor.execute_single(lambda counter: counter.count())
    found["references"] = ray.get(executor.run_remote(lambda a, b: a * b, (6,), {"b": 7}))
    lock = threading.Lock()
    found["unpicklable"] = failure(lambda: executor.run(lambda: lock.locked()))
    found["raised"] = failure(lambda: executor.run(raise_on, (1,)))
    found["after it"] = executor.run(train, (1,))
    found["killed"] = failure(lambda: executor.run(die_on, (2,)))
    found["lost"] = failure(lambda: executor.run(train, (1,)))
    began = time.monotonic()
    executor.shutdown()
    executor.shutdown()
    found["shutdown_s"] = time.monotonic() - began
    executor.start()
    found["anew"] = executor.run(train, (1,))
    found["pids"] = [each["pid"] for each in executor.run(who)]
    executor.shutdown()
    found["free"] = free_cpus(4.0)
    print(json.dumps(found))


def free_cpus(awaited: float) -> float:
    """How many CPUs Ray has to give, once it has got them back."""
    until = time.monotonic() + 20.0
    while (free := float(ray.available_resources().get("CPU", 0.0))) < awaited and time.monotonic() < until:
        time.sleep(0.1)
    return free


if __name__ == "__main__":
    main()
