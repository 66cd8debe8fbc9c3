"""``cluster.up(hosts=…)``: the engines of a notebook on two hosts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from hosts import Hosts
from running import environment
from thorough import once_more

from workbench.launch.ranks.watchdog import TAG

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(180)]

READY = "2 engines ready, whose ids are the ranks: rank 0 on wb1, rank 1 on wb2"
# What stands for a notebook's kernel: it takes a statement a line, and says what it has printed.
KERNEL = """
import sys
from workbench import cluster
from workbench.cluster import cells
names = {"cluster": cluster, "cells": cells}
for line in sys.stdin:
    try:
        exec(line, names)
    except BaseException as error:
        names["error"] = error
        print(f"{type(error).__name__}: {error}")
    print("done", flush=True)
"""


class Kernel:
    """A process on a host of the test bed that does as a notebook does."""

    def __init__(self, hosts: Hosts, *before: str, **variables: str) -> None:
        # A fork server would be of no use to a cluster that is started once: it imports torch.
        variables = {"WORKBENCH_FORK": "0", **variables}
        words = ["env", "--default-signal=INT", *(f"{name}={text}" for name, text in variables.items())]
        words = hosts.words(0, *words, *before, sys.executable, "-u", "-c", KERNEL)
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            words, env=environment(), stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True
        )

    def say(self, statement: str) -> None:
        """Begin a statement."""
        assert self.process.stdin
        self.process.stdin.write(f"{statement}\n")
        self.process.stdin.flush()

    def hear(self) -> str:
        """What it has printed, to its end. The test's own deadline ends a wait that is too long."""
        assert self.process.stdout
        lines = []
        for line in self.process.stdout:
            if line == "done\n":
                return "".join(lines)
            if not line.startswith("waiting for hosts since"):  # as on a busy machine
                lines.append(line)
        return "".join([*lines, "(it has ended)"])

    def do(self, statement: str) -> str:
        """Run a statement, and give what it has printed."""
        self.say(statement)
        return self.hear()

    def kill(self) -> None:
        """By SIGKILL."""
        self.process.kill()
        self.process.communicate()


Start = Callable[..., Kernel]


@pytest.fixture
def kernel() -> Iterator[Start]:
    """Starts kernels, and ends them."""
    started: list[Kernel] = []

    def start(hosts: Hosts, **variables: str) -> Kernel:
        started.append(Kernel(hosts, **variables))
        return started[-1]

    yield start
    for each in started:
        each.kill()


def members(hosts: Hosts) -> list[psutil.Process]:
    """The processes on the hosts of the test bed that belong to a cluster: engines, agents, controllers, watchdogs."""
    nets = {hosts.run(i, "readlink", "/proc/self/ns/net").stdout.strip() for i in range(len(hosts.names))}
    found = []
    for process in psutil.process_iter():
        try:
            if os.readlink(f"/proc/{process.pid}/ns/net") in nets:
                words = " ".join(process.cmdline())
                if (
                    "ipyparallel" in words
                    or "workbench/launch" in words
                    or "hosts.agent" in words
                    or "ranks.engine" in words
                ):
                    found.append(process)
        except (OSError, psutil.Error):
            continue
    return found


def folders(processes: list[psutil.Process]) -> set[Path]:
    """Those of their jobs, as their watchdogs know them."""
    words = [each.cmdline() for each in processes if each.is_running()]
    return {Path(each[4]) for each in words if len(each) > 4 and each[1].endswith("watchdog.py")}


def nothing_left(hosts: Hosts, ours: set[Path], limit_s: float = 60.0) -> None:
    """Wait until no process and no folder of a cluster is left on either host."""
    until = time.monotonic() + limit_s
    while (left := members(hosts)) or any(path.exists() for path in ours):
        assert time.monotonic() < until, [each.cmdline() for each in left if each.is_running()] + sorted(ours)
        time.sleep(0.1)


UP = "c = cluster.up(hosts=['wb1:1', 'wb2:1'])"
WHERE = "print(c.view['mpi_rank'], c.view.apply(lambda: __import__('socket').gethostname()))"
ONE_EACH = "[0, 1] ['wb1', 'wb2']\n"


