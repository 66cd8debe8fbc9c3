"""The processes above this one, as if a fork of a fork server were a child of the process that stands for it."""

from __future__ import annotations

from workbench import config

try:
    import psutil
except ImportError:  # a browser, which has no other processes
    psutil = None


def ancestors() -> list[psutil.Process]:
    """The nearest first.

    Raises:
        psutil.Error: one of them has ended meanwhile.

    Example:
        >>> import os
        >>> [each.pid for each in ancestors()][:1] == [os.getppid()]
        True
    """
    fork, stand_in = config.fork_of()
    mine = psutil.Process()
    found = [mine, *mine.parents()]
    if fork not in (pids := [each.pid for each in found]):
        return found[1:]
    below, above = found[: pids.index(fork) + 1], psutil.Process(stand_in)
    return [*below, above, *above.parents()][1:]
