"""Job descriptions as lesson 17 shows them: what says who starts the ranks, and not what every pod must say anyway."""

from __future__ import annotations

import shlex
from typing import Any

from workbench.cli.jobs import operators, slurm
from workbench.cli.jobs.description import JobDescription
from workbench.cli.jobs.forms import as_yaml

_LEFT_OUT = {"securityContext", "volumes", "volumeMounts", "startupProbe", "readinessProbe", "requests", "metadata"}
_LEFT_OUT |= {"lifecycle", "terminationGracePeriodSeconds"}
_LEFT_OUT |= {"automountServiceAccountToken", "enableServiceLinks", "cleanPodPolicy", "sshAuthMountPath", "image"}
COMMAND = ("python", "train.py")


def four() -> dict[str, str]:
    """The four descriptions of the lesson, of one job: 4 ranks, 2 on each host; by the engine's name.

    Example:
        >>> list(four())
        ['ssh', 'slurm', 'mpijob', 'jobset']
    """
    fixed = JobDescription(COMMAND, np=4, slots=2, name="train", image="registry.example/train:1")
    elastic = JobDescription(COMMAND, np=4, slots=2, min_np=2, max_np=8, name="train", image="registry.example/train:1")
    return {
        "ssh": shlex.join(["workbench", "run", "-np", "4", "-H", "a:2,b:2", *COMMAND]),
        "slurm": slurm.script(fixed).strip(),
        "mpijob": as_yaml(essentials(operators.mpijob(elastic))).strip(),
        "jobset": as_yaml(essentials(operators.jobset(fixed))).strip(),
    }


def essentials(document: Any) -> Any:
    """A manifest without what concerns security, storage and probes.

    Example:
        >>> essentials({"kind": "Pod", "volumes": [], "containers": [{"image": "a:1", "args": ["run"]}]})
        {'kind': 'Pod', 'containers': [{'args': ['run']}]}
    """
    if isinstance(document, dict):
        return {name: essentials(value) for name, value in document.items() if name not in _LEFT_OUT}
    return [essentials(each) for each in document] if isinstance(document, list) else document
