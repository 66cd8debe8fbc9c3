"""Scripts for PyTorch: one process, DistributedDataParallel, Accelerate."""
