"""The ``workbench`` command: start the ranks of a job, examine a machine, grade notebooks.

Of our own modules only ``config``, ``errors``, ``machine`` and ``common`` are imported here, so ``workbench --help``
and the watchdog start without MPI, torch or CUDA.
"""
