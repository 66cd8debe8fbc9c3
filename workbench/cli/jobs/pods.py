"""Parts of pods that all kinds of jobs share: not root, nothing writable but volumes, resources by rank.

They are what the policy "restricted" of Kubernetes' Pod Security Standards allows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from workbench.cli.jobs.description import JobDescription, quantity, toleration, volume
from workbench.errors import LaunchError

Part = dict[str, Any]
HOME = "/home/workbench"
ENTRYPOINT = "/opt/workbench/deploy/container/entrypoint"
KEYS = "/etc/workbench/ssh"
USER = 1000
QUEUE = "kueue.x-k8s.io/queue-name"
GPU = "nvidia.com/gpu"

_WRITTEN = {"tmp": "/tmp", **{each: f"{HOME}/.{each}" for each in ("ssh", "cache", "config")}}
_KINDS = {"claim": ("persistentVolumeClaim", "claimName"), "configmap": ("configMap", "name")}
_KINDS["secret"] = ("secret", "secretName")
_SCRATCH, _SHM = "4Gi", "1Gi"
_FIRST_S, _EVERY_S, _LIMIT_S = 120, 5, 5
_LAUNCHER = {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "250m", "memory": "512Mi"}}
_NAME, _TAG = r"[a-z0-9][a-z0-9._/-]*(:[0-9]+/[a-z0-9._/-]+)?", r"(:(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?"
_IMAGE = re.compile(_NAME + _TAG + r"(@sha256:(?P<digest>[0-9a-f]{64}))?")


def metadata(job: JobDescription) -> Part:
    """Of the job's object: its name, and the queue that Kueue admits it from."""
    place = {"namespace": job.namespace} if job.namespace else {}
    return {"name": job.name, **place, **({"labels": {QUEUE: job.queue}} if job.queue else {})}


def image(job: JobDescription) -> str:
    """The job's image.

    Raises:
        LaunchError: there is none, or it may be another one tomorrow.

    Example:
        >>> image(JobDescription(["true"], image="registry.example/workbench:2"))
        'registry.example/workbench:2'
    """
    if not job.image:
        raise LaunchError("Pods need an image: build deploy/container, push it, and name it with --image.")
    found = _IMAGE.fullmatch(job.image)
    if not found:
        raise LaunchError(f"{job.image!r} is not the name of an image. Example: registry.example/workbench:2.")
    if not found["digest"] and found["tag"] in (None, "latest"):
        raise LaunchError(
            f"{job.image!r} does not say which build of the image: a worker that pulls it later may get a different "
            "one. Name a tag other than latest, or a digest."
        )
    return job.image


def pod(job: JobDescription, containers: list[Part], **others: Any) -> Part:
    """A pod's specification around its containers, which :func:`container` makes."""
    priority = {"priorityClassName": job.priority} if job.priority else {}
    (first, *_) = containers
    return {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        **priority,
        **placement(job),
        **others,
        "securityContext": pod_security(),
        "containers": containers,
        "volumes": volumes(job, first["resources"]["limits"]["memory"]),
    }


def placement(job: JobDescription) -> Part:
    """Where a pod may be, and with what its image is pulled; empty where nothing was said."""
    found: Part = {
        "nodeSelector": dict(job.node_selector),
        "tolerations": [toleration(each) for each in job.tolerations],
        "imagePullSecrets": [{"name": each} for each in job.pull_secrets],
    }
    return {name: value for name, value in found.items() if value}


def template(job: JobDescription, spec: Part) -> Part:
    """A worker's pod template: its specification, with the job's annotations."""
    return {**({"metadata": {"annotations": dict(job.annotations)}} if job.annotations else {}), "spec": spec}


def container(job: JobDescription, name: str, args: list[str], **others: Any) -> Part:
    """A container of the job's image, which runs words by the image's entrypoint."""
    return {
        "name": name,
        "image": image(job),
        "args": literal(args),
        **others,
        "securityContext": security(),
        "volumeMounts": mounts(job),
    }


def worker(job: JobDescription) -> Part:
    """A worker's container: sshd, as the image's entrypoint starts it; ready when it lets the job in.

    Before its pod ends, an elastic job's ranks leave at a commit.
    """
    look = {"exec": {"command": [ENTRYPOINT, "ready"]}, "timeoutSeconds": _LIMIT_S}
    return container(
        job,
        "worker",
        ["worker"],
        startupProbe={**look, "periodSeconds": 1, "failureThreshold": _FIRST_S},
        readinessProbe={**look, "periodSeconds": _EVERY_S, "failureThreshold": 3},
        lifecycle={"preStop": {"exec": {"command": [ENTRYPOINT, "leave"]}}},
        resources=resources(job),
    )


def launcher(job: JobDescription, args: list[str]) -> Part:
    """A launcher's container; its environment goes to the ranks."""
    return container(job, "launcher", args, **environment(job), resources=_LAUNCHER)


