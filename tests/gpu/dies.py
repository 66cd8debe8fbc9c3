"""Allreduces without end, until the last rank is killed amid them; the others print the error that ends theirs.

A program that each rank runs: ``python tests/gpu/dies.py [--device cpu]``.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time

import torch

import workbench.torch as hvd
from workbench.errors import CollectiveError

LENGTH, AFTER_S = 4 << 20, 0.5


def main() -> None:
    """Reduce until it ends."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    hvd.init()
    device = torch.device(args.device)
    if args.device == "cuda":
        device = torch.device("cuda", hvd.local_rank() % torch.cuda.device_count())
        torch.cuda.set_device(device)
    x = torch.ones(LENGTH, device=device)
    hvd.allreduce_(x, name="large")
    if hvd.rank() == hvd.size() - 1:
        threading.Timer(AFTER_S, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    begun = time.monotonic()
    try:
        while True:
            for _ in range(8):  # queued one behind the other, as in training
                hvd.allreduce_(x, name="large")
            if x.device.type == "cuda":
                torch.cuda.current_stream().synchronize()
    except CollectiveError as error:
        print(type(error).__name__, f"{time.monotonic() - begun:.1f}", error, flush=True)
        raise SystemExit(3) from None


if __name__ == "__main__":
    main()
