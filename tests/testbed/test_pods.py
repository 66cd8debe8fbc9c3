"""The rendered chart and an MPIJob run as pods: their containers, on hosts of the test bed. See ``pods.py``.

Commands, arguments, environment, scripts, keys, mounts, user, read-only root and probes are taken verbatim from what
Helm and ``workbench k8s`` give. No scheduler, no API server and no RBAC was exercised, and a hosts file stands for DNS.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from charts import Document, documents, one, values
from containers import Engine, built
from hosts import Hosts
from namespaces import CannotMakeHosts
from pods import Pod, Pods
from running import environment

from workbench.cli.jobs.description import JobDescription
from workbench.cli.jobs.operators import mpijob

ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "scripts"
TRAIN = "/etc/workbench/files/train.py"
LAUNCHER = 3  # the test host of the launcher; workers have those before
EXACT = 1e-12

pytestmark = [
    pytest.mark.integration,
    pytest.mark.parallel,
    pytest.mark.slow,
    pytest.mark.pods,
    pytest.mark.thorough,
    pytest.mark.timeout(1200),  # the first test builds the image
]


@pytest.fixture(scope="module")
def image() -> Iterator[Engine]:
    """With torch and JupyterLab."""
    with built(ROOT, EXTRAS="torch,lab") as engine:
        yield engine


class Cluster:
    """Starts what was rendered on four test hosts."""

    def __init__(self, image: Engine, hosts: Hosts, folder: Path) -> None:
        self._image, self._hosts, self._folder = image, hosts, folder
        self.pods = Pods(image, hosts, {}, folder)

    def load(self, found: Sequence[Document]) -> None:
        """Take over Secrets and ConfigMaps, as the API server would."""
        self.pods.objects |= Pods.files_of(found)

    def workers(self, found: list[Document], numbers: Sequence[int], kind: str = "StatefulSet") -> list[Pod]:
        """Workers of these indices, ready."""
        owner, service = one(found, kind, "-worker"), one(found, "Service", "-worker")["metadata"]["name"]
        name, spec = owner["metadata"]["name"], owner["spec"]["template"]["spec"]
        made = [self.pods.start(f"{name}-{i}", service, i, spec) for i in numbers]
        self.pods.wait_until_ready(*made)
        return made

    def launcher(self, found: list[Document]) -> Pod:
        """The launcher, with its init container before it."""
        job = one(found, "Job", "-launcher-")
        return self.pods.start("launcher", "none", LAUNCHER, job["spec"]["template"]["spec"])


@pytest.fixture
def cluster(image: Engine, tmp_path: Path) -> Iterator[Cluster]:
    """On hosts wb1 to wb4."""
    faulthandler.cancel_dump_traceback_later()  # each step has a deadline, and shows what the pods have said
    with contextlib.ExitStack() as stack:
        hosts = Hosts(4)
        try:
            stack.enter_context(hosts)
        except CannotMakeHosts as reason:
            pytest.skip(str(reason))
        made = Cluster(image, hosts, tmp_path)
        stack.callback(made.pods.stop)
        for folder in (tmp_path, *tmp_path.parents[:2]):
            folder.chmod(0o755)  # a pod's user reads what is mounted
        yield made


def ended(pod: Pod, limit_s: float = 120.0) -> str:
    """What a pod has said, which must end well."""
    assert pod.process is not None
    assert pod.process.wait(timeout=limit_s) == 0, pod.text()
    return pod.text()


def weights(text: str) -> list[float]:
    """What rank 0 has printed at its end."""
    found = re.findall(r"weights (\[.*\])", text)
    assert len(found) == 1, text
    numbers: list[float] = json.loads(found[0])
    return numbers


def serial(script: Path) -> list[float]:
    """The weights that one rank comes to, on this machine."""
    launcher = [sys.executable, "-m", "workbench.cli.main", "run", "-np", "1", "--gloo", "--"]
    words = [*launcher, sys.executable, str(script), "fast"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment())
    assert done.returncode == 0, done.stdout + done.stderr
    return weights(done.stdout)


def largest_difference(some: list[float], others: list[float]) -> float:
    """Between two sets of weights."""
    assert len(some) == len(others) > 100
    return max(abs(one - other) for one, other in zip(some, others, strict=True))


def told(script: str, **others: Any) -> dict[str, Any]:
    """Values for a training script."""
    files = {"train.py": (SCRIPTS / script).read_text()}
    return values(command=["python", TRAIN], files=files, **others)


def test_four_ranks_train_as_one(cluster: Cluster) -> None:
    """Two workers with two ranks each, by the host file: the weights are those of the serial run."""
    found = documents(told("pods_train.py", worker={"number": 2, "slots": 2}))
    cluster.load(found)
    cluster.workers(found, [0, 1])
    begun = time.monotonic()
    launcher = cluster.launcher(found)
    first = launcher.wait_for("first step") - begun
    text = ended(launcher)
    assert "2 workers are ready" in text
    assert largest_difference(weights(text), serial(SCRIPTS / "pods_train.py")) < EXACT
    print(f"from pods ready to first step: {first:.1f} s")


def test_workers_come_and_go(cluster: Cluster) -> None:
    """One of two is killed and comes back, a third is added, one is deleted: the weights are as if nothing had been.

    The ranks of the one that is deleted leave at a commit: none of them is lost.
    """
    elastic = {"enabled": True, "min": 1, "max": 3}
    found = documents(told("pods_elastic.py", worker={"number": 2, "slots": 2}, elastic=elastic))
    cluster.load(found)
    second = cluster.workers(found, [0, 1])[1]
    launcher = cluster.launcher(found)
    launcher.wait_for("begins with 4 at")
    cluster.pods.lose(second)
    launcher.wait_for("begins with 2 at")
    so_far = len(launcher.text())
    cluster.pods.start_again(second)
    cluster.pods.wait_until_ready(second)
    launcher.wait_for("begins with 4 at", 120.0, after=so_far)
    cluster.workers(found, [2])
    launcher.wait_for("begins with 6 at", 120.0)
    so_far = len(launcher.text())
    cluster.pods.delete(second)
    launcher.wait_for("begins with 4 at", after=so_far)
    assert "lost" not in launcher.text()[so_far:], launcher.text()
    cluster.pods.add_file("files", "train.py.fast", b"")
    assert largest_difference(weights(ended(launcher)), serial(SCRIPTS / "pods_elastic.py")) < EXACT


def test_an_indexed_job_gives_its_pods_back(cluster: Cluster) -> None:
    """On another port than 2222; when the launcher has ended the workers end by themselves, and well."""
    found = documents(told("pods_train.py", worker={"number": 2, "kind": "Job"}, ssh={"port": 2300}))
    cluster.load(found)
    workers = cluster.workers(found, [0, 1], kind="Job")
    ended(cluster.launcher(found))
    for worker in workers:
        assert "port 2300" in ended(worker, 30.0)


def test_the_launcher_says_who_is_not_ready(cluster: Cluster) -> None:
    """Its init container gives up at the deadline, with the command that shows why."""
    found = documents(told("pods_train.py", worker={"number": 2}, launcher={"waitSeconds": 2}))
    cluster.load(found)
    cluster.workers(found, [0])
    with pytest.raises(AssertionError) as raised:
        cluster.launcher(found)
    assert "After 2 s 1 of 2 workers are ready; not yet: demo-workbench-worker-1. " in str(raised.value)
    assert "kubectl -n ml describe pod demo-workbench-worker-1\n" in str(raised.value)


def test_the_notebook_is_a_launcher(cluster: Cluster) -> None:
    """JupyterLab's pod is ready, and ``cluster.up()`` in it starts its engines on the workers."""
    found = documents(values(command=[], jupyter={"enabled": True}, worker={"number": 2}))
    cluster.load(found)
    cluster.workers(found, [0, 1])
    spec = one(found, "Deployment")["spec"]["template"]["spec"]
    lab = cluster.pods.start("lab", "none", LAUNCHER, spec)
    cluster.pods.wait_until_ready(lab)
    done = cluster.pods.run_in(lab, "python", "-c", (SCRIPTS / "pods_notebook.py").read_text(), limit_s=120.0)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split()[-2:] == ["demo-workbench-worker-0", "demo-workbench-worker-1"]


