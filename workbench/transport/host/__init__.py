"""Backends for arrays in host memory: threads, MPI, TCP."""
