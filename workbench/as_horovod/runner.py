"""``horovod.run``: :func:`workbench.runner.run`, with ``import horovod`` meaning the workbench in the ranks, too."""

import functools

from workbench.runner import run as _run

run = functools.partial(_run, as_horovod=True)

__all__ = ["run"]
