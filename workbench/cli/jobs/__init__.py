"""One description of a job, and what each engine wants to be told of it: Kubernetes, Slurm, or a command line."""
