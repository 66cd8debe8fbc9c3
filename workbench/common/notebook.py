"""The IPython in which this process runs, if it does. Nothing is imported for that: who runs in one has loaded it."""

from __future__ import annotations

import contextlib
import sys
from typing import Any


def running_shell() -> Any:
    """The running IPython, or None.

    Example:
        >>> running_shell()
    """
    ipython = sys.modules.get("IPython")
    return ipython.get_ipython() if ipython is not None else None


def running_kernel() -> Any:
    """The kernel of a notebook or an engine, or None: in a script, and in IPython on a terminal.

    Example:
        >>> running_kernel()
    """
    return getattr(running_shell(), "kernel", None)


def allows_stdin(kernel: Any) -> bool:
    """Can its user be asked something? A frontend says so with each cell."""
    return bool(kernel.get_parent("shell").get("content", {}).get("allow_stdin"))


def apart_from_debugger() -> contextlib.AbstractContextManager[None]:
    """Python processes that are started within are not the debugger's of this notebook.

    When JupyterLab's debugger is on, each would wait for it, and JupyterLab does not take them.

    Example:
        >>> with apart_from_debugger():
        ...     pass
    """
    debugger = sys.modules.get("_pydev_bundle.pydev_monkey")
    return debugger.skip_subprocess_arg_patch() if debugger is not None else contextlib.nullcontext()
