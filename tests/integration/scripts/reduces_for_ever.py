"""Allreduces of 16 MiB without end, until somebody is killed amid one of them.

The words: whether the array lies in memory that all ranks reach ("common") or in the rank's own; who is killed: a rank,
"all" ranks, or "everything", the launcher too; after how many seconds.
"""

import os
import signal
import sys
import threading
import time

import numpy as np
import psutil
import torch

import workbench
import workbench.torch as hvd

WHERE, WHO, AFTER_S = sys.argv[1], sys.argv[2], float(sys.argv[3])
LENGTH = 4 << 20

hvd.init()
with open("/proc/self/maps") as maps:
    print(*{word for line in maps for word in line.split() if word.startswith("/dev/shm/")}, flush=True)
pids = hvd.allgather_object(os.getpid())
array = workbench.empty(LENGTH) if WHERE == "common" else np.empty(LENGTH, np.float32)
array[:] = hvd.rank()
tensor = torch.from_numpy(array)


def end() -> None:
    """Somebody's end."""
    print("ends at", time.time(), flush=True)
    victims = [pid for pid in pids if pid != os.getpid()] if WHO in ("all", "everything") else []
    if WHO == "everything":
        names = ("mpiexec", "mpiexec.hydra", "hydra_pmi_proxy")
        victims = [each.pid for each in psutil.Process().parents() if each.name() in names] + victims
    for pid in [*victims, os.getpid()]:
        os.kill(pid, signal.SIGKILL)


hvd.allreduce_(tensor, name="large")
if hvd.rank() == (int(WHO) if WHO.isdigit() else hvd.size() - 1):
    threading.Timer(AFTER_S, end).start()
while True:
    hvd.allreduce_(tensor, name="large")
