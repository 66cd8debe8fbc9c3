"""The practical session's first script: does every rank start, and does each know its place?

Start it::

    mpiexec -n 1 python examples/test_horovod.py
    mpiexec -n 2 python examples/test_horovod.py
    torchrun --nproc-per-node 2 examples/test_horovod.py

Every rank prints one block: its framework, the devices it sees, and its numbers. ``MPI_rank`` counts over all machines,
``MPI_local_rank`` over those of this machine (``platform``). If every block says ``MPI_size = 1``, the launcher and the
MPI library of Python do not belong together, and each process believes to be alone.
"""

import platform
import sys

import torch

import workbench.torch as hvd


def main() -> None:
    """Print this rank's block, in one write, so that no other rank's lines come between."""
    hvd.init()
    gpus = [f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count())]
    sys.stdout.write(
        f"Framework: PyTorch {torch.__version__}\n"
        f"List of TORCH visible physical GPUs :  {gpus}\n"
        f"MPI_size = {hvd.size()}, MPI_rank = {hvd.rank()}, "
        f"MPI_local_size = {hvd.local_size()},  MPI_local_rank = {hvd.local_rank()} platform = {platform.node()}\n"
    )
    hvd.shutdown()


if __name__ == "__main__":
    main()
