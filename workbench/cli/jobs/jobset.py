"""A JobSet, ``jobset.x-k8s.io/v1alpha2``: equal pods, each with a torchrun that starts its ranks. It needs no ssh."""

from __future__ import annotations

from typing import Any

from workbench.cli.jobs import pods
from workbench.cli.jobs.description import JobDescription, seconds
from workbench.errors import LaunchError

_LONGEST, _SUFFIX = 63, len("-worker-0-")
_RANDOM = 6  # -x1y2z, which ends a pod's name


def manifest(job: JobDescription) -> dict[str, Any]:
    """The JobSet.

    Raises:
        LaunchError: the job is elastic, its name is too long for its pods', or it sets torchrun's variables.

    Example:
        >>> made = manifest(JobDescription(["python", "train.py"], np=4, slots=2, image="workbench:1"))
        >>> made["spec"]["replicatedJobs"][0]["template"]["spec"]["completions"]
        2
    """
    fixed_size(job, "JobSet")
    if len(job.name) + _SUFFIX + len(str(job.workers - 1)) + _RANDOM > _LONGEST:
        raise LaunchError(
            f"{job.name!r} is too long: {job.name}-worker-0-{job.workers - 1} and 6 more characters name a pod, which "
            f"may have {_LONGEST}."
        )
    env = pods.torchrun_environment(job, f"{job.name}-worker-0-0.{job.name}")
    container = pods.container(
        job, "worker", [*pods.TORCHRUN, *job.command], **pods.environment(job, *env), resources=pods.resources(job)
    )
    indexed: dict[str, Any] = {
        "completionMode": "Indexed",
        "completions": job.workers,
        "parallelism": job.workers,
        "backoffLimit": 0,  # a rank that is lost ends the job: the others cannot go on without it
        "template": pods.template(job, pods.pod(job, [container], restartPolicy="Never")),
    }
    if limit := seconds(job.time):
        indexed["activeDeadlineSeconds"] = limit
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": pods.metadata(job),
        "spec": {
            "network": {"enableDNSHostnames": True, "subdomain": job.name},
            **({} if job.ttl is None else {"ttlSecondsAfterFinished": job.ttl}),
            "failurePolicy": {"maxRestarts": 0},
            "replicatedJobs": [{"name": "worker", "replicas": 1, "template": {"spec": indexed}}],
        },
    }


def fixed_size(job: JobDescription, kind: str) -> None:
    """See to it that a job is not elastic.

    Raises:
        LaunchError: it is.
    """
    if job.is_elastic:
        raise LaunchError(
            f"A {kind} has a fixed number of ranks, and this job has {job.min_np} to {job.max_np}. For an elastic job "
            "use mpijob or helm-values."
        )