def test_start_work_death_and_end(hosts: Hosts, kernel: Start) -> None:
    """Every port is at loopback or at the address between the hosts, there within WORKBENCH_PORTS and encrypted.

    ``up`` again gives the same cluster. An engine that is only stopped is named, and so is one that is killed, by the
    next cell; ``rescue`` starts all anew, each on its host. After ``down`` nothing is left.
    """
    mine = kernel(hosts, WORKBENCH_PORTS="40000-40200")
    assert mine.do(UP) == READY + "\n"
    mine.do("c.view.execute('import numpy as np, workbench as hvd; hvd.init(); y = hvd.allreduce(np.ones(4))')")
    listed = [hosts.run(i, "ss", "-Hltn").stdout.split("\n") for i in range(2)]
    places = {line.split()[3] for lines in listed for line in lines if line} - {"0.0.0.0:22", "[::]:22"}
    outside = [place.rpartition(":") for place in places if not place.startswith("127.0.0.1:")]
    assert {address for address, _, _ in outside} <= {"10.77.0.1", "10.77.0.2"}, places
    assert len(outside) > 6
    assert all(40000 <= int(port) <= 40200 for _, _, port in outside), places
    assert mine.do("import json; print(bool(json.load(open(c._engines._hub))['curve_serverkey']))") == "True\n"
    assert mine.do(f"print({UP[4:]} is c)") == READY.replace("ready", "already running") + "\nTrue\n"

    mine.do("import os, signal, time; os.kill(c.pids()[1], signal.SIGSTOP); c.client[1].apply_async(time.sleep, 60)")
    assert mine.process.stdout
    said = mine.process.stdout.readline()
    assert re.match(r"engine 1 does not run: on host wb2 its process \d+ is stopped", said), said
    assert mine.do("os.kill(c.pids()[1], signal.SIGKILL)") == ""
    mine.do("[time.sleep(0.05) for _ in range(1200) if c.healthy()]")
    lost = "engine 1 is gone on host wb2 (killed by signal 9): call engines.rescue() in a cell without %%px.\n"
    assert mine.do("c.view.execute('1')") == f"PeerLostError: {lost}"
    said = mine.do("c.rescue()")
    assert re.match(r"rank 1 on wb2 is gone \(killed by signal 9\)\n2 engines started anew in \d+ s", said), said
    assert mine.do(WHERE) == ONE_EACH

    ours = folders(members(hosts))
    assert len(ours) >= 3
    assert mine.do("c.down()") == ""
    nothing_left(hosts, ours)


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["killed", "killed while busy", "ends"])
def test_a_kernel_that_ends_leaves_nothing(how: str, hosts: Hosts, kernel: Start) -> None:
    """After kill -9 of the kernel, or its end, engines, controller, agents and folders are gone from both hosts."""
    mine = kernel(hosts)
    assert mine.do(UP) == READY + "\n"
    if "busy" in how:
        mine.do("a = c.view.apply_async(eval, '__import__(\"time\").sleep(600)')")
    found = members(hosts)
    assert len(found) > 10
    ours = folders(found)
    if how == "ends":
        assert mine.process.communicate(timeout=20)[0] == ""
        assert mine.process.returncode == 0
    else:
        mine.kill()
    nothing_left(hosts, ours)


@pytest.mark.thorough
def test_from_a_host_that_has_no_rank(hosts: Hosts, kernel: Start) -> None:
    """The kernel's host is none of those that are named: they connect to the address by which they are reached."""
    mine = kernel(hosts)
    assert mine.do("c = cluster.up(hosts='wb2:1')") == "1 engine ready, whose ids are the ranks: rank 0 on wb2\n"
    assert mine.do("print(c.view['mpi_rank'], c.view.apply(lambda: __import__('socket').gethostname()))") == (
        "[0] ['wb2']\n"
    )
    assert TAG in " ".join(psutil.Process(int(mine.do("print(c.pids()[0])"))).environ())


@pytest.mark.parametrize(
    ("hosts_named", "said"),
    [
        # test_invented_hosts.py: test_what_a_rehearsal_finds
        once_more("['wb1:2', 'nowhere:2']", "nowhere: there is no host of this name"),
        once_more("['wb1:2', 'wb2:0x']", "'wb2:0x' is not a host: write name:slots"),
    ],
)
def test_hosts_that_cannot_be_used(hosts_named: str, said: str, hosts: Hosts, kernel: Start) -> None:
    """The same message as from the shell, and nothing is left running."""
    text = kernel(hosts).do(f"cluster.up(hosts={hosts_named})")
    assert text.startswith("LaunchError: "), text
    assert said in text
    assert "Traceback" not in text
    nothing_left(hosts, set())