def environment(job: JobDescription, *others: Part) -> Part:
    """``env`` with the job's variables and others; empty where there are none."""
    found = [
        *others,
        *({"name": name, "value": text} for name, text in zip(job.env, literal(job.env.values()), strict=True)),
    ]
    return {"env": found} if found else {}


def literal(words: Iterable[str]) -> list[str]:
    """Words as Kubernetes must be told them: it would put variables in for ``$(NAME)``, and takes ``$$`` for ``$``.

    Example:
        >>> literal(["$(date)", "5 $"])
        ['$$(date)', '5 $$']
    """
    return [word.replace("$", "$$") for word in words]


def resources(job: JobDescription) -> Part:
    """Of a worker: requests and limits are the same, so that no rank slows its neighbours.

    Example:
        >>> resources(JobDescription(["true"], np=4, slots=4, gpus=1, memory="2Gi"))["limits"]
        {'cpu': '4', 'memory': '8Gi', 'nvidia.com/gpu': '4'}
    """
    number, unit = re.fullmatch(r"(\d+)(\D+)", job.memory).groups()  # type: ignore[union-attr]  # Job has checked it
    wanted = {"cpu": str(job.cpus * job.slots), "memory": f"{int(number) * job.slots}{unit}"}
    wanted |= {GPU: str(job.gpus * job.slots)} if job.gpus else {}
    return {"limits": wanted, "requests": dict(wanted)}


def pod_security() -> Part:
    """Of all containers of a pod: who they are. Volumes can be read and written by their group."""
    who = {"runAsUser": USER, "runAsGroup": USER, "fsGroup": USER}
    return {"runAsNonRoot": True, **who, "seccompProfile": {"type": "RuntimeDefault"}}


def security() -> Part:
    """Of a container."""
    return {
        "allowPrivilegeEscalation": False,
        "privileged": False,
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def volumes(job: JobDescription, memory: str) -> list[Part]:
    """What is writable, and the job's own volumes.

    Folders on disk, a volume for each place: a TrainJob's mounts are a map by the volume's name. And memory, through
    which ranks of a pod exchange gradients.

    Args:
        job: the job.
        memory: the pod's, of which ``/dev/shm`` is a part.
    """
    memory = min(shm_size(job), memory, key=quantity)
    return [
        *({"name": name, "emptyDir": {"sizeLimit": _SCRATCH}} for name in _WRITTEN),
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": memory}},
        *own_volumes(job),
    ]


def shm_size(job: JobDescription) -> str:
    """Of a worker's ``/dev/shm``."""
    return job.shm_size or min(_SHM, resources(job)["limits"]["memory"], key=quantity)


def own_volumes(job: JobDescription) -> list[Part]:
    """Those that the job asks for."""
    found = [(f"volume-{i}", volume(each)) for i, each in enumerate(job.volumes)]
    return [{"name": name, _KINDS[each["kind"]][0]: {_KINDS[each["kind"]][1]: each["name"]}} for name, each in found]


def mounts(job: JobDescription) -> list[Part]:
    """Where volumes are."""
    places = {**_WRITTEN, "shm": "/dev/shm"}
    return [*({"name": name, "mountPath": path} for name, path in places.items()), *own_mounts(job)]


def own_mounts(job: JobDescription) -> list[Part]:
    """Where those are that the job asks for."""
    found = [(f"volume-{i}", volume(each)) for i, each in enumerate(job.volumes)]
    return [
        {"name": name, "mountPath": each["path"], **({"readOnly": True} if each["ro"] else {})} for name, each in found
    ]


def torchrun_environment(job: JobDescription, first: str) -> list[Part]:
    """What tells torchrun in a pod of an indexed Job who it is, and where the first one listens.

    Raises:
        LaunchError: the job sets one of torchrun's variables itself.
    """
    no_torchrun_variables(job)
    index = {"fieldRef": {"fieldPath": "metadata.annotations['batch.kubernetes.io/job-completion-index']"}}
    fixed = {
        "PET_NNODES": str(job.workers),
        "PET_NPROC_PER_NODE": str(job.slots),
        "PET_MASTER_ADDR": first,
        "PET_MASTER_PORT": "29400",
    }
    return [
        *({"name": name, "value": text} for name, text in fixed.items()),
        {"name": "PET_NODE_RANK", "valueFrom": index},
    ]


def no_torchrun_variables(job: JobDescription) -> None:
    """See to it that a job leaves torchrun's variables to those who start it.

    Raises:
        LaunchError: it sets one.
    """
    if own := [name for name in job.env if name.startswith("PET_")]:
        raise LaunchError(f"env has {own[0]}, but PET_ is for the variables of torchrun, which np and slots set.")


TORCHRUN = ["torchrun", "--no-python"]
"""It starts any command, and its variables tell the workbench all that it needs."""
