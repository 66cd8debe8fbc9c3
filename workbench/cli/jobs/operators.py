"""Jobs for operators of Kubernetes.

1. An MPIJob, for Kubeflow's MPI operator: ``kubeflow.org/v2beta1``. The operator makes the workers' pods, a key for the
   job, and ``/etc/mpi/hostfile`` in the launcher; our launcher reads that, and reaches the workers by ssh with that
   key. No MPI is needed for it.
2. A JobSet, ``jobset.x-k8s.io/v1alpha2``: equal pods, each with a torchrun that starts its ranks. It needs no ssh.
3. A TrainJob, for Kubeflow's Trainer: ``trainer.kubeflow.org/v1alpha1``, on its runtime ``torch-distributed``. By
   torch's policy, for the MPI policy takes Open MPI only: the Trainer sets torchrun's variables in each pod.
"""

from __future__ import annotations

from typing import Any

from workbench.cli.jobs import pods
from workbench.cli.jobs.description import JobDescription, fixed_size, run_words, seconds
from workbench.errors import LaunchError

_HOSTFILE, _DISCOVERY = "/etc/mpi/hostfile", "/etc/mpi/discover_hosts.sh"
_LONGEST, _SUFFIX = 63, len("-worker-0-")
_RANDOM = 6  # -x1y2z, which ends a pod's name
_RUNTIME, _NODE = "torch-distributed", "node"  # the Trainer's runtime, and the name of its job and container
_MANAGER = "workbench/k8s"


def mpijob(job: JobDescription) -> dict[str, Any]:
    """The MPIJob.

    An elastic job asks the operator's discovery script, which names hosts without slots; more workers, by
    ``kubectl patch``, join while it runs.

    Example:
        >>> made = mpijob(JobDescription(["python", "train.py"], np=4, slots=2, image="workbench:1"))
        >>> made["spec"]["slotsPerWorker"], made["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]
        (2, 2)
    """
    hosts = ["--hostfile", _HOSTFILE]
    if job.is_elastic:
        hosts = ["--host-discovery-script", _DISCOVERY, "--slots-per-host", str(job.slots)]
    policy = {"cleanPodPolicy": "Running", "backoffLimit": 0, **_deadline(job), **_kept(job)}
    launcher = pods.pod(job, [pods.launcher(job, run_words(job, *hosts))])
    worker = pods.template(job, pods.pod(job, [pods.worker(job)]))
    spec = {
        "slotsPerWorker": job.slots,
        "mpiImplementation": "MPICH",  # its host file has the form name:slots
        "launcherCreationPolicy": "WaitForWorkersReady",
        "sshAuthMountPath": pods.KEYS,  # by default /root/.ssh, which only root reads
        "runPolicy": policy,
        "mpiReplicaSpecs": {
            "Launcher": {"replicas": 1, "restartPolicy": "Never", "template": {"spec": launcher}},
            "Worker": {"replicas": job.workers, "restartPolicy": "OnFailure", "template": worker},
        },
    }
    return _manifest(job, "MPIJob", "kubeflow.org/v2beta1", spec)


def jobset(job: JobDescription) -> dict[str, Any]:
    """The JobSet.

    Raises:
        LaunchError: the job is elastic, its name is too long for its pods', or it sets torchrun's variables.

    Example:
        >>> made = jobset(JobDescription(["python", "train.py"], np=4, slots=2, image="workbench:1"))
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
        **_deadline(job),
    }
    spec = {
        "network": {"enableDNSHostnames": True, "subdomain": job.name},
        **_kept(job),
        "failurePolicy": {"maxRestarts": 0},
        "replicatedJobs": [{"name": "worker", "replicas": 1, "template": {"spec": indexed}}],
    }
    return _manifest(job, "JobSet", "jobset.x-k8s.io/v1alpha2", spec)


def trainjob(job: JobDescription) -> dict[str, Any]:
    """The TrainJob.

    Raises:
        LaunchError: the job is elastic, sets torchrun's variables, or has what a TrainJob has no field for: a priority
            class (pods have the runtime's), a time to live.

    Example:
        >>> made = trainjob(JobDescription(["python", "train.py"], np=4, slots=2, image="workbench:1"))
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
    trainer = {
        "image": pods.image(job),
        "command": pods.TORCHRUN,
        "args": pods.literal(job.command),
        "numNodes": job.workers,
        "numProcPerNode": job.slots,
        "resourcesPerNode": pods.resources(job),
        **pods.environment(job),
    }
    spec = {
        "runtimeRef": {"name": _RUNTIME},
        **_deadline(job),
        "trainer": trainer,
        "runtimePatches": [{"manager": _MANAGER, "trainingRuntimeSpec": _patch(job)}],
    }
    return _manifest(job, "TrainJob", "trainer.kubeflow.org/v1alpha1", spec)


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


def _manifest(job: JobDescription, kind: str, version: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": pods.metadata(job), "spec": spec}


def _deadline(job: JobDescription) -> dict[str, Any]:
    return {"activeDeadlineSeconds": limit} if (limit := seconds(job.time)) else {}


def _kept(job: JobDescription) -> dict[str, Any]:
    return {} if job.ttl is None else {"ttlSecondsAfterFinished": job.ttl}
