"""Continue after a failure: a *state* holds what is trained. It is committed regularly, and restored when needed.

::

    @elastic.run                    sync ──► train ──► done
    def train(state):                ▲         │
        while state.step < 1000:     │         ├── CollectiveError: restore the last commit ────────┐
            ...                      │         └── HostsUpdatedInterrupt, raised by a commit ───────┤
            state.commit()           └── on_reset ◄── shutdown() and init(): a new job begins ◄─────┘

The steps:

1. A :class:`~workbench.errors.CollectiveError` reaches the ranks that the failed collective concerns. They restore
   their last commit and leave the job to begin a new one. That ends the waits of all others: they get
   ``ShutDownError``, a CollectiveError too, and do the same. After the sync, all ranks have rank 0's state.
2. ``RankFailedError`` and ``PeerLostError`` (:data:`LASTING`) say that a rank is not to come again. In an elastic job
   (``workbench run --min-np``) the others begin the next *epoch* without it. A world of fixed size cannot begin anew,
   so whoever gets one restores the last commit and raises the error at once.
3. A rank that is to leave the job, for its host goes or it has got SIGTERM, does so at a commit: its process ends well
   (``elastic/leaving.py``).
4. Any other exception is the training function's own. It leaves ``run`` on the rank that raised it, and the state
   stays as it was in that moment. For the others this is case 2, when the exception ends the script or the notebook's
   cell. A rank that catches it outside of ``run`` and then never comes back is waited for. A ``WaitTimeoutError`` is
   such an exception: one rank's ``wait(timeout_s)`` ended, and no collective failed.

Framework-free. Source of names and semantics: Horovod 0.28 (``horovod/common/elastic.py``).
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Concatenate, ParamSpec, TypeVar, overload

from workbench import config
from workbench.common.alone import meet_the_others
from workbench.elastic.checkpoint import Checkpoints, read_checkpoint
from workbench.elastic.leaving import end_engine, leaving_on_sigterm
from workbench.elastic.state import HostsUpdatedInterrupt, HostUpdate, ObjectState, State
from workbench.errors import CollectiveError, PeerLostError, RankFailedError
from workbench.job import api
from workbench.job.context import HOLDER
from workbench.job.notifications import NOTIFICATIONS, Notifications
from workbench.job.process_sets import registered
from workbench.transport.elastic import Dismissed, ElasticBootstrap

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S", bound=State)

LASTING: tuple[type[CollectiveError], ...] = (RankFailedError, PeerLostError)
"""Errors after which the same ranks cannot form a job again. An elastic job needs not the same ranks."""

RESET_LIMIT = 10
"""After so many resets with no commit between them the same thing fails over and over."""


def restart() -> None:
    """Leave the job and begin a new one: with the same ranks, or in an elastic job the next epoch.

    Process sets are registered again, if all their ranks exist.
    """
    sets = registered()
    api.leave()
    api.init(process_sets=sets)


def lasting_errors() -> tuple[type[CollectiveError], ...]:
    """Errors after which this process's job cannot begin anew."""
    return () if config.launch().launcher == "elastic" else LASTING


def run_fn(
    func: Callable[Concatenate[S, P], T],
    reset: Callable[[], Any],
    reset_limit: int | None = RESET_LIMIT,
    lasting: tuple[type[CollectiveError], ...] | None = None,
    notifications: Notifications = NOTIFICATIONS,
    own_errors: Callable[[], AbstractContextManager[None]] | None = None,
) -> Callable[Concatenate[S, P], T]:
    """Wrap a training function in the loop of the module's figure.

    Args:
        func: takes the state first; called again after every reset, so it goes on from what the state says.
        reset: leaves the job and begins a new one.
        reset_limit: fail after this many resets without a commit between them; None for never.
        lasting: errors that are raised again after the restore, without a reset; by default :func:`lasting_errors`.
        notifications: where news of hosts come from.
        own_errors: a context manager that turns a framework's exceptions back into ours; by default the state's.

    Raises:
        CollectiveError: a lasting error, or the limit was reached; the state is the last commit.
    """

    @functools.wraps(func)
    def wrapper(state: S, *args: P.args, **kwargs: P.kwargs) -> T:
        meet_the_others(f"{getattr(func, '__name__', 'a function')}()")
        cause: Exception
        resets, commits, begun_anew = 0, -1, False
        final = lasting_errors() if lasting is None else lasting
        ours = own_errors or state._own_errors
        with notifications.listening(state), leaving_on_sigterm():
            while True:
                try:
                    if begun_anew:  # callbacks may call collectives, and so fail as training does
                        begun_anew = False
                        with ours():
                            state.on_reset()
                    state.sync()  # always: a newcomer does, and would wait for those that had left it out
                    _notify_synced()
                    with ours():
                        result = func(state, *args, **kwargs)
                        state._finish()
                        return result
                except CollectiveError as error:
                    state.restore()
                    if isinstance(error, final):
                        raise
                    cause = error
                except HostsUpdatedInterrupt as interrupt:
                    cause = interrupt
                resets = resets + 1 if commits == state._commits else 1
                commits = state._commits
                _log_reset(resets, reset_limit, cause)
                cause.__traceback__ = cause.__context__ = None  # with them goes what the failed step has left
                del cause
                state._forget_host_updates()
                try:
                    reset()
                except Dismissed:
                    state._on_leave()
                    end_engine()
                    raise
                begun_anew = True

    return wrapper  # type: ignore[return-value]  # may be given as state=, too, which Concatenate cannot say


