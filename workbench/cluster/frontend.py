"""Who sits before a cell: somebody who sees its output as it comes and can be asked, or nobody, as with nbclient."""

from __future__ import annotations

import sys

from workbench import config
from workbench.common.notebook import allows_stdin, running_kernel


def somebody_answers() -> bool:
    """Is there a user who can be asked something?"""
    kernel = running_kernel()
    return sys.stdin.isatty() if kernel is None else allows_stdin(kernel)


def somebody_looks() -> bool:
    """Is the output shown while it comes? ``WORKBENCH_STREAM`` says so, else whether the frontend can be asked."""
    asked, kernel = config.stream(), running_kernel()
    if asked is not None or kernel is None:
        return asked is not False
    return allows_stdin(kernel)
