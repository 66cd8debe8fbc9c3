"""``torch.distributed.init_process_group("workbench")``: torch's own parallel training over the workbench's ranks.

::

    import torch, torch.distributed as dist

    dist.init_process_group("workbench")            # in a cell, under workbench run, mpiexec, Slurm, torchrun, mp.spawn
    model = torch.nn.parallel.DistributedDataParallel(model)
    ...                                             # fully_shard, DTensor, pipelining, torch.distributed.checkpoint

A rank that does not come, ranks that disagree, and a circle of messages are told on every rank, with each rank's line.
"""

from workbench.torch.distributed.group import ProcessGroup as ProcessGroup
