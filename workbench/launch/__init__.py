"""How a job is started: finding MPI, guarding the processes, and the ``workbench`` command.

Of our own modules only ``workbench.config`` and ``workbench.errors`` are imported here, so that
``workbench --help`` and the warden start without MPI, torch or CUDA.
"""
