"""Forks after init(); the child tries a collective, which must say what is wrong, and ends as the first word says."""

import os
import sys

import numpy as np

import workbench as hvd
from workbench.errors import WorkbenchError

hvd.init()
child = os.fork()
if child == 0:
    try:
        hvd.allreduce(np.ones(2), name="in the child")
    except WorkbenchError as error:
        print(f"child: {type(error).__name__}: {error}", flush=True)
    if sys.argv[1] == "os._exit":
        os._exit(7)
    sys.exit(7)
for step in range(20):
    assert hvd.allreduce(np.full(3, step), op=hvd.Sum).tolist() == [hvd.size() * step] * 3
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert hvd.allreduce(np.ones(3), op=hvd.Sum).tolist() == [hvd.size()] * 3
hvd.shutdown()
print("came to the end")
