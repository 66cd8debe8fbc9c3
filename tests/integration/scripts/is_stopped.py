"""Allreduces while all ranks are stopped twice, for longer than the peer timeout, and go on one after the other."""

import os
import subprocess
import sys

import numpy as np

import workbench as hvd

STOPPER = """
import os, signal, sys, time
ranks = list(map(int, sys.argv[1:]))
for order in (ranks, ranks[::-1]):
    for pid in ranks:
        os.kill(pid, signal.SIGSTOP)
    time.sleep(4)
    for pid in order:
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.1)
    time.sleep(1)
"""

hvd.init()
ranks = hvd.allgather(np.array([os.getpid()]))
stopper = subprocess.Popen([sys.executable, "-c", STOPPER, *map(str, ranks)]) if hvd.rank() == 0 else None
over = 0.0
while not over:
    over = hvd.allreduce(np.array([stopper is not None and stopper.poll() is not None], float), op=hvd.Sum)[0]
print("came to the end")
