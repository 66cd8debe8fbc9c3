"""Elastic training without a framework and without other ranks: the loop, and news of hosts."""

from __future__ import annotations

import logging
from typing import Any
from unittest import mock

import pytest

from workbench import elastic
from workbench.core.handle import Handle
from workbench.elastic import HostsUpdatedInterrupt, HostUpdate, State, run_fn
from workbench.errors import (
    CollectiveError,
    MismatchError,
    PeerLostError,
    RankFailedError,
    ShutDownError,
    WaitTimeoutError,
)
from workbench.job.notifications import Notifications

FAILURES = (CollectiveError, MismatchError, ShutDownError)


class Log(State):
    """A state that writes down what is done to it."""

    def __init__(self, *errors: BaseException | None) -> None:
        super().__init__(lambda obj: obj, lambda: 0)
        self.did: list[str] = []
        self.errors = list(errors)

    def save(self) -> None:
        self.did.append("save")

    def restore(self) -> None:
        self.did.append("restore")

    def sync(self) -> None:
        self.did.append("sync")

    def reset(self) -> None:
        self.did.append("fit")

    def train(self) -> str:
        """One call of the training function: raise the next error, or finish."""
        self.did.append("train")
        error = self.errors.pop(0) if self.errors else None
        if error is not None:
            raise error
        return "done"


def loop(state: Log, **options: Any) -> str:
    """Run the loop of elastic training over ``state``."""
    return run_fn(lambda state: state.train(), lambda: state.did.append("reset"), **options)(state)


# --- the loop -----------------------------------------------------------------------------------------


def test_nothing_happens() -> None:
    """Without an error: one sync, one call, its arguments and its result."""
    state = Log()
    wrapped = run_fn(lambda state, *args, **kwargs: (state, args, kwargs), lambda: None)
    assert wrapped(state, 1, 2, x=3) == (state, (1, 2), {"x": 3})
    assert state.did == ["sync"]


@pytest.mark.parametrize(
    "error",
    [*(kind("it failed") for kind in FAILURES), HostsUpdatedInterrupt(True), HostsUpdatedInterrupt(False)],
    ids=repr,
)
def test_what_happened_to_the_job_resets_it(error: Exception) -> None:
    """A failed collective: restore, reset, fit to the new job, sync, and call again. Other hosts: without a restore.

    All are synced then, too, for a newcomer waits for those that stayed.
    """
    state = Log(error)
    assert loop(state) == "done"
    assert state.did == ["sync", "train", *["restore"] * isinstance(error, FAILURES), "reset", "fit", "sync", "train"]


def test_a_failed_sync_restores_and_resets() -> None:
    """A collective that fails in the sync is no different."""
    state = Log()
    with mock.patch.object(state, "sync", side_effect=[CollectiveError("it failed"), None]):
        assert loop(state) == "done"
    assert state.did == ["restore", "reset", "fit", "train"]


@pytest.mark.parametrize("kind", [RankFailedError, PeerLostError])
def test_a_rank_that_is_gone_ends_it(kind: type[CollectiveError]) -> None:
    """A rank that cannot come again: restore and raise. Where ranks are replaced, reset."""
    state = Log(kind("rank 3"))
    with pytest.raises(kind, match="rank 3"):
        loop(state)
    assert state.did == ["sync", "train", "restore"]
    state = Log(kind("rank 3"))
    assert loop(state, lasting=()) == "done"
    assert state.did == ["sync", "train", "restore", "reset", "fit", "sync", "train"]


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), SystemExit(3)])
def test_other_exceptions_are_the_caller_s(error: BaseException) -> None:
    """What is no CollectiveError goes through, and the state is left as it was."""
    state = Log(error)
    with pytest.raises(type(error)):
        loop(state)
    assert state.did == ["sync", "train"]


def test_a_wait_that_timed_out_on_one_rank_resets_nothing() -> None:
    """``wait(timeout_s)`` has ended on this rank only, and the collective goes on: no reason for a new job."""

    class Impatient(Log):
        def train(self) -> str:
            self.did.append("train")
            return str(Handle("allreduce.slow").wait(timeout_s=0))

    state = Impatient()
    with pytest.raises(WaitTimeoutError, match=r"allreduce\.slow"):
        loop(state)
    assert state.did == ["sync", "train"]


@pytest.mark.parametrize("limit", [0, 3])
def test_the_limit_counts_resets_without_a_commit(limit: int) -> None:
    """After the limit, of 0 at once, the last error is told, and chained; the state is the last commit."""
    state = Log(*[CollectiveError(f"failure {i}") for i in range(9)])
    words = rf"(?s)after {limit} resets without a commit.*reset_limit.*failure {limit}"
    with pytest.raises(CollectiveError, match=words) as caught:
        loop(state, reset_limit=limit)
    assert str(caught.value.__cause__) == f"failure {limit}"
    assert state.did.count("reset") == limit
    assert state.did[-1] == "restore"


def test_a_commit_starts_the_count_anew() -> None:
    """Training that gets on may fail any number of times; and with None, so may any."""

    def train(state: Log) -> str:
        state.commit()
        return state.train()

    state = Log(*[CollectiveError("it failed")] * 30)
    assert run_fn(train, lambda: None, reset_limit=1)(state) == "done"
    assert loop(Log(*[CollectiveError("it failed")] * 30), reset_limit=None) == "done"


