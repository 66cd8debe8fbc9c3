"""What ``workbench k8s`` writes: valid by the operators' definitions and Kubernetes' schemas, restricted.

And true to the job. ``crds/README.md`` says where the operators' definitions are from, and what is not in them.
"""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from charts import containers, documents, one, pod_specs
from crds import refused
from pod_rules import broken
from running import environment
from thorough import once_more

from workbench.cli.jobs.description import JobDescription
from workbench.cli.jobs.forms import MANIFESTS, as_yaml
from workbench.common.ports import listen
from workbench.errors import LaunchError

kubernetes_validate = pytest.importorskip("kubernetes_validate")
SCRIPT = Path(__file__).parents[1] / "testbed" / "scripts" / "pods_train.py"
VERSION = "1.37"
IMAGE, COMMAND = "registry.example:5000/team/workbench:2", ["python", "train.py", "--text", "$(HOME) for 5 $"]
JOBS: dict[str, dict[str, Any]] = {
    "one rank": {},
    "four": {"np": 4},
    "two by two": {"np": 4, "slots": 2},
    "gpus": {"np": 8, "slots": 4, "gpus": 1, "cpus": 8, "memory": "64Gi"},
    "two gpus a rank": {"np": 4, "slots": 2, "gpus": 2},
    "variables": {"np": 2, "env": {"SEED": "1", "EMPTY": "", "ODD": 'a "b" $(c)\n'}},
    "limit": {"np": 2, "time": "1-12:00:00"},
    "queue": {"np": 2, "queue": "team-a", "namespace": "ml"},
    "name": {"np": 2, "name": "resnet-50"},
    "digest": {"image": f"a/b@sha256:{'0' * 64}"},
    "tag and digest": {"image": f"a/b:1@sha256:{'0' * 64}"},
    "many": {"np": 1000, "slots": 8},
    "priority": {"np": 2, "priority": "high"},
    "elastic": {"np": 4, "slots": 2, "min_np": 2, "max_np": 8},
    "elastic by one": {"np": 2, "min_np": 1, "max_np": 3, "gpus": 1},
    "secret": {"np": 2, "ssh_secret": "keys"},
    "placed": {
        "np": 2,
        "node_selector": {"cloud.example/pool": "gpu", "zone": "a"},
        "tolerations": ["nvidia.com/gpu:NoSchedule", "team=a:NoExecute", "spot"],
        "pull_secrets": ["registry", "other"],
        "annotations": {"kueue.x-k8s.io/podset-required-topology": "cloud.example/rack", "note": "a b: c"},
    },
    "volumes": {
        "np": 4,
        "slots": 2,
        "volumes": [
            "imagenet:/data:ro",
            "imagenet:/again",
            "configmap/settings:/etc/more",
            "secret/token:/run/keys:ro",
        ],
    },
    "shm": {"np": 4, "slots": 4, "memory": "8Gi", "shm_size": "32Gi"},
    "little memory": {"np": 1, "memory": "512Mi"},
    "ttl": {"np": 2, "ttl": 600},
    "deleted at once": {"np": 2, "ttl": 0},
}
LACKS = {"trainjob": {"min_np", "priority", "ttl"}, "jobset": {"min_np"}}
USUAL = {"two gpus a rank", "variables", "elastic", "placed", "volumes", "shm"}
CASES = [(kind, name) for kind in MANIFESTS for name, told in JOBS.items() if not LACKS.get(kind, set()) & told.keys()]


def job(name: str) -> JobDescription:
    """A job of the matrix."""
    told: dict[str, Any] = JOBS[name]
    return JobDescription(COMMAND, **{"image": IMAGE, **told})


def made(kind: str, name: str) -> dict[str, Any]:
    """Its manifest, as it comes back from YAML."""
    found: dict[str, Any] = yaml.safe_load(as_yaml(MANIFESTS[kind](job(name))))
    return found