def _notify_synced() -> None:
    """An elastic job's launcher makes rank 0 of a rank that has what was trained."""
    context = HOLDER.find()
    if context is not None and isinstance(context.bootstrap, ElasticBootstrap):
        context.bootstrap.synced()


def _log_reset(resets: int, limit: int | None, cause: Exception) -> None:
    """Why there is a reset; or that there is none any more."""
    reason = f"{type(cause).__name__}: {cause}"
    if limit is not None and resets > limit:
        raise CollectiveError(
            f"Training failed again after {limit} resets without a commit between them. Find what fails each time, "
            f"commit more often, or raise reset_limit. The last failure: {reason}"
        ) from cause
    logging.getLogger("workbench").warning("elastic: reset %d since the last commit, after %s", resets, reason)


@overload
def run(func: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]: ...
@overload
def run(
    *, reset_limit: int | None = ..., exact: bool = ..., shards: int | None = ..., seed: int = ...
) -> Callable[[Callable[Concatenate[S, P], T]], Callable[Concatenate[S, P], T]]: ...
def run(
    func: Any = None,
    *,
    reset_limit: int | None = RESET_LIMIT,
    exact: bool = False,
    shards: int | None = None,
    seed: int = 0,
) -> Any:
    """Make a training function elastic; see the module. ``@run`` and ``@run(reset_limit=3)`` both work.

    Call no collective before the decorated function: a rank that joins later starts with that function.

    Args:
        func: takes a :class:`State` first.
        reset_limit: see :func:`run_fn`.
        exact: the weights' bits do not depend on the number of ranks or on failures. PyTorch only; the
            training function goes through ``state.shards()`` in each step. See :mod:`workbench.torch.elastic.exact`.
        shards: in exact mode, how many logical shards the ranks share; by default the job's most ranks (``--max-np``),
            or else as many as there are ranks. Further ranks have no shard, and only help with the sum.
        seed: in exact mode, of all random numbers that are drawn in a shard.

    Raises:
        ValueError: the decorated function, of a state that has no exact mode, or an optimizer that has no fixed order.

    Example:
        >>> failures = [CollectiveError("a rank has left the job")]
        >>> @run
        ... def train(state):
        ...     while state.step < 3:
        ...         state.step += 1
        ...         if state.step == 2 and failures:
        ...             raise failures.pop()
        ...         state.commit()
        ...     return state.step
        >>> api.init()
        >>> train(ObjectState(lambda obj: obj, api.rank, step=0))
        3
        >>> api.shutdown()
    """
    if func is None:
        return functools.partial(run, reset_limit=reset_limit, exact=exact, shards=shards, seed=seed)
    if exact:
        return _run_exactly(func, reset_limit, shards, seed)
    return run_fn(func, restart, reset_limit)


def framework_run(own_errors: Callable[[], AbstractContextManager[None]], reset: Callable[[], Any] = restart) -> Any:
    """A framework's own :func:`run`.

    Args:
        own_errors, reset: see :func:`run_fn`.
    """

    def run(func: Callable[..., Any] | None = None, *, reset_limit: int | None = RESET_LIMIT) -> Any:
        """Make a training function elastic; see :func:`workbench.elastic.run`.

        Args:
            func: takes a state first.
            reset_limit: see :func:`workbench.elastic.run_fn`.
        """
        if func is None:
            return functools.partial(run, reset_limit=reset_limit)
        return run_fn(func, reset, reset_limit, own_errors=own_errors)

    return run


def _run_exactly(
    func: Callable[Concatenate[S, P], T], reset_limit: int | None, shards: int | None, seed: int
) -> Callable[Concatenate[S, P], T]:
    @functools.wraps(func)
    def train(state: S, *args: P.args, **kwargs: P.kwargs) -> T:
        result = func(state, *args, **kwargs)
        state._settle()
        return result

    elastic: Callable[Concatenate[S, P], T] = run_fn(train, restart, reset_limit)  # type: ignore[arg-type]  # as below

    @functools.wraps(func)
    def wrapper(state: S, *args: P.args, **kwargs: P.kwargs) -> T:
        state._begin_exact(shards, seed)
        return elastic(state, *args, **kwargs)

    return wrapper  # type: ignore[return-value]  # as run_fn's


__all__ = [
    "LASTING",
    "RESET_LIMIT",
    "Checkpoints",
    "HostUpdate",
    "HostsUpdatedInterrupt",
    "ObjectState",
    "State",
    "framework_run",
    "read_checkpoint",
    "restart",
    "run",
    "run_fn",
]


def __dir__() -> list[str]:
    return sorted(__all__)
