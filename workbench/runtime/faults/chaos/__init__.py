"""Chaos: a rank fails at a named protocol state, by itself, where a plan says so. See :mod:`workbench.common.chaos`.

A rank does the fault to itself when it passes the state, so nothing depends on how fast somebody outside is. What
watches for the states is put around the engine's control client and its observer when the job begins; without chaos
nothing of this is imported.
"""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from typing import Any, Protocol

from workbench.common.chaos import COMMIT, CUT, DELAY, JOIN, KILL, PATIENCE, RESPONSE, STOP, Chaos, Fault, parse
from workbench.core.engine import Engine
from workbench.core.messages import Response
from workbench.core.pending import Entry
from workbench.core.protocols import Observer


class Record:
    """Which faults of a plan have happened, in this job: a file for each, in a folder that all ranks see.

    Args:
        folder: the folder; where it is not there, this process remembers its own ones alone.

    Example:
        >>> import tempfile
        >>> record = Record(tempfile.mkdtemp())
        >>> record.claim(0, epoch=1), record.claim(0, epoch=1), record.has(0), record.has(1), record.epoch(0)
        (True, False, True, False, 1)
    """

    def __init__(self, folder: str) -> None:
        self.shared = bool(folder) and Path(folder).is_dir()
        self._folder, self._own = Path(folder), dict[int, int]()

    def has(self, number: int) -> bool:
        """Has it happened? Nothing happens any more where the folder was removed."""
        if not self.shared:
            return number in self._own
        return (self._folder / str(number)).exists() or not self._folder.exists()

    def claim(self, number: int, epoch: int) -> bool:
        """It happens now, in this epoch; False if it has happened already."""
        if not self.shared:
            return self._own.setdefault(number, epoch) == epoch
        try:
            with (self._folder / str(number)).open("x") as file:
                file.write(str(epoch))
        except OSError:
            return False
        return True

    def epoch(self, number: int) -> int:
        """In which epoch it has happened."""
        if not self.shared:
            return self._own[number]
        with suppress(OSError):
            return int((self._folder / str(number)).read_text() or 0)
        return 0


class FaultInjector:
    """Carries out a plan, on one rank.

    Args:
        chaos: what was asked for.
        log: gets the line about a fault.

    Attributes:
        cut: ends this rank's connections.
        forget_steps: ends the watch over torch's optimizers; None as long as there is none.

    Example:
        >>> said = []
        >>> player = FaultInjector(parse("at=delay:in-commit:0:2"), said.append)
        >>> player.begins(rank=0, size=1)
        >>> player.passes("in commit"), said
        (None, [])
        >>> player.passes("in commit")
        >>> print(said[0].partition(" (")[0])
        chaos: fault 1 of 1: rank 0 is delayed for 0.25 s at 'in commit'
    """

    def __init__(self, chaos: Chaos, log: Callable[[str], None]) -> None:
        self._plan, self._record, self._log = chaos.plan(), Record(chaos.record), log
        self._rank = self._size = self._epoch = 0
        self._named = len(chaos.named)  # these come first, and wait for their states
        self._next, self._ended_epoch = 0, 0
        self._passed, self._responses, self._commits = 0, 0, 0
        self._seen = set[str]()
        self.forget_steps: Callable[[], None] | None = None
        self.cut: Callable[[], None] = lambda: None

    def begins(self, rank: int, size: int, epoch: int = 0) -> None:
        """This process has this rank now, in this epoch; 0: the job is not elastic, and has one."""
        self._rank, self._size, self._epoch = rank, size, epoch
        self._passed = self._responses = self._commits = 0

    def stop(self) -> None:
        self._plan = []
        if self.forget_steps:
            self.forget_steps()

    def passes(self, state: str) -> None:
        """The rank passes a state, and perhaps fails."""
        fault = self._due()
        self._seen.add(state)
        if fault is not None and fault.victim(self._size) == self._rank and self._may(fault):
            self._passed += state == fault.state
            self._responses += state == RESPONSE
            here = self._passed >= fault.nth if state == fault.state else self._instead(fault, state)
            if here and self._record.claim(self._next, self._epoch):
                self._do(fault, state)
        self._commits += state == COMMIT

    def _instead(self, fault: Fault, state: str) -> bool:
        """Is a fault to happen at this response, for its own state does not come in this training?"""
        never = self._next >= self._named and fault.state not in self._seen
        return never and state == RESPONSE and self._responses > PATIENCE

    def _due(self) -> Fault | None:
        """The next fault; the count begins anew where another rank has done one meanwhile."""
        while self._next < len(self._plan) and (self._record.has(self._next) or self._others(self._plan[self._next])):
            if self._record.shared and self._plan[self._next].ends_epoch:
                self._ended_epoch = self._record.epoch(self._next)
            self._next, self._passed, self._responses = self._next + 1, 0, 0
        return self._plan[self._next] if self._next < len(self._plan) else None

    def _others(self, fault: Fault) -> bool:
        """Where no rank knows of the others' faults, each does its own ones."""
        return not self._record.shared and fault.victim(self._size) != self._rank

    def _may(self, fault: Fault) -> bool:
        """May the rank fail without an end of the whole job? In a job that is not elastic everything may happen.

        1. Somebody has to be left: an epoch has at least two ranks, and does not lose a second one.
        2. Somebody has to have what was trained: rank 0 had it first, and all after the first commit.
        """
        if not (self._epoch and fault.ends_epoch):
            return True
        trained = self._rank or self._commits or fault.act == CUT
        return self._size > 1 and self._epoch > self._ended_epoch and bool(trained)

    def _do(self, fault: Fault, state: str) -> None:
        how = {
            KILL: "kills itself",
            STOP: f"is stopped for {fault.seconds:g} s",
            DELAY: f"is delayed for {fault.seconds:g} s",
            CUT: "loses its connections",
        }[fault.act]
        epoch = f" of epoch {self._epoch}" if self._epoch else ""
        nth = f"passing {fault.nth} since the last fault; this one alone: --chaos {fault.words}"
        if state != fault.state:
            nth = f"in place of {fault.state!r}, to which this training has not come"
        who = f"fault {self._next + 1} of {len(self._plan)}: rank {self._rank}{epoch}"
        self._log(f"chaos: {who} {how} at {state!r} ({nth})")
        match fault.act:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                _stop(fault.seconds)
            case "delay":
                time.sleep(fault.seconds)
            case _:
                self.cut()


