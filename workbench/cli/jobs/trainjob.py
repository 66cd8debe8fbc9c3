"""A TrainJob, for Kubeflow's Trainer: ``trainer.kubeflow.org/v1alpha1``, on its runtime ``torch-distributed``.

By torch's policy, for the MPI policy takes Open MPI only: the Trainer sets torchrun's variables in each pod.
"""

from __future__ import annotations

from typing import Any

from workbench.cli.jobs import pods
from workbench.cli.jobs.description import JobDescription, seconds
from workbench.cli.jobs.jobset import fixed_size
from workbench.errors import LaunchError

_RUNTIME, _NODE = "torch-distributed", "node"  # the runtime's name, and that of its job and container
_MANAGER = "workbench/k8s"


def manifest(job: JobDescription) -> dict[str, Any]:
    """The TrainJob.

    Raises:
        LaunchError: the job is elastic, sets torchrun's variables, or has what a TrainJob has no field for: a priority
            class (pods have the runtime's), a time to live.

    Example:
        >>> made = manifest(JobDescription(["python", "train.py"], np=4, slots=2, image="workbench:1"))
        >>> made["spec"]["trainer"]["numNodes"], made["spec"]["trainer"]["numProcPerNode"]
        (2, 2)
    """
    fixed_size(job, "TrainJob")
    if job.priority:
        raise LaunchError(
            f"priority is {job.priority!r}, but a TrainJob's pods have the priority class of the runtime {_RUNTIME}. "
            "Leave it out, or use mpijob or jobset."
        )
    if job.ttl is not None:
        raise LaunchError(f"ttl is {job.ttl}, but a TrainJob has no such field. Leave it out, or use mpijob or jobset.")
    pods.no_torchrun_variables(job)
    limit = seconds(job.time)
    trainer = {
        "image": pods.image(job),
        "command": pods.TORCHRUN,
        "args": pods.literal(job.command),
        "numNodes": job.workers,
        "numProcPerNode": job.slots,
        "resourcesPerNode": pods.resources(job),
        **pods.environment(job),
    }
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": pods.metadata(job),
        "spec": {
            "runtimeRef": {"name": _RUNTIME},
            **({"activeDeadlineSeconds": limit} if limit else {}),
            "trainer": trainer,
            "runtimePatches": [{"manager": _MANAGER, "trainingRuntimeSpec": _patch(job)}],
        },
    }


def _patch(job: JobDescription) -> dict[str, Any]:
    """What the runtime leaves open: a root file system that is read-only, what is writable, and where pods may be."""
    container = {"name": _NODE, "securityContext": pods.security(), "volumeMounts": pods.mounts(job)}
    spec = {
        **pods.placement(job),
        "securityContext": pods.pod_security(),
        "containers": [container],
        "volumes": pods.volumes(job, pods.resources(job)["limits"]["memory"]),
    }
    node = {"name": _NODE, "template": {"spec": {"template": pods.template(job, spec)}}}
    return {"template": {"spec": {"replicatedJobs": [node]}}}