def pods_of(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """By name the pods' specifications; a TrainJob's as far as it says it, in the runtime's container."""
    spec = manifest["spec"]
    if manifest["kind"] == "MPIJob":
        return {name: each["template"]["spec"] for name, each in spec["mpiReplicaSpecs"].items()}
    if manifest["kind"] == "JobSet":
        (replicated,) = spec["replicatedJobs"]
        return {"worker": replicated["template"]["spec"]["template"]["spec"]}
    (patch,) = spec["runtimePatches"]
    (node,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
    pod, trainer = copy.deepcopy(node["template"]["spec"]["template"]["spec"]), spec["trainer"]
    told = {"image": trainer["image"], "resources": trainer["resourcesPerNode"], "env": trainer.get("env", [])}
    pod["containers"][0] |= {**told, "command": trainer["command"], "args": trainer["args"]}
    return {"node": pod}


OF_OPERATORS = [case for case in CASES if case[0] != "helm-values"]


@pytest.mark.parametrize(("kind", "name"), [case if case[1] in USUAL else once_more(*case) for case in OF_OPERATORS])
def test_manifests_are_valid_and_restricted(kind: str, name: str) -> None:
    """By the operator's schema, their pods by Kubernetes', and by our rules; a launcher alone has no probe."""
    manifest = made(kind, name)
    assert refused(kind, manifest) == []
    metadata = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": manifest["metadata"]}
    kubernetes_validate.validate(metadata, VERSION, strict=True)
    pods = pods_of(manifest)
    for each, spec in pods.items():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
        kubernetes_validate.validate(pod, VERSION, strict=True)
        if kind == "trainjob":  # what a TrainJob may not say: it is the runtime's
            spec = {**spec, "automountServiceAccountToken": False}
        assert broken(spec, runs_for_ever=each == "Worker") == []
    if kind == "jobset":
        (replicated,) = manifest["spec"]["replicatedJobs"]
        batch = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, **replicated["template"]}
        kubernetes_validate.validate(batch, VERSION, strict=True)


def test_manifests_are_true_to_the_job() -> None:
    """Ranks, workers, ranks of each, GPUs, command and variables are those that were asked for."""
    for kind, name in CASES:
        is_true_to_the_job(kind, name)


def is_true_to_the_job(kind: str, name: str) -> None:
    """Of one manifest."""
    wanted, manifest = job(name), made(kind, name)
    if kind == "helm-values":
        found = documents(manifest, release="any")
        manifest = one(found, "StatefulSet")
        workers, launcher = manifest["spec"]["replicas"], one(found, "Job", "-launcher-")["spec"]["template"]["spec"]
        data = one(found, "ConfigMap", "-job")["data"]
        assert f'echo "$name:{wanted.slots}"' in data["discover_hosts.sh"]
        worker = dict(pod_specs(found))[f"{wanted.name}-worker"]
        slots = wanted.slots
    else:
        spec, pods = manifest["spec"], pods_of(manifest)
        worker = pods.get("Worker") or pods.get("worker") or pods["node"]
        launcher = pods.get("Launcher", worker)
        workers, slots = {
            "mpijob": lambda: (spec["mpiReplicaSpecs"]["Worker"]["replicas"], spec["slotsPerWorker"]),
            "trainjob": lambda: (spec["trainer"]["numNodes"], spec["trainer"]["numProcPerNode"]),
            "jobset": lambda: (
                spec["replicatedJobs"][0]["template"]["spec"]["completions"],
                int(variables(worker)["PET_NPROC_PER_NODE"]),
            ),
        }[kind]()
    assert (workers, slots) == (wanted.workers, wanted.slots)
    assert [expanded(word) for word in launcher["containers"][0]["args"][-len(COMMAND) :]] == COMMAND
    assert wanted.env.items() <= variables(launcher).items()
    limits = worker["containers"][0]["resources"]["limits"]
    assert int(limits.get("nvidia.com/gpu", 0)) == wanted.gpus * wanted.slots
    assert int(limits["cpu"]) == wanted.cpus * wanted.slots


@pytest.mark.parametrize("kind", MANIFESTS)
def test_pods_are_where_and_with_what_was_asked_for(kind: str) -> None:
    """Nodes, taints, Secrets for the image, volumes and the size of /dev/shm: in all pods; annotations: of workers."""

    def specs(name: str) -> list[dict[str, Any]]:
        found = made(kind, name)
        if kind == "helm-values":
            return [spec for _, spec in pod_specs(documents(found, release="any"))]
        return list(pods_of(found).values())

    for spec in specs("placed"):
        assert spec["nodeSelector"] == {"cloud.example/pool": "gpu", "zone": "a"}
        assert spec["tolerations"] == [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "team", "operator": "Equal", "value": "a", "effect": "NoExecute"},
            {"key": "spot", "operator": "Exists"},
        ]
        assert spec["imagePullSecrets"] == [{"name": "registry"}, {"name": "other"}]
    for spec in specs("volumes"):
        mounted = {
            each["mountPath"]: (next(v for v in spec["volumes"] if v["name"] == each["name"]), "readOnly" in each)
            for each in spec["containers"][0]["volumeMounts"]
        }
        assert mounted["/data"][0]["persistentVolumeClaim"] == {"claimName": "imagenet"}
        assert mounted["/again"][0]["persistentVolumeClaim"] == {"claimName": "imagenet"}
        assert mounted["/etc/more"][0]["configMap"] == {"name": "settings"}
        assert mounted["/run/keys"][0]["secret"] == {"secretName": "token"}
        assert [mounted[path][1] for path in ("/data", "/again", "/etc/more", "/run/keys")] == [
            True,
            False,
            False,
            True,
        ]
    for name, size in (("shm", "32Gi"), ("little memory", "512Mi"), ("four", "1Gi")):
        sizes = [shm(spec) for spec in specs(name)]
        assert size in sizes
        assert set(sizes) <= {size, "1Gi"}  # a launcher's own limit
    wanted = JOBS["placed"]["annotations"]
    assert any(wanted.items() <= each.items() for each in annotations(made(kind, "placed")))


