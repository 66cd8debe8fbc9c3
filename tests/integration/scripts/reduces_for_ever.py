"""Allreduce after allreduce, in memory that all ranks reach, or (first word: "ordinary") in memory of one's own."""

import os
import sys

import numpy as np
import torch

import workbench
import workbench.torch as hvd

hvd.init()
length = 4 << 20
array = np.zeros(length, np.float32) if "ordinary" in sys.argv else workbench.empty(length)
array[:] = hvd.rank()
tensor = torch.from_numpy(array)
hvd.allreduce_(tensor, name="large")
print("ready", os.getpid(), flush=True)
while True:
    hvd.allreduce_(tensor, name="large")
