"""``workbench run -H`` and ``workbench.run(hosts=…)`` on two hosts."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hosts import SYSTEM_PATH, Hosts
from running import environment
from test_launchers import RIGHT, SCRIPT
from test_run_in_slurm import WORKBENCH, called, folders, lines
from thorough import once_more

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(120)]

RUN = [WORKBENCH, "run", "-H", "wb1:2,wb2:2"]
CALLED = "INPUT ! -i lo -p tcp ! --dport 22 --syn -j"


@pytest.mark.parametrize(("family", "way"), [("-6", []), ("", ["--mpi"]), once_more("", [])], ids=str)
def test_ranks_on_two_hosts(family: str, way: list[str], hosts: Hosts) -> None:
    """They find each other, in IPv6 too, know who shares a host, and their sums are right."""
    _keep(hosts, family)
    run = [WORKBENCH, "run", "-H", f"wb1{family}:2,wb2{family}:2", *way, "--verbose"]
    done = called(hosts, *run, sys.executable, "-c", SCRIPT)
    said = re.sub(r"(?m)^(\[\d+@wb\d)-6\]", r"\1]", done.stdout)
    assert (done.returncode, lines(said)) == (0, RIGHT), done.stdout + done.stderr
    address = "fd00:77::1" if family else "10.77.0.1"
    assert re.search(rf"the rehearsal with 2 hosts took \d\.\d s\n.*wb1\S*: 2 ranks, by eth0 {address}", done.stderr)


FILES = """
import resource, sys, workbench
workbench.init()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
sys.stdout.write(f"{soft >= min(hard, 1 << 16)}\\n")
workbench.shutdown()
"""


@pytest.mark.thorough
def test_strangers_find_it_hard_to_use_up_the_open_files_of_mpis_ranks(hosts: Hosts) -> None:
    """UCX listens to the end and keeps whoever connects: so each rank may open what its hard limit allows."""
    words = ["sh", "-c", 'ulimit -Sn 300; exec "$0" -c "$1"', sys.executable, FILES]
    done = called(hosts, *RUN, "--mpi", *words)
    assert [line.partition(":")[2] for line in done.stdout.splitlines()] == ["True"] * 4, done.stdout + done.stderr


def _keep(hosts: Hosts, family: str) -> None:
    """The hosts lose their addresses of the other family."""
    for i in (0, 1):
        other = "-4" if family else "-6"
        assert hosts.run(i, "ip", other, "addr", "flush", "dev", "eth0").returncode == 0


# --- what a rehearsal finds -----------------------------------------------------------------------------


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-H", "wb1:1,wb2:1", "-p", "2"], "wb2: no sshd listens there. Start it"),
        (["-H", "wb1:1,wb2:1,10.77.0.2:1"], "10.77.0.2: it is the same machine as wb2"),
        (["-H", "wb1:1,wb2:1", "--network-interface", "eth7"], "no single interface among eth7"),
        (["-H", "wb1:1,wb2:1", "-i", "/dev/null", "-p", "22"], ""),
        (["-H", "wb1:1,wb2:1", "-i", "/nonexist"], "The key /nonexist does not exist or cannot be read"),
    ],
)
def test_hosts_that_cannot_be_used(words: list[str], said: str, hosts: Hosts) -> None:
    """One message names the host and what to do, and nothing is left running."""
    done = called(hosts, WORKBENCH, "run", *words, "true")
    assert (done.returncode, said in done.stderr) == (0 if not said else 1, True), done.stderr


@pytest.mark.thorough
def test_a_host_whose_python_starts_slowly(hosts: Hosts, tmp_path: Path) -> None:
    """It is waited for, visibly, to the start's deadline: on a cold file system Python takes long."""
    (tmp_path / "slow.pth").write_text("import time; time.sleep(7)\n")
    at_start = next(Path(sysconfig.get_path("purelib")).glob("*.pth"))
    assert hosts.run(1, "mount", "--bind", str(tmp_path / "slow.pth"), str(at_start)).returncode == 0
    done = called(hosts, *RUN, "sh", "-c", "echo $RANK $(hostname)")
    assert (done.returncode, lines(done.stdout)) == (0, ["0 wb1", "1 wb1", "2 wb2", "3 wb2"]), done.stderr
    assert re.search(r"waiting for hosts since \d+ s, for \d+ s more: wb2: it is starting Python", done.stderr)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("OUTPUT -p tcp ! --sport 22 -m length --length 1400:65535 -j DROP", "small packets arrive, and large ones do"),
        (f"{CALLED} REJECT --reject-with icmp-port-unreachable", "connection refused"),
        (f"{CALLED} REJECT --reject-with icmp-host-prohibited", "no route to host"),
        (f"{CALLED} REJECT --reject-with tcp-reset", "connection refused"),
        (f"{CALLED} DROP", "no answer within"),
    ],
)
def test_what_a_network_keeps_back(rule: str, said: str, hosts: Hosts) -> None:
    """A way that loses large packets, and a firewall that drops or rejects, between the hosts' own ports."""
    if not shutil.which("iptables", path=SYSTEM_PATH):
        pytest.skip("a firewall needs the package iptables")
    assert hosts.run(1, "iptables", "-A", *rule.split()).returncode == 0
    done = called(hosts, *RUN, "true")
    assert (done.returncode, said in done.stderr) == (1, True), done.stderr
    assert ("the MTU of the whole route" in done.stderr) == ("large" in said), done.stderr