def annotations(part: Any) -> Iterator[dict[str, str]]:
    """All that a manifest has for pods: every mapping of this name below a specification."""
    for each in part.values() if isinstance(part, dict) else part if isinstance(part, list) else ():
        yield from annotations(each)
    if isinstance(part, dict):
        yield from (value for key, value in part.items() if key in ("annotations", "podAnnotations"))


def shm(spec: dict[str, Any]) -> str:
    """The size of a pod's /dev/shm."""
    (found,) = (each["emptyDir"]["sizeLimit"] for each in spec["volumes"] if each["name"] == "shm")
    return str(found)


def test_a_time_to_live_is_told() -> None:
    """In seconds, 0 as well; a TrainJob, which has no field for it, is refused."""
    for name, ttl in (("ttl", 600), ("deleted at once", 0)):
        assert made("mpijob", name)["spec"]["runPolicy"]["ttlSecondsAfterFinished"] == ttl
        assert made("jobset", name)["spec"]["ttlSecondsAfterFinished"] == ttl
        assert made("helm-values", name)["launcher"]["ttlSecondsAfterFinished"] == ttl
        with pytest.raises(LaunchError, match="a TrainJob has no such field"):
            made("trainjob", name)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"shm_size": "4Gi"}, r"shm_size is 4Gi, but a worker has 1 times 2Gi of memory"),
    ({"shm_size": "4 GB"}, r"shm_size is '4 GB'"),
    ({"ttl": -1}, r"ttl is -1"),
    ({"volumes": ["data"]}, r"volumes has 'data', but must be as"),
    ({"volumes": ["data:/data", "more:/data"]}, r"two are at /data"),
    ({"volumes": ["data:/tmp"]}, r"the image or the job itself has something at /tmp"),
    ({"volumes": ["data:/etc"]}, r"the image or the job itself has something at /etc"),
    ({"volumes": ["data:/a/../etc"]}, r"volumes has 'data:/a/../etc'"),
    ({"tolerations": ["gpu:Never"]}, r"tolerations has 'gpu:Never'"),
    ({"node_selector": {"a b": "c"}}, r"node_selector: a b=c is no label"),
    ({"node_selector": {"a": "b c"}}, r"node_selector: a=b c is no label"),
    ({"pull_secrets": ["A"]}, r"pull_secrets has 'A'"),
]


def test_what_a_server_would_refuse_is_refused_before() -> None:
    """With a sentence that names the value."""
    for told, said in REFUSED:
        with pytest.raises(LaunchError, match=said):
            JobDescription(COMMAND, image=IMAGE, **told)


