"""Functions of ours for Spark's tasks.

Spark's Python workers start without our folder in ``sys.path`` where the package runs from a checkout. So what they get
is a function that Spark pickles by value, and that looks for the package where the driver has it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cloudpickle import dumps

from workbench.launch.hosts.facts import HOME


def shipped(module: str, name: str, *args: Any) -> Callable[..., Any]:
    """A function for a task: ``module.name(*args, *given)``.

    Args:
        module, name: where to find it there.
        args: its first arguments.

    Example:
        >>> shipped("operator", "add", 1)(2)
        3
    """
    home, content = str(HOME), dumps(args)

    def call(*given: Any) -> Any:
        import sys
        from importlib import import_module
        from pickle import loads

        if home not in sys.path:
            sys.path.append(home)
        return getattr(import_module(module), name)(*loads(content), *given)

    return call
