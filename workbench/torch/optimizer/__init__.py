"""DistributedOptimizer for torch; a gradient's way from hook to ``.grad`` is in ``gradient_hooks.py``."""

from workbench.torch.optimizer.distributed import DistributedOptimizer as DistributedOptimizer
