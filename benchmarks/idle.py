"""What the runtime itself costs: ``mpiexec -n 2 python benchmarks/idle.py workbench`` (or ``gloo``).

Idle: CPU time of a rank that has nothing to do, in percent of one core. At work: CPU time of the engine thread (and of
rank 0's coordinator) in a step with as many gradients as ResNet-50 has, 161, but of 8 numbers each: next to no bytes
move, and what is left is Python per tensor. ``caller`` is what the same step costs the script's own thread, beyond a
plain SGD step.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable

import peers
import torch
from mpi4py import MPI

import workbench.torch as hvd
from workbench.job.context import HOLDER

TENSORS, NUMBERS = 161, 8


def main() -> None:
    """Measure on all ranks; rank 0 prints one JSON line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", choices=["workbench", "gloo"])
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--steps", type=int, default=50)
    args = parser.parse_args()
    comm = MPI.COMM_WORLD.Dup()
    peers.pin(comm.rank)
    torch.set_num_threads(1)
    if args.library == "workbench":
        hvd.init()
    else:
        peers.gloo(comm)
    result: dict[str, object] = {"section": "idle", "library": args.library, "idle_percent": idle(comm, args.seconds)}
    if args.library == "workbench" and comm.size > 1:
        result["step_ms"] = step_ms(comm, args.steps)
    peers.finish(comm, result)


def idle(comm: MPI.Intracomm, seconds: float) -> list[float]:
    """CPU time per second of sleeping, in percent of one core, of every rank."""
    comm.Barrier()
    before = time.process_time()
    time.sleep(seconds)
    used = time.process_time() - before
    return [round(share, 3) for share in comm.allgather(used / seconds * 100)]


def step_ms(comm: MPI.Intracomm, steps: int) -> dict[str, list[float]]:
    """CPU milliseconds per step: of the engine and of the caller on each rank, of the coordinator on rank 0."""
    plain, ours = training(distributed=False), training(distributed=True)
    context = HOLDER.get()
    threads: dict[str, threading.Thread | None] = {"engine": context.engine, "coordinator": context.server}
    for _ in range(10):
        plain()
        ours()
    alone = cpu_seconds(steps, plain, {})["caller"]
    comm.Barrier()
    mine = cpu_seconds(steps, ours, {name: thread for name, thread in threads.items() if thread is not None})
    mine["caller"] -= alone
    everyone = comm.allgather({name: round(seconds / steps * 1e3, 3) for name, seconds in mine.items()})
    names = ("engine", "caller", "coordinator")
    return {name: [rank[name] for rank in everyone if name in rank] for name in names}


def training(distributed: bool) -> Callable[[], None]:
    """A step without a forward pass: gradients are given to each parameter in turn, and its hook runs."""
    params = [torch.nn.Parameter(torch.zeros(NUMBERS)) for _ in range(TENSORS)]
    gradients = [torch.ones(NUMBERS) for _ in params]
    optimizer: torch.optim.Optimizer = torch.optim.SGD(params, lr=0.1)
    if distributed:
        optimizer = hvd.DistributedOptimizer(optimizer)

    def step() -> None:
        optimizer.zero_grad()
        torch.autograd.backward(params, gradients)
        optimizer.step()

    return step


def cpu_seconds(steps: int, step: Callable[[], None], threads: dict[str, threading.Thread]) -> dict[str, float]:
    """CPU time of the caller and of other threads during so many steps."""
    clocks = {name: time.pthread_getcpuclockid(thread.ident or 0) for name, thread in threads.items()}
    clocks["caller"] = time.CLOCK_THREAD_CPUTIME_ID
    before = {name: time.clock_gettime(clock) for name, clock in clocks.items()}
    for _ in range(steps):
        step()
    return {name: time.clock_gettime(clock) - before[name] for name, clock in clocks.items()}


if __name__ == "__main__":
    main()