def test_keys_that_are_not_accepted(hosts: Hosts) -> None:
    """A user's key that is refused, a host's that has changed or is unknown: no prompt, but an error with its cure."""
    key, known = hosts.folder / "ssh" / "id.pub", hosts.folder / "ssh" / "known_hosts"
    mine = key.read_text()
    key.write_text("")
    done = called(hosts, *RUN, "true")
    assert (done.returncode, "wb2: it accepts no key of this user" in done.stderr) == (1, True), done.stderr
    assert "ssh-copy-id wb2" in done.stderr
    key.write_text(mine)
    keys = [line.split(" ", 1) for line in known.read_text().splitlines()]
    known.write_text(f"{keys[0][0]} {keys[0][1]}\n{keys[1][0]} {keys[0][1]}\n")
    done = called(hosts, *RUN, "true")
    assert (done.returncode, "wb2: its host key has changed" in done.stderr) == (1, True), done.stderr
    assert "ssh-keygen -R wb2" in done.stderr
    hosts.run(0, "sh", "-c", "umount /etc/ssh/ssh_config")
    done = called(hosts, *RUN, "true")
    assert done.returncode == 1, done.stdout
    assert re.search(r"wb2: its host key is not known here. Connect once by hand and compare: ssh wb2", done.stderr)


@pytest.mark.thorough
def test_a_host_that_is_not_as_the_first(hosts: Hosts, tmp_path: Path) -> None:
    """Another version of our code, no such folder, a full disk: found before anything starts."""
    other = tmp_path / "turn.py"
    other.write_text("# another version")
    code = Path(__file__).parents[2] / "workbench" / "common" / "turn.py"
    assert hosts.run(1, "mount", "--bind", str(other), str(code)).returncode == 0
    done = called(hosts, *RUN, "true")
    assert (done.returncode, "wb2: the workbench's code (by its hash) is" in done.stderr) == (1, True), done.stderr
    assert hosts.run(1, "umount", str(code)).returncode == 0
    assert hosts.run(1, "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "/dev/shm").returncode == 0
    done = called(hosts, *RUN, "true")
    assert (done.returncode, "wb2: /dev/shm is full: 1 MiB are free" in done.stderr) == (1, True), done.stderr
    (tmp_path / "here").mkdir()
    assert hosts.run(1, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)).returncode == 0
    done = called(hosts, *RUN, "true", folder=tmp_path / "here")
    assert (done.returncode, f"wb2: it has no folder {tmp_path}/here" in done.stderr) == (1, True), done.stderr


@pytest.mark.thorough
def test_a_host_that_does_not_answer(hosts: Hosts) -> None:
    """Its name within seconds, where ssh alone would wait for two minutes."""
    hosts.cut(1)
    begun = time.monotonic()
    done = called(hosts, *RUN, "true")
    assert done.returncode == 1
    assert re.search("wb2: (it does not answer|there is no route to it)", done.stderr), done.stderr
    assert time.monotonic() - begun < 15


# --- the end ------------------------------------------------------------------------------------------


