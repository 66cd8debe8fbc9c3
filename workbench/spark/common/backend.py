"""Where an estimator's ranks run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from workbench.spark import session
from workbench.spark.run import run as run_on_spark

Kwargs = Mapping[str, Any] | None
Env = Mapping[str, str] | None


class Backend:
    """Runs a function on ranks; derive from it to have them elsewhere."""

    def run(
        self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Kwargs = None, env: Env = None
    ) -> list[Any]:
        """What ``fn(*args, **kwargs)`` returns, by rank, with these environment variables."""
        raise NotImplementedError

    def num_processes(self) -> int:
        raise NotImplementedError


class SparkBackend(Backend):
    """In Spark's own tasks, by :func:`workbench.spark.run`.

    Args:
        num_proc: how many ranks; ``spark.default.parallelism`` by default.
        env: further environment variables of the ranks.
        kwargs: for :func:`workbench.spark.run`.
    """

    def __init__(self, num_proc: int | None = None, env: Env = None, **kwargs: Any) -> None:
        self._n = num_proc or session.context().defaultParallelism
        self._env, self._kwargs = dict(env or {}), kwargs

    def run(
        self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Kwargs = None, env: Env = None
    ) -> list[Any]:
        env = {**self._env, **(env or {})}
        return run_on_spark(fn, args, kwargs, num_proc=self._n, env=env, **self._kwargs)

    def num_processes(self) -> int:
        return self._n


class LocalBackend(Backend):
    """On the driver's machine, by :func:`workbench.run`; the data still goes by way of Spark and the store.

    Args:
        num_proc: how many ranks.
        env: further environment variables of the ranks.
        kwargs: for :func:`workbench.run`.
    """

    def __init__(self, num_proc: int = 1, env: Env = None, **kwargs: Any) -> None:
        self._n, self._env, self._kwargs = num_proc, dict(env or {}), kwargs

    def run(
        self, fn: Callable[..., Any], args: Sequence[Any] = (), kwargs: Kwargs = None, env: Env = None
    ) -> list[Any]:
        from workbench.launch.function import run

        return run(fn, args, kwargs, np=self._n, env={**self._env, **(env or {})}, **self._kwargs)

    def num_processes(self) -> int:
        return self._n