@pytest.mark.parametrize("kind", ["trainjob", "jobset"])
def test_torchrun_s_variables_are_not_the_job_s(kind: str) -> None:
    """They would be twice in a list that has each name once, or be refused by the Trainer."""
    with pytest.raises(LaunchError, match="env has PET_NNODES"):
        MANIFESTS[kind](JobDescription(COMMAND, image=IMAGE, env={"PET_NNODES": "3"}))


def expanded(text: str) -> str:
    """What Kubernetes makes of it; a reference that it would put something in for is a failure."""
    assert not re.search(r"(?<!\$)(\$\$)*\$\(", text), text
    return text.replace("$$", "$")


def variables(spec: dict[str, Any]) -> dict[str, str]:
    """Of a pod's first container, those with a text."""
    return {each["name"]: expanded(each.get("value", "")) for each in containers(spec)[-1].get("env", [])}


def test_an_elastic_mpijob_asks_the_operator_s_script() -> None:
    """Which prints names alone: so the launcher is told the slots, and begins with those that are there."""
    args = pods_of(made("mpijob", "elastic"))["Launcher"]["containers"][0]["args"]
    words = "workbench run -np 4 --min-np 2 --max-np 8 --host-discovery-script /etc/mpi/discover_hosts.sh"
    assert " ".join(args[:-5]) == f"{words} --slots-per-host 2"


def test_queue_and_limit_are_told() -> None:
    """Kueue's label on each object, and the limit in seconds, each where the engine has it."""
    for kind in ("mpijob", "trainjob", "jobset"):
        assert made(kind, "queue")["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "team-a"}
        assert made(kind, "queue")["metadata"]["namespace"] == "ml"
    limit = 36 * 3600
    assert made("mpijob", "limit")["spec"]["runPolicy"]["activeDeadlineSeconds"] == limit
    assert made("trainjob", "limit")["spec"]["activeDeadlineSeconds"] == limit
    (replicated,) = made("jobset", "limit")["spec"]["replicatedJobs"]
    assert replicated["template"]["spec"]["activeDeadlineSeconds"] == limit
    assert made("helm-values", "limit")["launcher"]["deadlineSeconds"] == limit


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("mpijob", ("spec", "mpiImplementation"), "mpich"),
        ("mpijob", ("spec", "slots"), 2),
        ("mpijob", ("spec", "mpiReplicaSpecs", "Worker", "replicas"), "2"),
        ("trainjob", ("spec", "trainer", "numNodes"), "2"),
        ("trainjob", ("spec", "podTemplateOverrides"), []),
        ("trainjob", ("spec", "trainer", "env"), [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]),
        ("jobset", ("spec", "replicatedJobs"), [{"name": "worker"}]),
        ("jobset", ("apiVersion",), "jobset.x-k8s.io/v1"),
    ],
)
def test_the_schemas_find_what_is_wrong(kind: str, path: tuple[str, ...], value: Any) -> None:
    """A valid manifest with one thing changed is refused: the schemas are not empty."""
    manifest = made(kind, "two by two")
    assert refused(kind, manifest) == []
    part = manifest
    for key in path[:-1]:
        part = part[key]
    part[path[-1]] = value
    assert len(refused(kind, manifest)) == 1


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.timeout(150)
def test_a_jobset_s_pods_are_one_job() -> None:
    """Two processes with the variables and the words of its two pods train on four ranks: torchrun's are enough."""
    pytest.importorskip("torch")
    wanted = JobDescription([sys.executable, str(SCRIPT)], np=4, slots=2, image=IMAGE)
    spec = pods_of(MANIFESTS["jobset"](wanted))["worker"]
    (container,) = spec["containers"]
    with listen("127.0.0.1") as free:
        port = str(free.getsockname()[1])
    told = variables(spec) | {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": port}
    running = [
        subprocess.Popen(
            [str(Path(sys.executable).parent / container["args"][0]), *container["args"][1:]],
            env=environment() | told | {"PET_NODE_RANK": str(index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for index in range(2)
    ]
    texts = [process.communicate(timeout=120)[0] for process in running]
    assert [process.returncode for process in running] == [0, 0], texts
    assert sum(text.count("weights [") for text in texts) == 1
