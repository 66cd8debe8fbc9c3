"""All forms of one job, as text: the same description as each engine wants it."""

from __future__ import annotations

import shlex
from typing import Any

from workbench.cli.jobs import helm_values, operators, slurm
from workbench.cli.jobs.description import JobDescription, run_words
from workbench.common.extras import cure
from workbench.errors import LaunchError

MANIFESTS = {
    "mpijob": operators.mpijob,
    "trainjob": operators.trainjob,
    "jobset": operators.jobset,
    "helm-values": helm_values.values,
}
"""What ``workbench k8s`` writes."""


def lines(job: JobDescription) -> dict[str, str]:
    """By engine what it is told. Engines that have no elastic jobs are left out where the job is elastic.

    Raises:
        LaunchError: the job has no image, or one engine cannot have it.

    Example:
        >>> sorted(lines(JobDescription(["python", "train.py"], np=2, image="workbench:1")))
        ['helm-values', 'jobset', 'mpijob', 'slurm', 'trainjob', 'workbench run']
    """
    fixed = {"trainjob", "jobset", "slurm"} if job.is_elastic else set()
    makers: dict[str, Any] = {"workbench run": run_line, "slurm": slurm.script}
    makers |= {name: lambda job, make=make: as_yaml(make(job)) for name, make in MANIFESTS.items()}
    return {name: make(job) for name, make in makers.items() if name not in fixed}


def run_line(job: JobDescription) -> str:
    """The shell's line that starts the ranks on this machine.

    Example:
        >>> run_line(JobDescription(["python", "train.py"], np=2, env={"SEED": "1"}))
        'env SEED=1 workbench run -np 2 -- python train.py'
    """
    env = ["env", *(f"{name}={text}" for name, text in job.env.items())] if job.env else []
    return shlex.join([*env, *run_words(job)])


def as_yaml(document: dict[str, Any]) -> str:
    """A document as YAML, its keys in the order in which they were written.

    Raises:
        LaunchError: PyYAML is not installed.
    """
    try:
        import yaml
    except ImportError:
        raise LaunchError(f"Manifests need PyYAML: {cure('kubernetes')}") from None

    class PlainDumper(yaml.SafeDumper):  # type: ignore[misc]  # PyYAML has no types
        def ignore_aliases(self, data: Any) -> bool:
            """What two pods share is written twice, as people would write it."""
            return True

    text: str = yaml.dump(document, Dumper=PlainDumper, sort_keys=False, allow_unicode=True, width=120)
    return text
