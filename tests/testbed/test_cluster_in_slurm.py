"""``cluster.up(slurm=…)``: the engines of a notebook on hosts that Slurm reserves."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator

import pytest
from hosts import Hosts
from test_cluster_on_hosts import READY, SHOWN, Kernel, nothing_left
from thorough import once_more

pytestmark = [pytest.mark.integration, pytest.mark.parallel, pytest.mark.timeout(180)]

UP = "c = cluster.up(slurm=dict(nodes=2, tasks_per_node=1, time='30:00'))"
HELD = r"Slurm job (\d+) on wb1, wb2: (29|30) min left; cluster\.release\(\) gives it back\n"

Start = Callable[..., Kernel]


@pytest.fixture
def kernel(slurm: Hosts) -> Iterator[Start]:
    """Starts kernels on the first host, and ends them; no job is left."""
    started: list[Kernel] = []

    def start(*before: str, **variables: str) -> Kernel:
        started.append(Kernel(slurm, *before, **variables))
        return started[-1]

    yield start
    for each in started:
        each.kill()
    slurm.run(0, "scancel", "--user=root")
    until_queue(slurm, [])


def queue(hosts: Hosts) -> list[str]:
    """The numbers of the jobs that run or wait."""
    return hosts.run(0, "squeue", "-h", "-t", "PENDING,RUNNING", "-o", "%i").stdout.split()


def until_queue(hosts: Hosts, jobs: list[str], limit_s: float = 60.0) -> None:
    """Wait until these jobs are all."""
    until = time.monotonic() + limit_s
    while (found := queue(hosts)) != jobs:
        assert time.monotonic() < until, found
        time.sleep(0.1)


def another_job(hosts: Hosts) -> str:
    """The number of a job that has all cores of both hosts."""
    words = ["sbatch", "--parsable", "-N2", "--exclusive", "--output=/dev/null", "--wrap", "exec sleep 600"]
    number = hosts.run(0, *words).stdout.strip()
    until_queue(hosts, [number])
    return number


@pytest.mark.parametrize("again", [False, once_more(True)])
def test_wait_start_and_keep(slurm: Hosts, kernel: Start, again: bool) -> None:
    """Place and reason are shown while it waits; then engines; the hosts stay reserved until they are released.

    Meanwhile they are those of the next cluster.
    """
    other = another_job(slurm)
    mine = kernel()
    mine.say(UP)
    assert mine.process.stdout
    first, second = (mine.process.stdout.readline() for _ in range(2))
    number = re.match(r"job (\d+) is submitted", first)
    assert number, first
    while "because of" not in second:
        second = mine.process.stdout.readline()
    assert re.match(rf"job {number[1]}: pending, because of (Resources|Priority)", second)
    slurm.run(0, "scancel", other)
    said = mine.hear()
    assert re.search(rf"{READY}\n{HELD}$", said), said
    assert mine.do("print(c.view['mpi_rank'], c.view.apply(lambda: __import__('socket').gethostname()))") == (
        "[0, 1] ['wb1', 'wb2']\n"
    )
    assert re.fullmatch(HELD, mine.do("cluster.down(); cluster.status()").partition("\n")[2])
    assert queue(slurm) == [number[1]]
    assert not again or re.fullmatch(rf"{READY}\n{HELD}", mine.do(UP))
    mine.do("cluster.release()")
    until_queue(slurm, [])
    nothing_left(slurm, set())


def test_it_waits_too_long_or_is_stopped(slurm: Hosts, kernel: Start) -> None:
    """At the deadline, and by Ctrl-C, the request is cancelled."""
    other = another_job(slurm)
    mine = kernel()
    said = mine.do(UP.replace("nodes=2", "nodes=2, queue_timeout_s=2"))
    assert re.search(r"LaunchError: Job \d+ was cancelled, for it had waited 2 s .*(Resources|Priority)", said), said
    assert queue(slurm) == [other]
    mine.say(UP)
    time.sleep(3)
    assert len(queue(slurm)) == 2
    mine.process.send_signal(signal.SIGINT)
    assert mine.hear().endswith("KeyboardInterrupt: \n")
    assert queue(slurm) == [other]


@pytest.mark.thorough
def test_a_killed_kernel_gives_the_hosts_back(slurm: Hosts, kernel: Start) -> None:
    """After kill -9 Slurm has them again, whether the kernel waited for them or had engines there."""
    other = another_job(slurm)
    waiting = kernel()
    waiting.say(UP)
    time.sleep(3)
    assert len(queue(slurm)) == 2
    waiting.kill()
    until_queue(slurm, [other])
    slurm.run(0, "scancel", other)
    mine = kernel()
    assert READY in mine.do(UP)
    mine.kill()
    until_queue(slurm, [])
    nothing_left(slurm, set())


@pytest.mark.thorough
def test_the_job_is_ended(slurm: Hosts, kernel: Start) -> None:
    """A cell that runs ends with one clear message, ``rescue`` says what to do, and ``up`` asks for hosts anew."""
    mine = kernel()
    said = mine.do(UP)
    number = re.search(HELD, said)
    assert number, said
    mine.do("import time; a = c.view.apply_async(time.sleep, 600)")
    slurm.run(0, "scancel", number[1])
    begun = time.monotonic()
    mine.do("a.get(100)")
    assert time.monotonic() - begun < 20
    over = f"Slurm job {number[1]} has ended: it was cancelled, by scancel or an administrator"
    gone = f"engines 0, 1 are gone with hosts wb1, wb2 ({over}): call engines.rescue() in a cell without %%px.\n"
    assert mine.do(SHOWN) == gone
    said = mine.do("c.rescue()")
    assert said.endswith(f"LaunchError: {over}. cluster.up(slurm=…) asks for another one.\n"), said
    assert READY in mine.do("c = cluster.up(slurm=dict(nodes=2))")
    assert mine.do("print(c.view['mpi_rank'])") == "[0, 1]\n"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("nodes=9", "would wait forever: PartitionConfig"),
        once_more("node=2", "slurm: 'node' is not known. There are: nodes, tasks_per_node"),
        once_more("nodes=0", "slurm: nodes=0, but it must be a whole number, 1 or more"),
        once_more("partition='none'", "Slurm refuses sbatch"),
        once_more("nodes=1), hosts=dict(a=1", "ValueError: hosts and slurm exclude each other"),
    ],
)
def test_what_cannot_be_had(asked: str, said: str, slurm: Hosts, kernel: Start) -> None:
    """One message, and nothing waits in the queue."""
    text = kernel().do(f"cluster.up(slurm=dict({asked}))")
    assert said in text
    assert queue(slurm) == []


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["slurm={}", once_more("hosts=['wb1:1', 'wb2:1']")])
def test_in_a_job(way: str, slurm: Hosts, kernel: Start) -> None:
    """A notebook that runs in a Slurm job takes its hosts, by srun, and asks for no others."""
    mine = kernel("salloc", "-Q", "-N2", "--ntasks-per-node=1")
    said = mine.do(f"c = cluster.up({way})")
    assert READY in said, said
    assert len(queue(slurm)) == 1
    assert "release" not in said
    agents = "[p for p in __import__('psutil').process_iter(['name', 'cmdline']) "  # of a zombie: none
    agents += "if 'srun' in (p.info['name'] or '') and '--overlap' in (p.info['cmdline'] or ())]"
    assert int(mine.do(f"print(len({agents}))")) >= 2
    if "slurm" in way:
        assert "3 nodes are asked for" in mine.do("cluster.up(slurm=dict(nodes=3))")
