"""A library that starts ranks, here and on other hosts, follows them, and leaves no process behind.

Of our own modules only ``config``, ``errors``, ``machine`` and ``common`` are imported here, so ``workbench --help``
and the watchdog start without MPI, torch or CUDA.
"""
