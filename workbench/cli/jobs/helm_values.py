"""Values for the Helm chart ``deploy/kubernetes/workbench``."""

from __future__ import annotations

from typing import Any

from workbench.cli.jobs import pods
from workbench.cli.jobs.description import JobDescription, seconds
from workbench.errors import LaunchError

_LONGEST = 40  # the chart's own suffixes come after it


def values(job: JobDescription) -> dict[str, Any]:
    """What the chart is told; ``helm install NAME`` has the job's name, ``--namespace`` its namespace.

    Raises:
        LaunchError: the job's name is too long for the chart.

    Example:
        >>> job = JobDescription(["python", "train.py"], np=4, slots=2, image="registry.example/workbench:1")
        >>> values(job)["worker"]
        {'number': 2, 'slots': 2}
    """
    if len(job.name) > _LONGEST:
        raise LaunchError(f"{job.name!r} is too long: in the chart a name has {_LONGEST} characters at most.")
    name, tag, digest = _image(job)
    worker: dict[str, Any] = {"number": job.workers, "slots": job.slots}
    launcher: dict[str, Any] = {**pods.environment(job)}
    if job.priority:
        worker["priorityClassName"] = launcher["priorityClassName"] = job.priority
    if job.queue:
        worker["podLabels"] = launcher["podLabels"] = {pods.QUEUE: job.queue}
    if limit := seconds(job.time):
        launcher["deadlineSeconds"] = limit
    if job.ttl is not None:
        launcher["ttlSecondsAfterFinished"] = job.ttl
    if job.annotations:
        worker["podAnnotations"] = dict(job.annotations)
    place = pods.placement(job)
    secrets = place.pop("imagePullSecrets", None)
    worker |= place
    launcher |= place
    found: dict[str, Any] = {
        "fullnameOverride": job.name,
        "image": {
            "repository": name,
            **({"tag": tag} if tag else {}),
            **({"digest": digest} if digest else {}),
            **({"pullSecrets": secrets} if secrets else {}),
        },
        "command": list(job.command),
        "worker": worker,
        "resources": pods.resources(job),
    }
    if job.is_elastic:
        limits = {"min": job.min_np // job.slots, "max": job.max_np // job.slots}
        found["elastic"] = {"enabled": True, **limits}
    if job.volumes:
        found |= {"volumes": pods.own_volumes(job), "volumeMounts": pods.own_mounts(job)}
    found["shmSize"] = pods.shm_size(job)
    found |= {"launcher": launcher} if launcher else {}
    return found | ({"ssh": {"existingSecret": job.ssh_secret}} if job.ssh_secret else {})


def _image(job: JobDescription) -> tuple[str, str, str]:
    """Repository, tag and digest. A colon before a slash belongs to the registry's port."""
    name, _, digest = pods.image(job).partition("@")
    folder, slash, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    return f"{folder}{slash}{last}", tag, digest
