"""Slurm: the hosts of the job around this process, and batch scripts."""
