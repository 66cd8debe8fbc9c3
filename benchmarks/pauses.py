"""An allreduce on several hosts after a pause, as each training step has one, beside many in a row.

On two hosts, or on a test bed of two (as root)::

    python tests/testbed up 2 1gbit
    python tests/testbed run wb1 workbench run -H wb1:2,wb2:2 python benchmarks/pauses.py

Milliseconds of the slowest rank, median and quartiles: into the tensor, and into a new one. *Floor* is what the link
needs for the bytes that have to cross it.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

import torch

import workbench.torch as hvd


def main() -> None:
    """Measure on all ranks; rank 0 prints."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=64 << 20)
    parser.add_argument("--gbit", type=float, default=1.0, help="what the link carries in a second, for the floor")
    parser.add_argument("--pauses", type=float, nargs="+", default=[0, 0.2, 1, 3], help="in seconds")
    parser.add_argument("--turns", type=int, default=9)
    given = parser.parse_args()
    hvd.init()
    tensor = torch.ones(given.bytes // 4)
    if hvd.rank() == 0:
        print(f"floor {given.bytes * 8 / given.gbit / 1e6:.0f} ms")
    for pause in given.pauses:
        for name, reduce in (("in place", hvd.allreduce_), ("new tensor", hvd.allreduce)):
            found = [_once(reduce, tensor, pause) for _ in range(given.turns + 2)][2:]
            low, middle, high = statistics.quantiles(found, n=4)
            if hvd.rank() == 0:
                print(f"after {pause:3g} s, {name:10}: {middle:5.0f} ms ({low:.0f} to {high:.0f})", flush=True)


def _once(reduce: object, tensor: torch.Tensor, pause: float) -> float:
    """The slowest rank's milliseconds; what came out is looked at."""
    tensor.fill_(hvd.rank() + 1.0)
    time.sleep(pause)
    hvd.barrier()
    start = time.perf_counter()
    result = reduce(tensor, op=hvd.Sum, name="x")  # type: ignore[operator]
    took = time.perf_counter() - start
    if not (result == sum(range(1, hvd.size() + 1))).all():
        raise ArithmeticError(f"rank {hvd.rank()}: {result}")
    return float(hvd.allreduce(torch.tensor([took]), op=hvd.Max, name="took")[0]) * 1e3


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
