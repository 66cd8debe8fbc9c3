"""``workbench run -H`` and ``workbench.run(hosts=…)`` on two hosts, whose agents are started here, without ssh."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from elastic_jobs import HostsJob
from invented_hosts import ADDRESSES, LAUNCHER, invented
from running import environment
from thorough import once_more

import workbench
from workbench.cli import main as cli
from workbench.errors import LaunchError
from workbench.launch.hosts import rehearsal
from workbench.launch.hosts.agent_connections import Connections, Target
from workbench.launch.hosts.remote_shell import Ssh
from workbench.launch.ranks.process_tree import ProcessTree

pytestmark = [pytest.mark.parallel, pytest.mark.timeout(150)]


@pytest.fixture
def hosts() -> Iterator[None]:
    """They are a and b."""
    with invented():
        yield


def lines(text: str) -> list[str]:
    """What ranks have printed, with rank and host."""
    return sorted(re.findall(r"^\[(.*)\]<stdout>:(.*)$", text, re.MULTILINE))


@pytest.mark.usefixtures("hosts")
def test_a_function_on_hosts(capfd: pytest.CaptureFixture[str]) -> None:
    """Its results come back by rank, of which each is where it belongs; it listens between the hosts alone."""

    def total(x: int) -> tuple[int, float, list[tuple[str, int]]]:
        import numpy as np
        import psutil

        import workbench as hvd

        hvd.init()
        print("here")
        both = psutil.Process().net_connections("inet") + psutil.Process().parent().parent().net_connections("inet")
        heard = [tuple(each.laddr) for each in both if each.status == psutil.CONN_LISTEN]
        return hvd.rank(), float(hvd.allreduce(np.ones(2) * x, op=hvd.Sum)[0]), heard

    ports = {"WORKBENCH_PORTS": "40000-40100"}
    found = workbench.run(total, (5,), np=3, hosts="b:2,a:1", env=ports)
    assert [each[:2] for each in found] == [(rank, 15.0) for rank in range(3)]
    places = {place for *_, heard in found for place in heard}
    assert len(places) > 2
    assert {address for address, _ in places} <= set(ADDRESSES.values())
    assert all(40000 <= port <= 40100 for _, port in places)
    assert lines(capfd.readouterr().out) == [("0@b", "here"), ("1@b", "here"), ("2@a", "here")]


@pytest.mark.usefixtures("hosts")
def test_a_rank_that_fails_and_a_folder_for_each(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The exit code is that of the rank on the other host, with its last words; what each has written is in a file."""
    script = "echo $RANK; test $RANK != 3 || { sleep 1; echo no luck >&2; exit 7; }"
    assert cli.main(["run", "-H", "a:2,b:2", "--output-dir", str(tmp_path), "sh", "-c", script]) == 7
    said = capfd.readouterr()
    assert re.search(r"Rank 3 on b ended with exit code 7, which ends the job. Its last words:\nno luck", said.err)
    assert lines(said.out) == [(f"{rank}@{'aabb'[rank]}", str(rank)) for rank in range(4)]
    assert [(tmp_path / f"rank.{rank}/stdout").read_text() for rank in range(4)] == [f"{rank}\n" for rank in range(4)]
    assert (tmp_path / "rank.3/stderr").read_text() == "no luck\n"


@pytest.mark.usefixtures("hosts")
def test_hosts_that_a_script_finds(capfd: pytest.CaptureFixture[str]) -> None:
    """With fewer ranks than slots, the first hosts are filled. A program that is none of ours runs once on each."""
    words = ["--host-discovery-script", "printf 'b:1\na\n'", "--slots-per-host", "4", "-np", "2", "--max-np", "2"]
    assert cli.main(["run", *words, "sh", "-c", "echo $WORKBENCH_WORKER"]) == 0
    assert lines(capfd.readouterr().out) == [("0@b", "0"), ("1@a", "1")]


