"""Calls that a type checker must report, each at its line, and nothing else; see ``tests/test_distribution.py``."""

import numpy as np
import torch

import workbench
import workbench.torch as hvd
from workbench import cluster

workbench.allreduce(np.ones(3), opp=workbench.Sum)  # wrong: no such argument
workbench.broadcast(np.ones(3))  # wrong: whose?
workbench.allreduce(np.ones(3), op="sum")  # wrong: no ReduceOp
hvd.allreduce(torch.ones(3), prescale=2.0)  # wrong: no such argument
hvd.DistributedOptimizer(torch.optim.SGD([torch.ones(1)]), no_such_option=True)  # wrong: no such argument
hvd.allredcue(torch.ones(3))  # wrong: no such name
cluster.up("two")  # wrong: no number
workbench.import_module("os")  # wrong: not a name for users