def test_an_mpijob(cluster: Cluster) -> None:
    """With what the MPI operator adds to its pods: a key of its own kind, the host file, names, variables."""
    job = mpijob(JobDescription(["python", TRAIN], np=4, slots=2, name="mnist", image="registry.example/workbench:1"))
    operate(cluster, job, "pods_train.py")
    mpi_workers(cluster, job, [0, 1])
    text = ended(mpi_launcher(cluster, job))
    assert largest_difference(weights(text), serial(SCRIPTS / "pods_train.py")) < EXACT


def test_an_elastic_mpijob(cluster: Cluster) -> None:
    """The operator's discovery script names one worker, then two: the second joins the training."""
    image = "registry.example/workbench:1"
    job = mpijob(JobDescription(["python", TRAIN], np=2, slots=2, min_np=2, max_np=4, name="mnist", image=image))
    operate(cluster, job, "pods_elastic.py")
    mpi_workers(cluster, job, [0])
    launcher = mpi_launcher(cluster, job)
    launcher.wait_for("begins with 2 at")
    mpi_workers(cluster, job, [1])
    cluster.pods.add_file("mpi-job-config", "discover_hosts.sh", discovery([0, 1]))
    launcher.wait_for("begins with 4 at", 120.0)
    cluster.pods.add_file("files", "train.py.fast", b"")
    assert largest_difference(weights(ended(launcher)), serial(SCRIPTS / "pods_elastic.py")) < EXACT