def test_each_reset_is_logged_with_its_reason(caplog: pytest.LogCaptureFixture) -> None:
    """Whoever reads the log sees why the training went back."""
    with caplog.at_level(logging.WARNING, "workbench"):
        loop(Log(MismatchError("shapes differ"), HostsUpdatedInterrupt(True)))
    assert [record.getMessage() for record in caplog.records] == [
        "elastic: reset 1 since the last commit, after MismatchError: shapes differ",
        "elastic: reset 2 since the last commit, after HostsUpdatedInterrupt: Ranks leave this job.",
    ]


def test_run_as_decorator_with_and_without_arguments() -> None:
    """@run and @run(reset_limit=…) keep name and docstring, and both reset by restart()."""

    @elastic.run
    def one(state: Log) -> str:
        """A docstring."""
        return state.train()

    @elastic.run(reset_limit=0)
    def two(state: Log) -> str:
        return state.train()

    assert (one.__name__, one.__doc__, two.__name__) == ("one", "A docstring.", "two")
    with mock.patch.object(elastic, "api") as api:
        assert one(Log(CollectiveError("it failed"))) == "done"
        assert [call[0] for call in api.method_calls] == ["leave", "init"]
        with pytest.raises(CollectiveError, match="after 0 resets"):
            two(Log(CollectiveError("it failed")))


# --- news of hosts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("updates", "skip"),
    [
        ([HostUpdate.REMOVED], True),
        ([HostUpdate.ADDED], False),
        ([HostUpdate.REMOVED, HostUpdate.ADDED], False),
        ([HostUpdate.ADDED, HostUpdate.REMOVED], False),
        ([HostUpdate.REMOVED, HostUpdate.REMOVED], True),
        ([3], False),
    ],
)
def test_a_commit_raises_once(updates: list[int], skip: bool) -> None:
    """All news up to a commit are one interrupt, raised after the save; the next commit knows them."""
    state = Log()
    for timestamp, update in enumerate(updates, 1):
        state.on_hosts_updated(timestamp, update)
    with pytest.raises(HostsUpdatedInterrupt) as caught:
        state.commit()
    assert caught.value.skip_sync is skip
    state.commit()
    assert state.did == ["save", "save"]
    assert state._commits == 2


def test_old_news_are_no_news() -> None:
    """What is not later than the last message is known; a reset forgets what came before it, not after."""
    state = Log()
    state.on_hosts_updated(5, HostUpdate.ADDED)
    with pytest.raises(HostsUpdatedInterrupt):
        state.check_host_updates()
    state.on_hosts_updated(5, HostUpdate.ADDED)
    state.on_hosts_updated(4, HostUpdate.ADDED)
    state.check_host_updates()
    state.on_hosts_updated(6, HostUpdate.ADDED)
    state._forget_host_updates()
    state.on_reset()
    state.check_host_updates()
    state._forget_host_updates()
    state.on_hosts_updated(7, HostUpdate.ADDED)  # while the new epoch began
    state.on_reset()
    with pytest.raises(HostsUpdatedInterrupt):
        state.check_host_updates()


def test_rank_0_decides() -> None:
    """A rank raises when rank 0 knows, whether it knows itself or not; and only once."""
    rank0, rank1 = Log(), Log()
    rank1._bcast_object = lambda mine: sent[0]
    sent: list[Any] = []

    def send(obj: Any) -> Any:
        sent[:] = [obj]
        return obj

    rank0._bcast_object = send
    rank1.on_hosts_updated(1, HostUpdate.ADDED)
    rank0.check_host_updates()
    rank1.check_host_updates()
    rank0.on_hosts_updated(1, HostUpdate.ADDED)
    for state in (rank0, rank1):
        with pytest.raises(HostsUpdatedInterrupt):
            state.check_host_updates()
    for state in (rank0, rank1):
        state.check_host_updates()


def test_notifications_reach_running_states_only() -> None:
    """States hear news while their training function runs, also when it ends by an exception."""
    notifications, heard = Notifications(), []

    class Listening(Log):
        def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
            heard.append((self, timestamp))

    one, two = Listening(ValueError("mine")), Listening()

    def train(state: Listening) -> str:
        notifications.hosts_updated(1.0, HostUpdate.ADDED)
        return state.train()

    with pytest.raises(ValueError, match="mine"):
        run_fn(train, lambda: None, notifications=notifications)(one)
    run_fn(train, lambda: None, notifications=notifications)(two)
    notifications.hosts_updated(2.0, HostUpdate.ADDED)
    assert heard == [(one, 1.0), (two, 1.0)]


def test_reset_callbacks_run_in_order_after_the_fit() -> None:
    """Callbacks see the new job: they run after the state was fitted to it, before the sync."""
    state = Log(CollectiveError("it failed"))
    state.register_reset_callbacks([lambda: state.did.append("a"), lambda: state.did.append("b")])
    state.register_reset_callbacks([lambda: state.did.append("c")])
    loop(state)
    assert state.did == ["sync", "train", "restore", "reset", "fit", "a", "b", "c", "sync", "train"]
