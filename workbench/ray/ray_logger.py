"""What ranks tell the driver while they run: :func:`log` in a rank, and callbacks on the driver.

A rank connects for each call, shows that it belongs to the job, and waits until the callbacks have been called.
"""

from __future__ import annotations

import contextlib
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pickle import loads
from typing import Any

from cloudpickle import dumps

from workbench import config
from workbench.errors import LaunchError
from workbench.executors.executor import Invitation, connected
from workbench.executors.registry import ExecutorRegistry
from workbench.ray.needed import ray

_LIMIT_S = 10.0


def log(info_dict: Any) -> None:
    """Give something to the callbacks of ``run()``; a warning if it was called without any.

    Args:
        info_dict: picklable, a dictionary as a rule.

    Raises:
        LaunchError: the driver is not reached.
    """
    if (where := config.log_server()) is None:
        warnings.warn("ray_logger.log(): run() was called without callbacks, so the message is lost.", stacklevel=2)
        return
    address, port, secret = where
    channel = connected(Invitation(address, port, secret), time.monotonic() + _LIMIT_S)
    try:
        if not channel.send("tell", dumps(info_dict)) or channel.receive() is None:
            raise LaunchError(f"ray_logger.log(): the driver at {address} port {port} has gone.")
    finally:
        channel.close()


@contextlib.contextmanager
def calling(callbacks: Sequence[Callable[[Any], Any]]) -> Iterator[dict[str, str]]:
    """Within the block the callbacks are called with what ranks log.

    Args:
        callbacks: each gets it; one at a time, on a thread of their own.

    Yields:
        Environment variables that ranks need for it.

    Raises:
        Exception: the first that a callback raised, at the end of the block.
    """
    if not callbacks:
        yield {}
        return
    lock, errors = threading.Lock(), list[Exception]()

    def on_message(data: bytes) -> None:  # whoever sent it has shown the secret, and it came signed
        with lock:
            try:
                info = loads(data)
                for callback in callbacks:
                    callback(info)
            except Exception as error:  # noqa: BLE001 - the caller's own; it is raised there
                errors.append(error)

    with ExecutorRegistry(str(ray.util.get_node_ip_address()), config.ports(), on_message) as board:
        found = board.invitation
        yield config.log_server_variables(found.address, found.port, found.secret)
    if errors:
        raise errors[0]