@pytest.fixture
def job(hosts: Hosts, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts ranks that sleep; the launcher runs on the first host, and writes to ``err``."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*way: str) -> subprocess.Popen[bytes]:
        mark = f"600.{time.monotonic_ns()}"
        with (tmp_path / "err").open("wb") as err:
            words = hosts.words(
                0, "env", "--default-signal=INT", *RUN, *way, "sleep", mark
            )  # a shell may have ignored it
            process = subprocess.Popen(words, env=environment(), stdout=err, stderr=err, stdin=subprocess.DEVNULL)
        process.mark = mark  # type: ignore[attr-defined]
        started.append(process)
        wait_until(lambda: len(ranks(process)) == 4, tmp_path)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def ranks(job: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The processes of the ranks, on whatever host."""
    words = ["sleep", job.mark]  # type: ignore[attr-defined]
    return [each for each in psutil.process_iter(["cmdline"]) if each.info["cmdline"] == words]


def wait_until(done: Callable[[], bool], folder: Path, limit_s: float = 60.0) -> None:
    """Until it is so."""
    begun = time.monotonic()
    while not done():
        assert time.monotonic() < begun + limit_s, (folder / "err").read_text()
        time.sleep(0.1)


def network(hosts: Hosts, i: int) -> str:
    """That of a host, as the system knows it."""
    return hosts.run(i, "readlink", "/proc/self/ns/net").stdout.strip()


def agents(*networks: str) -> list[psutil.Process]:
    """The agents in these networks; another test bed may have its own."""
    found = []
    for process in psutil.process_iter(["cmdline", "name"]):
        with contextlib.suppress(OSError):
            ours = os.readlink(f"/proc/{process.pid}/ns/net") in networks and "py" in process.info["name"]
            if ours and "hosts.agent" in " ".join(process.info["cmdline"] or []):
                found.append(process)
    return found


@pytest.mark.parametrize(
    ("way", "number"),
    [
        ([], signal.SIGTERM),
        *(once_more(way, number) for way, number in ((["--mpi"], signal.SIGINT), ([], signal.SIGKILL))),
    ],
)
def test_the_launcher_is_ended(
    way: list[str], number: int, hosts: Hosts, job: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """By Ctrl-C, a signal, or kill -9: no rank, no agent and no folder is left on either host."""
    networks = [network(hosts, i) for i in (0, 1)]
    running = job(*way)
    assert len(agents(*networks)) == 2
    ours = folders(ranks(running)[0])
    psutil.Process(running.pid).send_signal(number)
    wait_until(lambda: not ranks(running) and not agents(*networks), tmp_path)
    assert running.wait(60) == (128 + number if number != signal.SIGKILL else -number)
    assert len(ours) == 3, "the launcher's folder and one for each host were to be looked at"
    wait_until(lambda: not any(path.exists() for path in ours), tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize(("way", "fault"), [(["--mpi"], "rank"), ([], "cut"), (["--mpi"], "cut"), ([], "rank")])
def test_a_host_is_lost(
    way: list[str], fault: str, hosts: Hosts, job: Callable[..., subprocess.Popen[bytes]], tmp_path: Path
) -> None:
    """The cable is out, or a rank is killed: the job ends, and says which host or rank it was."""
    networks = [network(hosts, i) for i in (0, 1)]
    running = job(*way)
    assert len(agents(*networks)) == 2
    if fault == "cut":
        hosts.cut(1)
        said = "Host wb2 was lost with ranks 2, 3"
    else:
        ranks(running)[0].kill()
        said = "was killed by SIGKILL"
    code = running.wait(40)
    text = (tmp_path / "err").read_text()
    assert (code, said in text) == (137, True), text
    hosts.heal(1)
    wait_until(lambda: not ranks(running) and not agents(*networks), tmp_path)


@pytest.mark.thorough
@pytest.mark.parametrize("many", [once_more(0), 1 << 20], ids=["quiet", "much output"])
def test_nobody_reads_for_a_while(many: int, hosts: Hosts) -> None:
    """A pager may keep the launcher waiting for longer than a host may be silent: the job goes on afterwards."""
    flood = (
        f"head -c {many} /dev/zero | tr '\\0' x | fold; head -c 200000 /dev/zero | tr '\\0' y | fold; echo; echo end"
    )
    words = ["env", "WORKBENCH_PEER_TIMEOUT_S=3", *RUN, "sh", "-c", f"{flood}; sleep 8; echo last"]
    process = subprocess.Popen(
        hosts.words(0, *words), env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        time.sleep(12.0)
        out, err = process.communicate(timeout=60.0)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, out.count(":last\n")) == (0, 4), err


LOOK = """
import subprocess, numpy as np, workbench as hvd
hvd.init()
hvd.allreduce(np.ones(4)); hvd.allreduce(np.ones(1 << 20))
hvd.barrier()
print(subprocess.run(["ss", "-Hltunp"], capture_output=True, text=True).stdout)
hvd.barrier()
"""


def listeners(hosts: Hosts, *words: str) -> list[tuple[str, int, set[str]]]:
    """Address, port and programs of each port, TCP or UDP, that is open during a job; without those of sshd."""
    done = called(hosts, *words, sys.executable, "-c", LOOK)
    assert done.returncode == 0, done.stderr
    found = []
    for line in done.stdout.splitlines():
        if ("LISTEN" in line or "UNCONN" in line) and "sshd" not in line:
            address, _, port = line.split(":", 1)[1].split()[4].rpartition(":")
            found.append((address, int(port), set(re.findall(r'\("([^"]+)",pid', line))))
    return found


@pytest.mark.parametrize(
    ("family", "way"),
    [once_more("-6", []), once_more("", ["--mpi"]), once_more("", []), once_more("-6", ["--mpi"])],
    ids=str,
)
def test_who_listens(family: str, way: list[str], hosts: Hosts) -> None:
    """During a job all ports are open at the address between the hosts, but for one of mpiexec; all in the range."""
    _keep(hosts, family)
    run = [WORKBENCH, "run", "-H", f"wb1{family}:2,wb2{family}:2", *way]
    if family and way:
        done = called(hosts, *run, "true")
        assert (done.returncode, "MPICH's launcher needs IPv4, and wb1-6, wb2-6" in done.stderr) == (1, True)
        return
    found = listeners(hosts, "env", "WORKBENCH_PORTS=40000-40100", *run)
    between = {f"[{address}]" for address in hosts.addresses6} if family else set(hosts.addresses)
    wide = {port for address, port, programs in found if "mpiexec" in " ".join(programs)} if way else set()
    assert len(wide) == len(way), found
    assert {address for address, port, _ in found if port not in wide} == between, found
    assert all(40000 <= port <= 40100 for _, port, _ in found), found