def operate(cluster: Cluster, job: Document, script: str) -> None:
    """What the MPI operator makes of a job: its pods' volumes, a Secret, a ConfigMap."""
    for replicas in job["spec"]["mpiReplicaSpecs"].values():
        as_operator(replicas["template"]["spec"], job)
    number = job["spec"]["mpiReplicaSpecs"]["Worker"]["replicas"]
    cluster.pods.objects |= operator_s(job, number, cluster.pods.folder)
    cluster.pods.objects["files"] = {"train.py": (SCRIPTS / script).read_bytes()}


def mpi_workers(cluster: Cluster, job: Document, numbers: Sequence[int]) -> None:
    """Workers of these indices, ready."""
    spec = job["spec"]["mpiReplicaSpecs"]["Worker"]["template"]["spec"]
    made = [cluster.pods.start(f"mnist-worker-{i}", "mnist", i, spec) for i in numbers]
    cluster.pods.wait_until_ready(*made)


def mpi_launcher(cluster: Cluster, job: Document) -> Pod:
    """The launcher."""
    spec = job["spec"]["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]
    return cluster.pods.start("mnist-launcher", "mnist", LAUNCHER, spec)


def discovery(numbers: Sequence[int]) -> bytes:
    """The operator's script: names of the workers that run, without slots."""
    return "".join(["#!/bin/sh\n", *(f"echo mnist-worker-{i}.mnist.ml.svc\n" for i in numbers)]).encode()


def as_operator(spec: Document, job: Document) -> None:
    """What the operator adds to a pod; and the script, which an image would hold."""
    (container,) = spec["containers"]
    keys = [("ssh-privatekey", "id_rsa"), ("ssh-publickey", "id_rsa.pub"), ("ssh-publickey", "authorized_keys")]
    items = [{"key": key, "path": path} for key, path in keys]
    spec["volumes"] = [
        *spec["volumes"],
        {"name": "ssh-auth", "secret": {"secretName": "mnist-ssh", "items": items}},
        {"name": "mpi-job-config", "configMap": {"name": "mnist-config", "defaultMode": 0o555}},
        {"name": "files", "configMap": {"name": "files"}},
    ]
    container["volumeMounts"] = [
        *container["volumeMounts"],
        {"name": "ssh-auth", "mountPath": job["spec"]["sshAuthMountPath"]},
        {"name": "mpi-job-config", "mountPath": "/etc/mpi"},
        {"name": "files", "mountPath": "/etc/workbench/files"},
    ]
    if container["name"] == "launcher":
        added = {"K_MPI_JOB_ROLE": "launcher", "HYDRA_HOST_FILE": "/etc/mpi/hostfile", "NVIDIA_VISIBLE_DEVICES": ""}
        container["env"] = [*container.get("env", ()), *({"name": k, "value": text} for k, text in added.items())]


def operator_s(job: Document, number: int, folder: Path) -> dict[str, dict[str, bytes]]:
    """The Secret and the ConfigMap: an ECDSA key on P-521 as PEM, MPICH's host file, and the discovery script."""
    key = folder / "operator_key"
    make = ["ssh-keygen", "-q", "-t", "ecdsa", "-b", "521", "-m", "PEM", "-N", "", "-f", str(key)]
    subprocess.run(make, check=True)
    slots = job["spec"]["slotsPerWorker"]
    hosts = "".join(f"mnist-worker-{i}.mnist.ml.svc:{slots}\n" for i in range(number))
    return {
        "mnist-ssh": {"ssh-privatekey": key.read_bytes(), "ssh-publickey": key.with_suffix(".pub").read_bytes()},
        "mnist-config": {"hostfile": hosts.encode(), "discover_hosts.sh": discovery(range(number))},
    }
