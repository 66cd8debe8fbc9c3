"""Ten rounds of allreduce; one rank ends early, in the way that the first word says; the second word is the rank."""

import os
import signal
import sys
import threading
import time

import numpy as np

import workbench as hvd
from workbench import config

HOW, WHO = sys.argv[1], int(sys.argv[2])


def end() -> None:
    """This rank's end."""
    print("ends at", time.time(), flush=True)
    if HOW.startswith("raise"):
        raise ValueError("a mistake on purpose")
    if HOW == "sys.exit":
        sys.exit(0)
    if HOW == "os._exit":
        os._exit(1)
    if HOW.startswith("kill"):
        os.kill(os.getpid(), signal.SIGKILL)


if HOW == "raise before init" and config.launch().rank == WHO:
    end()
hvd.init()
for step in range(10):
    if hvd.rank() == WHO:
        if HOW == "kill amid a large transfer":
            threading.Timer(0.5, end).start()
        elif HOW == "fewer batches":
            if step == 3:
                end()
                break
        elif step == (0 if HOW == "raise before the first" else 3) and HOW != "raise after the last":
            end()
    if HOW == "kill amid a large transfer":
        while True:
            hvd.allreduce(np.ones(1 << 22))
    total = hvd.allreduce(np.full(3, hvd.rank() + step), name=f"step{step}", op=hvd.Sum)
    assert total.tolist() == [hvd.size() * (hvd.size() - 1) // 2 + hvd.size() * step] * 3
if HOW == "raise after the last" and hvd.rank() == WHO:
    end()
print("came to the end")
