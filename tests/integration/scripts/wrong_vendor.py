"""Looks as if the other vendor's mpiexec had started it: Open MPI's variables with MPICH's library, or the reverse."""

import os

import mpi4py

import workbench as hvd

mpi4py.rc.initialize = False
from mpi4py import MPI  # noqa: E402 - the line above must come first

if "Open MPI" in MPI.Get_library_version():
    os.environ.update(PMI_RANK="0", PMI_SIZE="2")
else:
    os.environ.update(OMPI_COMM_WORLD_RANK="0", OMPI_COMM_WORLD_SIZE="2")
hvd.init()
print("came to the end")