@pytest.mark.thorough
def test_no_such_folder(hosts: Hosts, kernel: Start, tmp_path: Path) -> None:
    """A notebook whose folder the other host does not have is told so before anything starts."""
    (tmp_path / "here").mkdir()
    assert hosts.run(1, "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)).returncode == 0
    mine = kernel(hosts)
    mine.do(f"import os; os.chdir('{tmp_path}/here')")
    text = mine.do(UP)
    assert f"wb2: it has no folder {tmp_path}/here" in text


SHOWN = "print(*cells.message(cells.failures(error)), sep=chr(10))"


@pytest.mark.thorough
def test_a_host_is_cut_off(hosts: Hosts, kernel: Start) -> None:
    """A cell that waits for it ends, and names host and ranks; ``rescue`` starts the engines on the other host.

    On the lost one nothing is left once it is back.
    """
    mine = kernel(hosts, WORKBENCH_PEER_TIMEOUT_S="12")
    mine.do(UP)
    mine.do("c.view.execute('import numpy as np, workbench as hvd; hvd.init()')")
    mine.do("a = c.view.apply_async(eval, '[hvd.allreduce(np.ones(1 << 16)) for _ in range(1 << 30)]')")
    time.sleep(1.0)
    hosts.cut(1)
    begun = time.monotonic()
    text = mine.do("a.get(100)")
    assert time.monotonic() - begun < 60
    text = mine.do(SHOWN)
    assert text.startswith("engine 1 is gone with host wb2 (the connection to it is lost"), text
    assert re.search(r"PeerLostError: Rank \d was lost: .*from host wb2", text), text
    said = mine.do("c.rescue()")
    assert "rank 1 is gone with host wb2" in said
    assert "host wb2 does not answer: the ranks go to wb1" in said
    assert mine.do("print(c.view['mpi_rank'], set(c.view.apply(lambda: __import__('socket').gethostname())))") == (
        "[0, 1] {'wb1'}\n"
    )
    mine.do("c.down()")
    hosts.heal(1)
    nothing_left(hosts, set())


@pytest.mark.thorough
def test_hosts_of_the_site(hosts: Hosts, kernel: Start, tmp_path: Path) -> None:
    """Where the site file names hosts, the notebook's own words stay as on the laptop; its modules are loaded."""
    site = tmp_path / "workbench.toml"
    site.write_text('hosts = ["wb1:2", "wb2:2"]\ninterface = "eth0"\nmodules = ["gcc", "cuda"]\n')
    (tmp_path / ".bash_profile").write_text('module() { export LOADED="$*"; echo loading; }\n')
    mine = kernel(hosts, WORKBENCH_SITE=str(site), HOME=str(tmp_path))
    said = mine.do("c = cluster.up(3)")
    assert said == "3 engines ready, whose ids are the ranks: ranks 0, 1 on wb1, rank 2 on wb2\n"
    assert mine.do("import os; print(c.view.apply(os.getenv, 'LOADED'))") == f"{['load gcc cuda'] * 3}\n"
    site.write_text('hosts = ["wb1:2", "wb2:2"]\ninterface = "ib7"\n')
    assert "no single interface among ib7 reaches all other hosts" in mine.do("cluster.up(4)")
    assert "MPI ranks 0-1" in mine.do("cluster.up(2, hosts=[])")
    site.write_text('hosts = ["wb1:2", "wb2:2"]\nmodules = ["none"]\n')
    (tmp_path / ".bash_profile").write_text("module() { echo no such module; return 1; }\n")
    said = mine.do("cluster.up(4)")
    assert "LaunchError: The modules none of the site file cannot be loaded: no such module." in said


@pytest.mark.parametrize("after_s", [once_more(0.5), 1.5])
def test_ctrl_c_while_it_starts(after_s: float, hosts: Hosts, kernel: Start) -> None:
    """It stops the start, and nothing is left."""
    mine = kernel(hosts)
    mine.do("pass")
    mine.say(UP)
    time.sleep(after_s)
    mine.process.send_signal(signal.SIGINT)
    assert mine.hear().startswith("KeyboardInterrupt")
    nothing_left(hosts, set())
