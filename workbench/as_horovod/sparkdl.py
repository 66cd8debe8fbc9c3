"""``sparkdl``, where no such package is installed: Databricks' ``HorovodRunner``, whose runtime has dropped it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any, TypeVar

from workbench.as_horovod.runner import run
from workbench.errors import LaunchError

T = TypeVar("T")

_VERBOSITIES = ("all", "log_callback_only")


class HorovodRunner:
    """A function on ranks, under Databricks' names.

    Args:
        np: how many ranks. Below 0, ``-np`` processes of this machine. Above 0, tasks of Spark where a SparkContext is
            active; otherwise processes of this machine, and a line on stderr says so.
        driver_log_verbosity: accepted; what ranks print is always shown.

    Example:
        >>> HorovodRunner(np=-2).run(pow, base=2, exp=5)  # doctest: +SKIP
        32
    """

    def __init__(self, *, np: int, driver_log_verbosity: str = "log_callback_only") -> None:
        if not isinstance(np, int) or isinstance(np, bool) or np == 0:
            raise ValueError(f"HorovodRunner(np={np!r}): give a number of ranks, or below 0 for this machine's: -2.")
        if driver_log_verbosity not in _VERBOSITIES:
            raise ValueError(f"driver_log_verbosity={driver_log_verbosity!r}: one of {', '.join(_VERBOSITIES)}.")
        self.num_processor = np
        self.driver_log_verbosity = driver_log_verbosity

    def run(self, main: Callable[..., T], **kwargs: Any) -> T:
        """What ``main(**kwargs)`` returns on rank 0; it calls ``hvd.init()`` itself.

        Raises:
            LaunchError, RankFailedError: see :func:`workbench.run`.
        """
        if not callable(main):
            raise LaunchError(f"HorovodRunner.run({main!r}): give a function, without calling it: run(train, lr=0.1).")
        n = abs(self.num_processor)
        if self.num_processor > 0 and _has_spark():
            results: list[T] = import_module("horovod.spark").run(main, kwargs=kwargs, num_proc=n)
            return results[0]
        if self.num_processor > 0:
            sys.stderr.write(f"workbench: no SparkContext is active: HorovodRunner starts {n} processes here.\n")
        return run(main, kwargs=kwargs, np=n)[0]


def _has_spark() -> bool:
    return getattr(getattr(sys.modules.get("pyspark"), "SparkContext", None), "_active_spark_context", None) is not None
