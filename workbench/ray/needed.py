"""Ray itself, which is an extra; inside this folder ``ray`` is always this one."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from workbench.errors import LaunchError

try:
    ray: Any = import_module("ray")
except ModuleNotFoundError as error:
    if error.name != "ray":
        raise
    raise ModuleNotFoundError(
        "workbench.ray needs Ray, which is not installed in this Python: pip install 'ray[train]', in the same version "
        "on the driver and on each node.",
        name="ray",
    ) from None


def connected() -> Any:
    """Ray, if this process is connected to a cluster.

    Raises:
        LaunchError: it is not.
    """
    if not ray.is_initialized():
        raise LaunchError('Ray is not initialized in this process. Call ray.init() first, or ray.init(address="auto").')
    return ray
