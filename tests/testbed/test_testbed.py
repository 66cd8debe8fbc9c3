"""The hosts that other tests use: each is a machine of its own, and nothing is left of them."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import hosts as hosts_module
import pytest
from hosts import Hosts
from namespaces import CannotMakeHosts

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
LOOK = "hostname; cat /proc/sys/kernel/random/boot_id; ls /dev/shm /run; ls /sys/class/net"


class Traces:
    """What there is of a test bed. Its namespaces are held open, so that no others get their numbers."""

    def __init__(self, folder: Path, until: contextlib.ExitStack) -> None:
        self._folder = folder
        opened = [os.fstat(until.enter_context(path.open()).fileno()) for path in sorted(folder.glob("*.*"))]
        self._namespaces = {(each.st_dev, each.st_ino) for each in opened}

    def look(self) -> list[str]:
        """Its mounts, processes and files."""
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        found = [line for line in mounts if str(self._folder) in line]
        for own in Path("/proc").glob("[0-9]*/ns/*"):
            with contextlib.suppress(OSError):
                if (own.stat().st_dev, own.stat().st_ino) in self._namespaces:
                    found.append(str(own))
        return [*found, *map(str, self._folder.parent.glob(self._folder.name))]


@pytest.fixture
def traces() -> Iterator[Callable[[Path], Traces]]:
    """Remembers a test bed, to look for it when it has gone."""
    with contextlib.ExitStack() as until:
        yield lambda folder: Traces(folder, until)


def on_command(*words: str) -> subprocess.CompletedProcess[str]:
    """The command line, with a test bed of its own."""
    mark = f"test{os.getpid()}"
    command = [sys.executable, str(HERE), "--mark", mark, *words]
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30.0)


@pytest.mark.thorough
def test_ssh_refuses_an_unknown_host_at_once(hosts: Hosts) -> None:
    """A name that is none, or a key that nobody knows, ends ssh with an error: it never waits at a prompt."""
    unknown = hosts.run(0, "ssh", "wb9", "true", timeout_s=20.0)
    unheard = hosts.run(0, "ssh", "-o", "UserKnownHostsFile=/dev/null", "wb2", "true", timeout_s=20.0)
    assert (unknown.returncode, unheard.returncode) == (255, 255)
    assert "Could not resolve hostname" in unknown.stderr
    assert "Host key verification failed" in unheard.stderr


def test_a_host_is_a_machine_of_its_own(hosts: Hosts) -> None:
    """Its name, boot id, shared memory and interfaces are its own, by ssh as well as directly."""
    assert hosts.run(0, "sh", "-c", "touch /dev/shm/mine /run/mine").returncode == 0
    seen = [hosts.run(i, "sh", "-c", LOOK).stdout for i in range(2)]
    boot_ids = {Path("/proc/sys/kernel/random/boot_id").read_text().strip(), *(text.split()[1] for text in seen)}
    assert [text.split()[0] for text in seen] == list(hosts.names)
    assert len(boot_ids) == 3
    assert ["mine" in text for text in seen] == [True, False]
    assert all(text.endswith("eth0\nlo\n") for text in seen)
    assert hosts.run(1, "ssh", "wb1", LOOK).stdout == seen[0]
    assert socket.gethostname() not in hosts.names
    assert not Path("/dev/shm/mine").exists()


@pytest.mark.thorough
def test_the_user_keeps_what_is_theirs(hosts: Hosts) -> None:
    """~/.ssh and the machine's own configuration are neither changed nor used."""
    home, conf = Path.home() / ".ssh", Path("/etc/ssh/ssh_config")
    before = (home.exists() and sorted(home.iterdir()), conf.read_bytes())
    assert hosts.run(0, "ssh", "wb2", "true").returncode == 0
    assert (home.exists() and sorted(home.iterdir()), conf.read_bytes()) == before


@pytest.mark.thorough
def test_a_cut_host_is_reached_again_when_it_is_healed(hosts: Hosts) -> None:
    """While the cable is out, nothing comes through, and the host itself goes on."""
    hosts.cut(1)
    lost = hosts.run(0, "ssh", "-o", "ConnectTimeout=1", "wb2", "true")
    alone = hosts.run(1, "ssh", "wb2", "hostname")
    hosts.heal(1)
    until = time.monotonic() + 20  # what has looked for it in vain looks again a little later
    while (again := hosts.run(0, "ssh", "wb2", "hostname")).returncode and time.monotonic() < until:
        pass
    assert "timed out" in lost.stderr or "No route to host" in lost.stderr
    assert (alone.stdout, again.stdout) == ("wb2\n", "wb2\n")


@pytest.mark.usefixtures("hosts")  # skips where there can be none
def test_nothing_is_left(tmp_path: Path, traces: Callable[[Path], Traces]) -> None:
    """Neither mounts nor files nor processes, not even one that ignores signals and has left its session."""
    pid = tmp_path / "pid"
    stubborn = f"exec >/dev/null 2>&1; trap '' TERM HUP INT; echo $$ >{pid}; while :; do sleep 1; done"
    with Hosts(2) as hosts:
        of_hosts = traces(hosts.folder)
        hosts.run(1, "setsid", "--fork", "sh", "-c", stubborn)
        until = time.monotonic() + 20.0
        while not (pid.exists() and pid.read_text()):
            assert time.monotonic() < until
            time.sleep(0.01)
        assert f"/proc/{pid.read_text().strip()}/ns/net" in of_hosts.look()
    assert of_hosts.look() == []


@pytest.mark.thorough
def test_nothing_is_left_of_a_killed_creator(hosts: Hosts, traces: Callable[[Path], Traces]) -> None:
    """Whoever makes hosts next removes those whose creator was killed, and no others."""
    script = "import hosts, time; one = hosts.Hosts(1); one.up(); print(one.folder, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", script], cwd=HERE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        process.kill()
    of_killed = traces(folder)
    assert of_killed.look()
    with Hosts(1):
        assert of_killed.look() == []
        assert hosts.run(0, "ssh", "wb2", "true").returncode == 0


@pytest.mark.thorough
@pytest.mark.usefixtures("hosts")  # skips where there can be none
def test_by_hand() -> None:
    """Every verb of the command line; hosts stay until they are taken down."""
    try:
        up = on_command("up", "2", "1gbit")
        assert (up.returncode, up.stderr) == (0, "")
        assert "already" in on_command("up").stderr
        assert "rate 1Gbit" in on_command("run", "wb1", "tc", "qdisc", "show", "dev", "eth0").stdout
        assert on_command("rate", "none").returncode == 0
        assert on_command("run", "wb1", "ssh", "wb2", "hostname").stdout == "wb2\n"
        assert on_command("cut", "wb2").returncode == 0
        assert on_command("run", "wb1", "ssh", "-o", "ConnectTimeout=1", "wb2", "true").returncode == 255
        assert on_command("heal", "wb2").returncode == 0
        assert on_command("run", "wb1", "sh", "-c", "exit 7").returncode == 7
        assert "no host wb3: there are wb1, wb2" in on_command("cut", "wb3").stderr
    finally:
        down = on_command("down")
    assert (down.returncode, down.stderr) == (0, "")
    assert "no test bed" in on_command("cut", "wb1").stderr


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts that cannot be made give one error, with the packages to install."""
    monkeypatch.setattr(hosts_module, "SYSTEM_PATH", "/no/such/folder")
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(CannotMakeHosts, match="packages iproute2, util-linux, openssh-server"):
        Hosts(2).up()


def test_root_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user is told so."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(CannotMakeHosts, match="need root"):
        Hosts(2).up()
