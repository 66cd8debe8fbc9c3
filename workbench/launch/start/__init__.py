"""Start the ranks of a job on this machine: options, hosts, GPUs, mpiexec, and the run to its end."""
