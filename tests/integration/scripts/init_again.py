"""Rank 0 calls init() again and again until rank 1 comes, which is late."""

import time

import numpy as np

import workbench as hvd
from workbench import config
from workbench.errors import DeadlineError

if config.launch().rank == 1:
    time.sleep(4.0)
while not hvd.is_initialized():
    try:
        hvd.init()
    except DeadlineError as error:
        print("again:", " ".join(str(error).split()), flush=True)
assert hvd.allreduce(np.ones(2), op=hvd.Sum).tolist() == [2.0, 2.0]
hvd.shutdown()
print("came to the end")
