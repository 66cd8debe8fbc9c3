"""``workbench doctor``: one check after the other, one line each.

The main check starts two ranks as ``workbench run`` does, and they run an allreduce. ``probes`` looks at the machine,
``diagnosis`` and ``rank_checks`` judge; a rank's report comes from ``workbench.cluster.rank_report``.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from signal import SIGINT
from typing import TextIO

from workbench import config
from workbench.common.text import count
from workbench.diagnostics import diagnosis, nccl_topology, probes, rank_checks
from workbench.diagnostics.finding import Finding
from workbench.diagnostics.rank_checks import RankReport
from workbench.errors import LaunchError
from workbench.launch.hosts.agent_connections import Connections, Target
from workbench.launch.hosts.rehearsal import rehearse
from workbench.launch.ranks.files import FOLDER
from workbench.launch.ranks.output import Printer
from workbench.launch.ranks.process_tree import ProcessTree
from workbench.launch.start import gpus, mpi
from workbench.launch.start.run import Outcome, run
from workbench.launch.start.starters import JobSpec, choose, environment

_PLAIN = str.maketrans({"✓": "+", "✗": "x", "→": "->", "×": "x", "µ": "u"})
N = 2
TIMEOUT_S = 60.0

Ask = Callable[[], tuple[Finding, list[RankReport]]]
"""Asks the ranks: (how they are together, what each says)."""

_RANK = "import sys; from workbench.cluster.rank_report import main; main(sys.argv[1])"


def examine(ask: Ask | None = None) -> Iterator[Finding]:
    """Look at one thing after the other, in the order in which one needs the other.

    Args:
        ask: how the ranks are asked; by default two are started for it.

    Raises:
        LaunchError: this process is a rank itself.
    """
    if config.launch().several:
        raise LaunchError("This process is a rank of a job. Call the doctor in a process that is not a rank.")
    yield diagnosis.python(sys.version_info[:3], sys.executable)
    yield from diagnosis.packages(probes.versions(), probes.NEEDED)
    vendor, problem = probes.library()
    yield diagnosis.library(vendor, problem)
    yield diagnosis.mpiexec(probes.mpiexecs(), vendor)
    yield diagnosis.loopback(probes.loopback())
    for name, folder in (("temp", Path(tempfile.gettempdir())), ("cache", config.cache_dir())):
        yield diagnosis.disk(name, str(folder), *probes.space(folder))
    yield diagnosis.shared_memory(probes.shared_memory())
    finding, ranks = (ask or start_ranks)()
    yield finding
    if ranks:
        yield rank_checks.threads(ranks)
        yield rank_checks.binding(ranks)
    machine = gpus.gpus()
    yield from rank_checks.gpus(machine, ranks)
    yield from nccl_topology.look(gpus.visible(machine, config.visible_gpus()))


def start_ranks() -> tuple[Finding, list[RankReport]]:
    """Start two ranks, with MPI where it works, and hear what they say."""
    env = environment(N)
    command = [sys.executable, "-c", _RANK, FOLDER]
    task = JobSpec(N, command, env, choose(None, None, env), start_timeout_s=TIMEOUT_S / 2, timeout_s=TIMEOUT_S)
    try:
        outcome = run(task, Printer(io.StringIO(), io.StringIO(), N), lambda line: None, numbers=(SIGINT,))
    except LaunchError as error:
        return rank_checks.ranks([], N, str(error).splitlines()[0], _test()), []
    if outcome.signal and outcome.culprit is None:
        raise KeyboardInterrupt
    if problem := _problem(outcome):
        return rank_checks.ranks([], N, problem, _test()), []
    ranks = [RankReport(**json.loads(text)) for _, text in sorted(outcome.files.items())]
    return rank_checks.ranks(ranks, N, test=_test()), ranks


def _problem(outcome: Outcome) -> str:
    """In one line: who failed first, and the last of its last words."""
    if outcome.late:
        return f"{N} ranks had not found each other after {TIMEOUT_S:g} s"
    first, *others = outcome.text.splitlines() or [""]
    return f"{first} {others[-1]}" if others else first


def _test() -> str:
    try:
        return shlex.join([*mpi.command(N), sys.executable, "-m", "mpi4py.bench", "helloworld"])
    except LaunchError:
        return ""


def show(findings: Iterator[Finding], stream: TextIO) -> list[Finding]:
    """Print each finding when it comes, in colour on a terminal; return them all."""
    seen = []
    for finding in findings:
        print(printable(finding.line(colour=stream.isatty()), stream.encoding or "utf-8"), file=stream, flush=True)
        seen.append(finding)
    return seen


def printable(line: str, encoding: str) -> str:
    r"""The line without what the terminal has no letters for.

    Example:
        >>> printable("✗ disk → Delete €.", "ascii")
        'x disk -> Delete ?.'
    """
    try:
        line.encode(encoding)
    except UnicodeEncodeError:
        return line.translate(_PLAIN).encode(encoding, "replace").decode(encoding)
    return line


def examine_hosts(targets: Sequence[Target], networks: Sequence[str] = ()) -> Iterator[str]:
    """``workbench doctor --hosts``, the rehearsal of a job, without a job: the lines of the report.

    Args:
        targets: the hosts.
        networks: names of interfaces, of which one is to be used.

    Raises:
        LaunchError: the rehearsal fails.
    """
    processes = ProcessTree(os.environ)
    connections = Connections(targets, processes, os.getcwd())
    try:
        endpoints, warnings = rehearse(connections, [], networks, config.ports(os.environ))
    finally:
        connections.close()
        processes.stop()
    yield f"✓ the rehearsal with {count(len(endpoints), 'host')}"
    yield from (f"! {line}" for line in warnings)
    yield from (f"  {endpoint.name}: by {endpoint.interface} {endpoint.address}" for endpoint in endpoints)
