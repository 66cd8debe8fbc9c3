"""The launcher and an agent of this machine: who says nothing is found, and who was only away is not."""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from workbench.common.messages import Message
from workbench.launch.hosts.agent_connections import GONE, Connections, Target
from workbench.launch.hosts.remote_shell import LocalShell, Ssh
from workbench.launch.ranks.process_tree import ProcessTree

SILENCE_S = 3.0


class Launcher:
    """One with an agent, whose one rank sleeps."""

    def __init__(self, folder: Path, watch: bool = True) -> None:
        self.processes = ProcessTree(os.environ)
        self.connections = Connections([Target("here", 1, LocalShell())], self.processes, os.getcwd())
        answers, failures = self.connections.ask({"here": Message("", {})}, "here", 20.0)
        assert not failures
        self.agent = psutil.Process(answers["here"].fields["pid"])
        self.folder = folder / "job"
        self.tell("start", "starting", self._order())
        self.rank = self.receive("started", 40.0).fields["pid"]
        if watch:
            self.connections.watch(SILENCE_S)

    def _order(self) -> dict[str, object]:
        return {
            **{"tag": f"{os.getpid()}-{time.monotonic_ns()}", "folder": str(self.folder), "silence_s": SILENCE_S},
            **{"size": 1, "hosts": 1, "slots": 1, "host": 0, "ranks": [0], "elastic": False, "starter": "gloo"},
            **{"env": dict(os.environ), "threads": True, "gpus": "", "slurm": {}, "files": []},
            "command": [sys.executable, "-c", "import time; time.sleep(600)"],
        }

    def tell(self, kind: str, answer: str, fields: dict[str, object]) -> None:
        """Ask, and get an answer."""
        answers, failures = self.connections.ask({"here": Message(kind, fields)}, answer, 20.0)
        assert "here" in answers, failures

    def receive(self, kind: str, limit_s: float) -> Message:
        """The next message of a kind."""
        until = time.monotonic() + limit_s
        while time.monotonic() < until:
            for _, message in self.connections.receive(0.05):
                if message.kind == kind:
                    return message
        raise AssertionError(f"no {kind} within {limit_s:g} s")


@pytest.fixture
def watches() -> bool:
    """Does the launcher say that it lives, and look whether its agents do?"""
    return True


@pytest.fixture
def launcher(tmp_path: Path, watches: bool) -> Iterator[Launcher]:
    """It is closed in the end."""
    made = Launcher(tmp_path, watches)
    yield made
    made.connections.close()
    made.processes.stop()


def gone(pid: int, limit_s: float = 40.0) -> bool:
    """Has a process ended by now?"""
    until = time.monotonic() + limit_s
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def test_an_agent_that_is_stopped_is_lost_and_its_ranks_are_ended(launcher: Launcher) -> None:
    """Its pipes are open still, so the silence alone tells; it is killed, and its watchdog ends the rank."""
    launcher.agent.suspend()
    message = launcher.receive(GONE, 40.0)
    assert f"its agent (process {launcher.agent.pid}) has said nothing for 3 s" in message.fields["what"]
    assert "SIGSTOP" in message.fields["cure"]
    assert launcher.connections.there() == set()
    launcher.connections.close()
    assert gone(launcher.agent.pid)
    assert gone(launcher.rank)


def test_a_launcher_that_was_away_accuses_nobody(launcher: Launcher) -> None:
    """While nobody reads what it prints the agents go on, and it first takes what they have said meanwhile."""
    time.sleep(1.4 * SILENCE_S)
    until = time.monotonic() + 1.4 * SILENCE_S
    while time.monotonic() < until:
        assert [message.kind for _, message in launcher.connections.receive(0.05) if message.kind == GONE] == []
    assert not gone(launcher.rank, limit_s=0.0)


def test_an_agent_that_was_away_goes_on(launcher: Launcher) -> None:
    """It was stopped for longer than its launcher may be silent; what was said meanwhile waits in the pipe."""
    launcher.connections.watch(60.0)
    launcher.agent.suspend()
    time.sleep(1.4 * SILENCE_S)
    launcher.connections.send("here", Message("still here", {}))
    launcher.agent.resume()
    launcher.connections.watch(SILENCE_S)
    launcher.receive("still here", 40.0)
    until = time.monotonic() + 1.4 * SILENCE_S
    while time.monotonic() < until:
        list(launcher.connections.receive(0.05))
    assert not gone(launcher.rank, limit_s=0.0)


def test_a_rank_that_is_stopped_is_reported(launcher: Launcher) -> None:
    """By its agent, which sees the process: once that it does not run and why, and once that it goes on."""
    rank = psutil.Process(launcher.rank)
    rank.suspend()
    assert launcher.receive("stopped", 40.0).fields == {
        "rank": 0,
        "why": f"its process {rank.pid} is stopped (Ctrl-Z, SIGSTOP); kill -CONT {rank.pid} lets it go on",
    }
    rank.resume()
    assert launcher.receive("stopped", 40.0).fields == {"rank": 0, "why": ""}


@pytest.mark.parametrize("watches", [False])
def test_a_launcher_that_is_silent_is_left(launcher: Launcher) -> None:
    """Its pipe is open, as when a cable is out: the agent ends its rank, and itself."""
    assert gone(launcher.agent.pid)
    assert gone(launcher.rank)


def test_ssh_never_asks() -> None:
    """A missing key or an unknown host is an error, in a job and in the trial that an error proposes."""
    words = Ssh(port=2222, identity="key").command("a", "true")
    assert words[words.index("BatchMode=yes") - 1] == "-o"
    assert words[-3:] == ["--", "a", "true"]
    assert {("-i", "key"), ("-p", "2222")} <= set(itertools.pairwise(words))
    trial = Ssh().trial("a")
    assert trial[trial.index("BatchMode=yes") - 1] == "-o"
