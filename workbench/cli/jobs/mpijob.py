"""An MPIJob, for Kubeflow's MPI operator: ``kubeflow.org/v2beta1``.

The operator makes the workers' pods, a key for the job, and ``/etc/mpi/hostfile`` in the launcher; our launcher reads
that, and reaches the workers by ssh with that key. No MPI is needed for it.
"""

from __future__ import annotations

from typing import Any

from workbench.cli.jobs import pods
from workbench.cli.jobs.description import JobDescription, run_words, seconds

_HOSTFILE, _DISCOVERY = "/etc/mpi/hostfile", "/etc/mpi/discover_hosts.sh"


def manifest(job: JobDescription) -> dict[str, Any]:
    """The MPIJob.

    An elastic job asks the operator's discovery script, which names hosts without slots; more workers, by
    ``kubectl patch``, join while it runs.

    Example:
        >>> made = manifest(JobDescription(["python", "train.py"], np=4, slots=2, image="workbench:1"))
        >>> made["spec"]["slotsPerWorker"], made["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]
        (2, 2)
    """
    hosts = ["--hostfile", _HOSTFILE]
    if job.is_elastic:
        hosts = ["--host-discovery-script", _DISCOVERY, "--slots-per-host", str(job.slots)]
    policy: dict[str, Any] = {"cleanPodPolicy": "Running", "backoffLimit": 0}
    if limit := seconds(job.time):
        policy["activeDeadlineSeconds"] = limit
    if job.ttl is not None:
        policy["ttlSecondsAfterFinished"] = job.ttl
    launcher = pods.pod(job, [pods.launcher(job, run_words(job, *hosts))])
    worker = pods.pod(job, [pods.worker(job)])
    return {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": pods.metadata(job),
        "spec": {
            "slotsPerWorker": job.slots,
            "mpiImplementation": "MPICH",  # its host file has the form name:slots
            "launcherCreationPolicy": "WaitForWorkersReady",
            "sshAuthMountPath": pods.KEYS,  # by default /root/.ssh, which only root reads
            "runPolicy": policy,
            "mpiReplicaSpecs": {
                "Launcher": _replicas(1, "Never", {"spec": launcher}),
                "Worker": _replicas(job.workers, "OnFailure", pods.template(job, worker)),
            },
        },
    }


def _replicas(number: int, restart: str, template: dict[str, Any]) -> dict[str, Any]:
    return {"replicas": number, "restartPolicy": restart, "template": template}