def _stop(seconds: float) -> None:
    """This process stands still; another one, which does not, lets it go on."""
    again = f"sleep {seconds}; kill -CONT {os.getpid()}"
    waker = subprocess.Popen(["/bin/sh", "-c", again], start_new_session=True)
    os.kill(os.getpid(), signal.SIGSTOP)
    waker.wait(60)


def log(text: str) -> None:
    """A line that is out before the process may end."""
    sys.stderr.write(f"workbench: {text}\n")
    sys.stderr.flush()


@functools.cache
def player(text: str, pid: int) -> FaultInjector:
    """This process's: one for a plan, so that what has happened is known in the next epoch."""
    return FaultInjector(parse(text), log)


class Member(Protocol):
    """A bootstrap; in an elastic job it has the number of its epoch."""

    rank: int
    size: int


def begin(text: str, bootstrap: Member, sockets: Callable[[], Sequence[socket.socket]]) -> FaultInjector:
    """The ranks have found each other, and connect: ``in join``. What else they pass is told to the player.

    Args:
        text: :attr:`workbench.config.Settings.chaos`.
        bootstrap: this epoch's.
        sockets: the rank's connections, those that a cut ends.
    """
    mine = player(text, os.getpid())
    enter(mine, bootstrap, sockets)
    mine.passes(JOIN)
    return mine


def enter(mine: FaultInjector, bootstrap: Member, sockets: Callable[[], Sequence[socket.socket]]) -> None:
    """The player's rank, and its connections, are those of this epoch now."""
    mine.begins(bootstrap.rank, bootstrap.size, getattr(bootstrap, "epoch", 0))
    mine.cut = lambda: cut(sockets())


# --- where the states are ---------------------------------------------------------------------------------


class _Observer(Observer):
    """An engine's observer, and what it tells of the states; the other one is told everything, as before."""

    def __init__(self, inner: Observer, passes: Callable[[str], None]) -> None:
        self._inner, self._passes = inner, passes

    def announces(self, entries: Sequence[Entry]) -> None:
        self._inner.announces(entries)

    def sent(self) -> None:
        self._inner.sent()
        self._passes("announced")

    def cycle(self) -> None:
        self._inner.cycle()
        self._passes("response received")

    def batch(self, batch: list[Response], entries: Sequence[Entry | None]) -> AbstractContextManager[None]:
        return self._inner.batch(batch, entries)

    def activity(self, batch: list[Response], what: str) -> AbstractContextManager[None]:
        if not what.startswith(("INIT_", "MEMCPY_", "ALLOCATE_")):
            self._passes("amid reduction")
        return self._inner.activity(batch, what)


def watch(engine: Engine, mine: FaultInjector) -> Callable[[], None]:
    """Have an engine tell of the states that its rank passes; returns what ends that."""

    def passes(state: str) -> None:
        if mine.forget_steps is None:  # a script may import torch after init()
            mine.forget_steps = _watch_steps(mine.passes)
        mine.passes(state)

    before = engine.observer
    engine.observer = _Observer(before, passes)

    def end() -> None:
        engine.observer = before

    return end


def _watch_steps(passes: Callable[[str], None]) -> Callable[[], None] | None:
    """A torch optimizer is about to step. Not ours, which reduces first and has another one step then."""
    torch = sys.modules.get("torch.optim.optimizer")
    if torch is None:
        return None

    def before(optimizer: Any, *args: Any) -> None:
        if not type(optimizer).__module__.startswith("workbench."):
            passes("between reduction and step")

    hook = torch.register_optimizer_step_pre_hook(before)
    return hook.remove  # type: ignore[no-any-return]


def cut(sockets: Sequence[socket.socket]) -> None:
    """End connections, as a network does that fails: both ends read that it is over."""
    for each in sockets:
        with suppress(OSError):
            each.shutdown(socket.SHUT_RDWR)
