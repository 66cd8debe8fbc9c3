"""Fewer bytes between ranks: gradients of low rank (``powersgd.py``), steps without communication (``periodic.py``)."""

from workbench.torch.low_communication.diloco import DiLoCo as DiLoCo
from workbench.torch.low_communication.local_sgd import LocalSGD as LocalSGD
