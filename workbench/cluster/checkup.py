"""``doctor()`` for a notebook: like ``workbench doctor``, but it checks the running cluster, if there is one."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from workbench.cluster.asking import ask, running
from workbench.cluster.cluster import current
from workbench.cluster.rank_report import engine
from workbench.diagnostics import rank_checks
from workbench.diagnostics.doctor import examine, show
from workbench.diagnostics.finding import Finding, exit_code, summary
from workbench.diagnostics.rank_checks import RankReport
from workbench.launch.start import gpus

_TIMEOUT_S = 5.0
_WITH_GPUS_S = 30.0  # an engine that does not use CUDA yet has a process of its own look for GPUs


@dataclass(frozen=True)
class Checkup:
    """What the doctor found; true if nothing failed. A notebook shows its last line."""

    findings: tuple[Finding, ...]

    def __bool__(self) -> bool:
        return exit_code(self.findings) == 0

    def __repr__(self) -> str:
        return summary(self.findings)


def doctor() -> Checkup:
    """Print a line for each check of this machine, with what to do about a failure.

    If a cluster is running, its engines are checked: does each answer, is its rank its id, which GPU does it use?
    Without one, two temporary ranks are started and run an allreduce.

    Raises:
        LaunchError: this process is a rank itself.

    Example:
        >>> healthy = doctor()  # doctest: +SKIP
        ✓ Python       3.11.2, /opt/course/.venv/bin/python
        ...
        ✓ ranks        2 ranks talk over MPI; their allreduce is right
    """
    findings = examine(_ask_engines) if current() else examine()
    return Checkup(tuple(show(findings, sys.stdout)))


def _ask_engines() -> tuple[Finding, list[RankReport]]:
    engines = running()
    timeout_s = _WITH_GPUS_S if gpus.gpus() else _TIMEOUT_S
    answers = ask(engines, engine, timeout_s=timeout_s)
    said = {number: answer if isinstance(answer, RankReport) else None for number, answer in answers.items()}
    return rank_checks.engines(said, engines.n, timeout_s), [rank for rank in said.values() if rank is not None]
