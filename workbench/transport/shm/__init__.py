"""Shared memory: the data plane of ranks on one machine."""
