"""Rank 0 calls init(), the others do something else: "initialise MPI", or "do nothing", not even that."""

import sys
import time

import workbench as hvd
from workbench import config
from workbench.errors import WorkbenchError

rank = config.launch().rank
if sys.argv[1] == "initialise MPI":
    from mpi4py import MPI

    assert MPI.COMM_WORLD.rank == rank

if rank == 0:
    started = time.monotonic()
    try:
        hvd.init()
    except WorkbenchError as error:
        print(f"{type(error).__name__} after {time.monotonic() - started:.1f} s: {error}", flush=True)
        assert not hvd.is_initialized()
else:
    time.sleep(8.0)