@pytest.mark.usefixtures("hosts")
def test_what_a_rehearsal_finds(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that there is not, and a range of one port: named before anything starts, with what to do."""
    assert cli.main(["run", "-H", "a:1,nowhere:1", "echo", "started"]) == 1
    said = capfd.readouterr()
    assert "nowhere: there is no host of this name" in said.err
    monkeypatch.setenv("WORKBENCH_PORTS", "40000-40000")
    assert cli.main(["run", "-H", "a:1,b:1", "echo", "started"]) == 1
    again = capfd.readouterr()
    assert "b: no port from 40000 to 40000 (WORKBENCH_PORTS) is free at 127.77.0.2" in again.err
    assert "Use a larger range: WORKBENCH_PORTS=" in again.err
    assert "started" not in said.out + again.out


@pytest.mark.usefixtures("hosts")
def test_the_doctor_tries_hosts(capfd: pytest.CaptureFixture[str]) -> None:
    """The rehearsal's result, and the interface and address of each host; one that cannot be used is named."""
    assert cli.main(["doctor", "--hosts", "a,b"]) == 0
    said = [line for line in capfd.readouterr().out.splitlines() if not line.startswith("!")]
    assert said[0].endswith("the rehearsal with 2 hosts")
    assert [line.split()[:4] for line in said[1:]] == [[f"{name}:", "by", "lo", at] for name, at in ADDRESSES.items()]
    assert cli.main(["doctor", "--hosts", "nowhere"]) == 1
    assert "nowhere: there is no host of this name" in capfd.readouterr().err


@pytest.mark.usefixtures("hosts")
def test_the_way_back_to_a_host_that_is_none_of_the_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """They connect to the address by which they are reached."""
    processes = ProcessTree(environment())
    connections = Connections([Target("b", 1, Ssh())], processes, os.getcwd())
    try:
        endpoints, _ = rehearsal.rehearse(connections, ["true"])
        monkeypatch.setattr(rehearsal, "_resolved", ADDRESSES.__getitem__)
        assert rehearsal.way_back(connections, endpoints, (0, 0)) == "127.0.0.1"
        monkeypatch.setattr(rehearsal.Port, "greet", lambda self: None)  # as behind a firewall
        with pytest.raises(
            LaunchError, match=r"b: it cannot connect to this machine, at 127.0.0.1 port \d+: no answer"
        ):
            rehearsal.way_back(connections, endpoints, (0, 0))
    finally:
        connections.close()
        processes.stop()


# --- the end ------------------------------------------------------------------------------------------


def with_words(fits: Callable[[list[str]], bool]) -> list[psutil.Process]:
    """The processes whose command does."""
    return [each for each in psutil.process_iter(["cmdline"]) if fits(each.info["cmdline"] or [""])]


def agents(folder: Path, host: str = "") -> list[psutil.Process]:
    """Those of all hosts, or of one, of the job whose temporary files are there."""
    found = []
    for each in with_words(lambda words: f'serve("{host}' in words[-1] and "python" in words[0]):
        with contextlib.suppress(psutil.Error):
            found += [each] if each.environ().get("TMPDIR") == str(folder) else []
    return found


class Running:
    """Four ranks that sleep on two hosts, and their launcher."""

    def __init__(self, folder: Path) -> None:
        self._err = folder / "err"
        self._sleep = ["sleep", f"600.{time.monotonic_ns()}"]
        words = ["env", "--default-signal=INT", *LAUNCHER, "-H", "a:2,b:2", *self._sleep]
        with self._err.open("wb") as err:
            self.process = subprocess.Popen(words, env=environment() | {"TMPDIR": str(folder)}, stderr=err)
        self.folder = folder
        self.wait_until(lambda: len(self.ranks()) == 4)

    def text(self) -> str:
        """What the launcher has said."""
        return self._err.read_text()

    def ranks(self) -> list[psutil.Process]:
        """Their processes."""
        return with_words(lambda words: words == self._sleep)

    def folders(self) -> list[Path]:
        """The job's, of launcher and agents."""
        return list(self.folder.glob("workbench-*"))

    def wait_until(self, done: Callable[[], bool]) -> None:
        """Until it is so."""
        until = time.monotonic() + 60
        while not done():
            assert time.monotonic() < until, self.text()
            time.sleep(0.1)


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Running]:
    """It is ended in the end."""
    started = Running(tmp_path)
    yield started
    started.process.kill()
    started.process.wait()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_launcher_is_ended(number: int, running: Running) -> None:
    """By Ctrl-C or kill -9: no rank, no agent and no folder is left."""
    assert (len(agents(running.folder)), len(running.folders())) == (2, 3)
    running.process.send_signal(number)
    running.wait_until(lambda: not running.ranks() and not agents(running.folder) and not running.folders())
    assert running.process.wait(60) == (128 + number if number != signal.SIGKILL else -number)


@pytest.mark.parametrize(
    ("victim", "said"), [("agent", "Host b was lost with ranks 2, 3"), once_more("rank", "was killed by SIGKILL")]
)
def test_a_host_is_lost(victim: str, said: str, running: Running) -> None:
    """Its agent or a rank is killed: the job ends, and says which host or rank it was."""
    (agents(running.folder, "b") if victim == "agent" else running.ranks())[0].kill()
    assert running.process.wait(60) == 137
    assert said in running.text()
    running.wait_until(lambda: not running.ranks() and not running.folders())


# --- elastic ------------------------------------------------------------------------------------------


def test_hosts_of_an_elastic_job(tmp_path: Path) -> None:
    """One joins, by the discovery script, its agent is killed, and it joins again; the one with rank 0 leaves."""
    found = tmp_path / "hosts"
    found.write_text("a:1\n")
    options = ["--min-np", "1", "--network-interface", "lo", "--blacklist-cooldown-range", "0", "0"]
    options += ["--host-discovery-script", f"cat {found}"]
    with contextlib.closing(HostsJob(tmp_path, options, environment(), LAUNCHER)) as job:
        job.wait_for("begins with 1 at 0")
        found.write_text("a:1\nb:1\n")
        job.wait_for("begins with 2 at (?!0)", times=2)
        told = len(job.text())
        agents(tmp_path, "b")[0].kill()
        job.wait_for("host b was lost", after=told)
        job.wait_for("begins with 2 at (?!0)", after=told, times=2)
        found.write_text("b:1\n")
        told = len(job.text())
        job.wait_for("1 worker will leave", after=told)
        job.wait_for("begins with 1 at (?!0)", after=told)
        text = job.ends_well(1)
        assert "[0]<stdout>:done" not in text
        assert {*re.findall("ranks here: (.*)", text)} == {"1"}
