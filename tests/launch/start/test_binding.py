"""Binding: which cores each rank gets, when none is bound, and that real ranks and engines are where they should be."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st
from thorough import once_more

from workbench import cluster, config
from workbench.cli import flags
from workbench.cli import main as cli
from workbench.cli.flags import with_flags
from workbench.errors import LaunchError
from workbench.launch.function import run
from workbench.launch.ranks import supervisor
from workbench.launch.start import binding, cores, mpi
from workbench.launch.start.binding import Binding, bind, shares

CLI = [sys.executable, "-m", "workbench.cli.main", "run", "-np", "2", "--start-timeout", "20"]
binds = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(cores.usable()) < 2 or cores.paid_for() < 2,
    reason="needs two cores, and a system that binds",
)
# Each thread of a rank, with the engine's and those that libraries have started.
LOOK = """
import os
import workbench as hvd
hvd.init()
hvd.barrier()
where = {tuple(sorted(os.sched_getaffinity(int(thread)))) for thread in os.listdir("/proc/self/task")}
print(hvd.rank(), sorted(where), os.environ["OMP_NUM_THREADS"], os.environ.get("WORKBENCH_CORES"), sep="|")
hvd.shutdown()
"""


@pytest.fixture(autouse=True)
def clean(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No setting from outside; afterwards no engines."""
    for name in ("WORKBENCH_BIND", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    yield
    cluster.down()


def idle(monkeypatch: pytest.MonkeyPatch, these: int = 4, running: int = 1) -> None:
    """A machine of so many cores in one NUMA node, on which so many threads run."""
    monkeypatch.setattr(cores, "usable", lambda: list(range(these)))
    monkeypatch.setattr(cores, "nodes", lambda each: [list(each)])
    monkeypatch.setattr(cores, "quota", lambda: 1e9)
    monkeypatch.setattr(os, "cpu_count", lambda: these)
    monkeypatch.setattr(os, "sched_getaffinity", lambda who: now)
    monkeypatch.setattr(os, "sched_setaffinity", lambda who, those: (now.clear(), now.update(those)))
    monkeypatch.setattr(binding, "_running", lambda: running)
    now = set(range(these))


# --- who gets which -----------------------------------------------------------------------------------


@given(st.integers(1, 40), st.lists(st.integers(1, 12), min_size=1, max_size=5))
def test_all_cores_are_dealt_out_alike(n: int, sizes: list[int]) -> None:
    """Each core has one rank, in order, and no rank has two more than another."""
    numbers = iter(range(sum(sizes)))
    nodes = [[next(numbers) for _ in range(size)] for size in sizes]
    if n <= sum(sizes):
        found = shares(n, nodes)
        assert list(chain(*found)) == list(range(sum(sizes)))
        assert {len(share) for share in found} <= {sum(sizes) // n, sum(sizes) // n + 1}


@pytest.mark.parametrize(
    ("n", "right"),
    [
        (1, [[0, 1, 2, 3, 4]]),
        (2, [[0, 1], [2, 3, 4]]),
        (3, [[0, 1], [0, 1], [2, 3, 4]]),
        (4, [[0, 1], [0, 1], [2, 3, 4], [2, 3, 4]]),
    ],
)
def test_numa_deals_out_whole_nodes(n: int, right: list[list[int]]) -> None:
    """Ranks that outnumber the nodes share one with their neighbours; one rank has them all."""
    assert shares(n, [[0, 1], [2, 3, 4]], "numa") == tuple(map(tuple, right))


def test_the_line_says_who_is_where() -> None:
    """One phrase for each rank, cores as the kernel writes them."""
    found = Binding(((0, 1, 2, 8), (3,)))
    assert found.line() == "rank 0 is bound to cores 0-2,8, rank 1 to core 3"
    assert found.env == {"WORKBENCH_CORES": "0,1,2,8;3"}
    assert Binding(why="x").env == {"WORKBENCH_UNBOUND": "x"}


# --- when none is bound -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "way", "machine", "why"),
    [
        (2, "auto", {}, ""),
        (4, "auto", {}, ""),
        (2, "none", {}, "--bind none"),
        (1, "core", {}, "one rank has them all"),
        (5, "core", {}, "5 ranks on 4 cores"),
        (2, "numa", {}, "there is one NUMA node"),
        (2, "auto", {"running": 3}, ""),
        (3, "auto", {"running": 3}, "other programs keep 2 cores of 4 busy"),
        (3, "core", {"running": 3}, ""),
    ],
)
def test_when_ranks_are_bound(
    monkeypatch: pytest.MonkeyPatch, n: int, way: str, machine: dict[str, int], why: str
) -> None:
    """Not if they outnumber the cores, nor by default if others compute; whoever asked for it is told in any case."""
    idle(monkeypatch, **machine)
    found = bind(n, way)
    assert found.why == why
    assert bool(found.shares) == (not why)
    assert found.notable == bool(why and way in ("core", "numa") and n > 1)


def test_a_quota_counts_as_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cgroup that pays for two cores of four has none of its own for three ranks."""
    idle(monkeypatch)
    monkeypatch.setattr(cores, "quota", lambda: 2.0)
    assert bind(3, "auto").why == "3 ranks on 2 cores"
    assert bind(2, "auto").shares == ((0, 1), (2, 3))


def test_numa_nodes_that_are_too_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a batch system has left one core of a node, two ranks do not share it."""
    idle(monkeypatch)
    monkeypatch.setattr(cores, "nodes", lambda these: [[0], [1, 2, 3]])
    assert bind(4, "numa").why == "2 ranks on 1 core of a NUMA node"
    assert bind(2, "numa").shares == ((0,), (1, 2, 3))


def test_what_the_sandbox_forbids_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks go on unbound where binding is refused, or has another effect; so they do where there is no such call."""

    def forbidden(who: int, those: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    idle(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(os, "sched_setaffinity", lambda who, those: None)
        assert (bind(2, "auto").shares, bind(2, "auto").notable) == ((), True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "sched_setaffinity", forbidden)
        assert bind(2, "auto").why == "this process may not choose its cores (Operation not permitted)"
    monkeypatch.delattr(os, "sched_setaffinity")
    assert (bind(2, "auto").why, bind(2, "auto").notable) == ("this system binds no process", False)


def test_an_unknown_way_is_an_error(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The option's error and the variable's name what there is; nothing is started."""
    with pytest.raises(SystemExit):
        cli.main(["run", "-np", "2", "--bind", "socket", "true"])
    assert "--bind: invalid choice: 'socket'" in capsys.readouterr().err
    monkeypatch.setenv("WORKBENCH_BIND", "socket")
    assert cli.main(["run", "-np", "2", "true"]) == 1
    assert "WORKBENCH_BIND='socket' is not one of auto, none, core, numa." in capsys.readouterr().err
    with pytest.raises(LaunchError, match="is not one of"):
        cluster.up(2)


# --- how a rank gets there ----------------------------------------------------------------------------


@binds
@pytest.mark.parametrize(("already", "right"), [(None, {1}), ({0}, {0})])
def test_a_rank_that_mpiexec_has_bound_stays_there(already: set[int] | None, right: set[int]) -> None:
    """A process that may not use all cores of the list has been bound; others go to their own."""
    first, second, *_ = cores.usable()
    number = {0: first, 1: second}
    code = (
        f"import os; os.sched_setaffinity(0, {{{first}, {second}}})\n"
        + (f"os.sched_setaffinity(0, {{{', '.join(str(number[each]) for each in already)}}})\n" if already else "")
        + f"from workbench.launch.ranks.supervisor import bind; bind('{first};{second}', 1); bind('', 1)\n"
        + "print(os.sched_getaffinity(0))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=mpi.environment(1))
    assert ast.literal_eval(done.stdout) == {number[each] for each in right}, done.stderr


def test_ranks_do_not_see_the_list() -> None:
    """So a job that a rank starts has nothing to do with it."""
    assert supervisor.pinned({"WORKBENCH_CORES": "0;1", "A": "b"}) == {"A": "b"}


@pytest.mark.parametrize(
    ("words", "way", "for_mpi"),
    [
        ([], "auto", []),
        (["--bind", "numa"], "numa", []),
        (["--binding-args=--bind-to core --map-by socket"], "none", ["--bind-to", "core", "--map-by", "socket"]),
        (["--binding-args=-bind-to none -map-by slot"], "none", []),
        (["--binding-args=-x", "--bind", "core", "--mpi-args=-y"], "core", ["-y", "-x"]),
    ],
)
def test_who_tells_mpiexec_how_to_bind_is_left_alone(words: list[str], way: str, for_mpi: list[str]) -> None:
    """Horovod's --binding-args go to mpiexec, and the launcher binds nobody, unless --bind says so."""
    args = cli.parser().parse_args(["run", "-np", "2", *words, "python"])
    assert config.settings(with_flags({}, flags.variables(args))).bind == way
    assert flags.mpi_words(args) == for_mpi
    args.gloo = True
    assert len(flags.warnings(args)) == ("-x" in for_mpi or "core" in for_mpi)


def test_open_mpi_is_not_told_twice() -> None:
    """Its own flag against binding is left out where somebody says what to bind to."""
    assert "none" in mpi.flags("Open MPI", root=False)
    assert "--bind-to" not in mpi.flags("Open MPI", root=False, words=["--bind-to", "core"])


def looked(*words: str) -> tuple[dict[int, list[tuple[int, ...]]], str, set[str]]:
    """Start ranks that look around: by rank the different affinities of its threads; stderr; (threads, list) seen."""
    done = subprocess.run(
        [*CLI, *words, sys.executable, "-c", LOOK], capture_output=True, text=True, env=os.environ | mpi.environment(1)
    )
    assert done.returncode == 0, done.stderr
    rows = [line.partition(">:")[2].split("|") for line in done.stdout.splitlines()]
    return {int(row[0]): ast.literal_eval(row[1]) for row in rows}, done.stderr, {"|".join(row[2:]) for row in rows}


@binds
@pytest.mark.parallel
@pytest.mark.parametrize("way", ["--mpi", once_more("--gloo")])
def test_all_threads_of_a_rank_are_on_its_cores(way: str) -> None:
    """Those of the engine too; together the ranks have all cores, none twice; --verbose says which."""
    found, said, seen = looked(way, "--bind", "core", "--verbose")
    assert all(len(where) == 1 for where in found.values()), found
    assert sorted(core for (where,) in found.values() for core in where) == cores.usable()
    assert f"rank 1 to core{'s' if len(found[1][0]) > 1 else ''} {cores.spelled(found[1][0])}\n" in said
    assert seen == {"1|None"}


@binds
@pytest.mark.parallel
def test_engines_have_cores_of_their_own(forked_engines: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a rescue, too; so do the ranks of a job that runs while they wait."""
    monkeypatch.setenv("WORKBENCH_BIND", "core")
    c = cluster.up(2, quiet=True)
    own: list[set[int]] = c.view.apply(os.sched_getaffinity, 0)
    assert own[0] | own[1] == set(cores.usable())
    assert not own[0] & own[1]
    assert run(os.sched_getaffinity, (0,), np=2) == own
    os.kill(c.pids()[0], 9)
    c.rescue(quiet=True)
    assert c.view.apply(os.sched_getaffinity, 0) == own


@binds
@pytest.mark.parallel
def test_more_ranks_than_cores_wander() -> None:
    """They are not bound though it was asked for; that is said once, and how many of each there are."""
    n = len(cores.usable()) + 1
    done = subprocess.run(
        [*CLI, "-np", str(n), "--bind", "core", sys.executable, "-c", "import os; print(len(os.sched_getaffinity(0)))"],
        capture_output=True,
        text=True,
        env=os.environ | mpi.environment(1),
    )
    assert {line.partition(">:")[2] for line in done.stdout.splitlines()} == {str(n - 1)}, done.stderr
    said = [line for line in done.stderr.splitlines() if "init()" not in line]  # which the ranks do not call
    assert said == [f"workbench: the launcher binds no rank to cores: {n} ranks on {cores.paid_for()} cores"]
