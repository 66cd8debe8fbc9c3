"""The Helm chart rendered over a matrix of values: valid objects, restricted pods, whole references, right numbers.

Rendering is Helm's own, in a library; no cluster has seen these objects. ``tests/testbed/test_pods.py`` runs them.
"""

from __future__ import annotations

import json
import re
import subprocess
from typing import Any

import pytest
import yaml
from charts import CHART, Document, containers, documents, helm, one, pod_specs, rendered, values
from pod_rules import broken, references
from thorough import once_more

pytestmark = pytest.mark.long

kubernetes_validate = pytest.importorskip("kubernetes_validate")
VERSIONS = ("1.31", "1.37")
CORE = {"cpu": "8", "memory": "16Gi"}
GPU: dict[str, Any] = {"limits": {**CORE, "nvidia.com/gpu": 4}, "requests": CORE}
JOB, JUPYTER = {"kind": "Job"}, {"enabled": True}
PLACE = {
    "nodeSelector": {"pool": "gpu"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
        {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}}}]}},
    "priorityClassName": "high",
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone",
                                   "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {"matchLabels": {"a": "b"}}}],
    "runtimeClassName": "nvidia",
    "schedulerName": "volcano",
    "envFrom": [{"secretRef": {"name": "s"}}, {"configMapRef": {"name": "c"}, "prefix": "C_"}],
}  # fmt: skip
_LIMITS = {"cpu": "1", "memory": "64Mi"}
SIDE = {
    "name": "exporter",
    "image": "a/exporter:1",
    "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "runAsNonRoot": True,
                        "capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}},
    "resources": {"limits": _LIMITS, "requests": _LIMITS},
    "readinessProbe": {"httpGet": {"path": "/", "port": 9100}},
    "volumeMounts": [{"name": "scratch", "mountPath": "/tmp"}, {"name": "shm", "mountPath": "/dev/shm"}],
}  # fmt: skip
BESIDE = {"extraContainers": [SIDE], "extraInitContainers": [{**SIDE, "name": "proxy", "restartPolicy": "Always"}]}
BUDGET: dict[str, Any] = {"podDisruptionBudget": {"enabled": True}}
VOLUME: dict[str, Any] = {
    "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": "imagenet"}}],
    "volumeMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
}
KEY = "-----BEGIN EC PRIVATE KEY-----\nMHc=\n-----END EC PRIVATE KEY-----\n"
ENV = [{"name": "SEED", "value": "1"}, {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]
RULE = [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}], "ports": [{"port": 443, "protocol": "TCP"}]}]
FROM = [{"from": [{"namespaceSelector": {"matchLabels": {"team": "a"}}}]}]

MATRIX: dict[str, dict[str, Any]] = {
    "default": {},
    "one worker": {"worker": {"number": 1}},
    "many workers": {"worker": {"number": 128}},
    "slots said": {"worker": {"number": 2, "slots": 4}},
    "gpus": {"resources": GPU},
    "fewer slots than gpus": {"resources": GPU, "worker": {"number": 2, "slots": 2}},
    "other gpus": {"gpuResource": "amd.com/gpu", "resources": {"limits": {**CORE, "amd.com/gpu": 2}, "requests": CORE}},
    "ordered": {"worker": {"number": 3, "podManagementPolicy": "OrderedReady"}},
    "placed workers": {"worker": {"number": 2, **PLACE}},
    "placed launcher": {"launcher": PLACE},
    "placed notebook": {"jupyter": {**JUPYTER, **PLACE}},
    "worker env": {"worker": {"number": 2, "env": ENV}},
    "launcher env": {"launcher": {"env": ENV}},
    "notebook env": {"jupyter": {**JUPYTER, "env": ENV}},
    "queue": {"launcher": {"podLabels": {"kueue.x-k8s.io/queue-name": "team-a"}}},
    "annotations": {"worker": {"number": 2, "podAnnotations": {"a/b": "c"}, "podLabels": {"x": "y"}}},
    "job": {"worker": {"number": 2, **JOB}},
    "job with gpus": {"worker": {"number": 3, **JOB}, "resources": GPU},
    "job, started again": {"worker": {"number": 2, **JOB}, "launcher": {"backoffLimit": 3}},
    "job, placed": {"worker": {"number": 2, **JOB, **PLACE, "env": ENV}},
    "elastic": {"elastic": {"enabled": True, "min": 1, "max": 4}},
    "elastic, one size": {"elastic": {"enabled": True, "min": 2, "max": 2}},
    "elastic with gpus": {"elastic": {"enabled": True, "min": 1, "max": 8}, "resources": GPU},
    "elastic job": {"elastic": {"enabled": True, "min": 1, "max": 4}, "worker": {"number": 2, **JOB}},
    "notebook": {"jupyter": JUPYTER},
    "notebook alone": {"jupyter": JUPYTER, "command": []},
    "notebook with a service": {"jupyter": {**JUPYTER, "service": True}},
    "notebook with a token": {"jupyter": {**JUPYTER, "tokenSecret": "token"}},
    "notebook and elastic": {"jupyter": JUPYTER, "elastic": {"enabled": True, "min": 1, "max": 3}},
    "workers alone": {"command": []},
    "no policy": {"networkPolicy": {"enabled": False}},
    "policy with more": {"networkPolicy": {"enabled": True, "egress": RULE, "ingress": FROM}},
    "key of another": {"ssh": {"existingSecret": "mine"}},
    "key said": {"ssh": {"hostKey": KEY}},
    "port": {"ssh": {"port": 2300}},
    "port, elastic job": {"ssh": {"port": 2300}, "worker": {"number": 2, **JOB}, "elastic": {"enabled": True}},
    "volumes": VOLUME,
    "files": {"files": {"train.py": "print(1)\n", "config.toml": "a = 1"}},
    "files and volumes": {"files": {"train.py": "print(1)\n"}, **VOLUME},
    "digest": {"image": {"repository": "registry.example:5000/a/b", "digest": f"sha256:{'a' * 64}"}},
    "pull secret": {"image": {"repository": "a/b", "tag": "1", "pullSecrets": [{"name": "x"}], "pullPolicy": "Always"}},
    "names": {"nameOverride": "bench"},
    "full name": {"fullnameOverride": "resnet"},
    "long name": {"fullnameOverride": "a" * 40, "worker": {"number": 1000}},
    "account": {"serviceAccountName": "trainer"},
    "deadline": {"launcher": {"deadlineSeconds": 3600, "waitSeconds": 30, "args": ["--verbose"]}},
    "host's network": {"useHostNetwork": True},
    "host's processes": {"useHostPID": True},
    "other user": {"podSecurity": {"user": 4000, "group": 4000}},
    "sizes": {"shmSize": "16Gi", "scratchSize": "100Gi", "resources": GPU},
    "gpus requested": {"resources": {**GPU, "requests": {**CORE, "nvidia.com/gpu": "4"}}},
    "requests in other units": {
        "resources": {"limits": {"cpu": 2, "memory": "4Gi"}, "requests": {"cpu": "2000m", "memory": "4194304Ki"}}
    },
    "beside workers": {"worker": {"number": 2, **BESIDE, "annotations": {"a/b": "c"}}},
    "beside workers of a job": {"worker": {"number": 2, **JOB, "extraInitContainers": BESIDE["extraInitContainers"]}},
    "beside the launcher": {
        "launcher": {"extraInitContainers": BESIDE["extraInitContainers"], "annotations": {"a": "b"}}
    },
    "beside the notebook": {"jupyter": {**JUPYTER, **BESIDE}},
    "locked memory": {"podSecurity": {"capabilities": ["IPC_LOCK"]}},
    "budget": BUDGET,
    "budget of an elastic job": {**BUDGET, "elastic": {"enabled": True, "min": 1, "max": 4}},
    "budget said": {"podDisruptionBudget": {"enabled": True, "minAvailable": 1}},
    "budget of workers alone": {**BUDGET, "command": []},
    "DNS of OpenShift": {
        "networkPolicy": {
            "dns": {
                "ports": [5353],
                "to": [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "openshift-dns"}}}],
            }
        }
    },
    "numbers as words": {"command": ["python", "train.py", "--lr", 0.1, "--epochs", 3]},
}
# Each template with what it has branches for; a run that is thorough looks at all values.
USUAL = {
    "default",
    "gpus",
    "job, placed",
    "elastic job",
    "notebook with a service",
    "policy with more",
    "files and volumes",
}
USUAL |= {"key of another", "host's network", "long name", "beside workers", "locked memory", "budget", "workers alone"}


def valid(document: Document, version: str) -> None:
    """By Kubernetes' own schema, closed against unknown fields."""
    kubernetes_validate.validate(document, version, strict=True)


def expected_kinds(told: dict[str, Any]) -> list[str]:
    """What must come out, so that nothing is valid by being absent."""
    jupyter, worker = told.get("jupyter", {}), told.get("worker", {}).get("kind", "StatefulSet")
    kinds = ["ConfigMap", "Service", worker]
    kinds += ["Job"] if told.get("command", True) else []
    kinds += ["Deployment"] if jupyter else []
    kinds += ["Service"] if jupyter.get("service") else []
    kinds += ["ConfigMap"] if told.get("files") else []
    kinds += ["NetworkPolicy"] if told.get("networkPolicy", {}).get("enabled", True) else []
    if told.get("podDisruptionBudget"):
        kinds += ["PodDisruptionBudget"] * (1 + bool(told.get("command", True)))
    kinds += ["Secret"] if not told.get("ssh", {}).get("existingSecret") else []
    return sorted(kinds)


@pytest.mark.parametrize("name", [name if name in USUAL else once_more(name) for name in MATRIX])
def test_releases(name: str) -> None:
    """Objects are valid, pods restricted, references whole, selectors exact, scripts shell, names fit for DNS."""
    found = documents(values(**MATRIX[name]))
    objects_are_valid(name, found)
    pods_are_restricted_and_whole(name, found)
    selectors_find_their_pods(found)
    scripts_are_shell(found)
    names_fit_dns(name, found)


def objects_are_valid(name: str, found: list[Document]) -> None:
    """All that must be there is, nothing else, each by the schemas of an old and a new Kubernetes, with labels."""
    assert sorted(document["kind"] for document in found) == expected_kinds(MATRIX[name])
    assert len({(each["kind"], each["metadata"]["name"]) for each in found}) == len(found)
    for document in found:
        for version in VERSIONS:
            valid(document, version)
        assert document["metadata"]["labels"]["app.kubernetes.io/instance"] == "demo"


def pods_are_restricted_and_whole(name: str, found: list[Document]) -> None:
    """Rules that no schema holds: see ``pod_rules``. What pods name is in the release, or was said to be there."""
    told = MATRIX[name]
    host = [key for key, value in (("hostNetwork", "useHostNetwork"), ("hostPID", "useHostPID")) if told.get(value)]
    there = {(each["kind"], each["metadata"]["name"]) for each in found}
    there |= {("Secret", "mine"), ("Secret", "token"), ("Secret", "s"), ("ConfigMap", "c")}
    allowed = told.get("podSecurity", {}).get("capabilities", [])
    specs = list(pod_specs(found))
    assert len(specs) == sum(kind in ("StatefulSet", "Job", "Deployment") for kind in expected_kinds(told))
    for owner, spec in specs:
        wrong = broken(spec, runs_for_ever="launcher" not in owner, host=host)
        assert wrong == (escalations("worker", allowed) if allowed and "-worker" in owner else [])
        assert set(references(spec)) <= there


def escalations(name: str, capabilities: list[str]) -> list[str]:
    """What a container breaks that has capabilities, and nothing else."""
    has = {"drop": ["ALL"], "add": capabilities}
    return [f"{name}: allowPrivilegeEscalation is True", f"{name}: capabilities is {has}"]


def selectors_find_their_pods(found: list[Document]) -> None:
    """A Service, a StatefulSet, a Deployment, a budget and the policy select the pods that they are for alone."""
    labels = {
        document["metadata"]["name"]: document["spec"]["template"]["metadata"]["labels"]
        for document in found
        if document["kind"] in ("StatefulSet", "Job", "Deployment")
    }
    for document in found:
        spec, kind = document.get("spec", {}), document["kind"]
        own = document["metadata"]["name"]
        if kind == "Service":
            (chosen_owner,) = (each for each in labels if spec["selector"].items() <= labels[each].items())
            assert chosen_owner.startswith(own)
        elif kind == "PodDisruptionBudget":
            chosen = spec["selector"]["matchLabels"].items()
            (chosen_owner,) = (each for each in labels if chosen <= labels[each].items())
            assert chosen_owner.startswith(own)
        elif kind in ("StatefulSet", "Deployment"):
            chosen = spec["selector"]["matchLabels"].items()
            assert [each for each in labels if chosen <= labels[each].items()] == [own]
        elif kind == "NetworkPolicy":
            chosen = spec["podSelector"]["matchLabels"].items()
            assert all(chosen <= each.items() for each in labels.values())


def scripts_are_shell(found: list[Document]) -> None:
    """Each script of the release parses, and says which shell it is for."""
    job = one(found, "ConfigMap", "-job")
    scripts = {key: text for key, text in job["data"].items() if key.endswith(".sh")}
    assert "discover_hosts.sh" in scripts
    for text in scripts.values():
        assert text.startswith("#!/bin/sh\n")
        assert subprocess.run(["sh", "-n"], input=text, text=True).returncode == 0


def names_fit_dns(name: str, found: list[Document]) -> None:
    """The last worker's pod, whose name is its host name."""
    worker = next(name for name, _ in pod_specs(found) if "-worker" in name)
    most = max(MATRIX[name].get("worker", {}).get("number", 2), MATRIX[name].get("elastic", {}).get("max", 0))
    assert re.fullmatch(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", f"{worker}-{most - 1}")


def test_lint_has_nothing_against_it() -> None:
    """``helm lint --strict``: no error and no warning; a chart may do without an icon."""
    result = helm().lint(str(CHART), values(), strict=True)
    assert result["total_charts_linted"] == 1
    assert result["errors"] == []
    assert [each["error"] for each in result["messages"]] in ([], ["icon is recommended"])


def launcher_args(**told: Any) -> list[str]:
    """Of the launcher's container."""
    (container,) = one(documents(values(**told)), "Job", "-launcher-")["spec"]["template"]["spec"]["containers"]
    args: list[str] = container["args"]
    return args


@pytest.mark.parametrize(
    ("told", "slots"),
    [({}, 1), ({"resources": GPU}, 4), ({"worker": {"number": 2, "slots": 3}}, 3),
     ({"resources": GPU, "worker": {"number": 2, "slots": 2}}, 2)],
)  # fmt: skip
def test_slots_follow_the_gpus(told: dict[str, Any], slots: int) -> None:
    """As many as ``resources.limits`` has GPUs, or as was said: in the host file, for discovery, and in -np."""
    job = one(documents(values(**told)), "ConfigMap", "-job")["data"]
    assert job["hostfile"].splitlines() == [
        f"demo-workbench-worker-{i}.demo-workbench-worker slots={slots}" for i in range(2)
    ]
    assert f'echo "$name:{slots}"' in job["discover_hosts.sh"]
    args = launcher_args(**told)
    assert args[args.index("-np") + 1] == str(2 * slots)


def test_an_elastic_launcher_discovers() -> None:
    """It begins with the fewest ranks, has both limits, and asks the script instead of a file that knows no change."""
    told = {"elastic": {"enabled": True, "min": 2, "max": 5}, "worker": {"number": 3, "slots": 2}}
    args = launcher_args(**told)
    assert args[:8] == ["workbench", "run", "-np", "4", "--min-np", "4", "--max-np", "10"]
    assert args[8:-3] == ["--host-discovery-script", "/etc/workbench/job/discover_hosts.sh"]
    assert args[-3:] == ["--", "python", "train.py"]
    assert "hostfile" not in one(documents(values(**told)), "ConfigMap", "-job")["data"]


def test_the_launcher_is_no_slot_and_its_environment_no_worker_s() -> None:
    """Faults of stable/horovod: its master was a host of the job, and workers had the master's environment."""
    found = documents(values(launcher={"env": [{"name": "ONLY", "value": "launcher"}]}))
    assert "launcher" not in one(found, "ConfigMap", "-job")["data"]["hostfile"]
    worker = dict(pod_specs(found))["demo-workbench-worker"]
    assert not any(each["name"] == "ONLY" for each in containers(worker)[0].get("env", []))


def test_more_workers_leave_an_elastic_launcher_alone() -> None:
    """Its Job has the same name and specification after an upgrade; a new command makes a new Job."""
    elastic = {"enabled": True, "min": 1, "max": 4}
    jobs = [one(documents(values(elastic=elastic, worker={"number": n})), "Job", "-launcher-") for n in (2, 3)]
    assert jobs[0] == jobs[1]
    other = one(documents(values(elastic=elastic, command=["python", "b.py"])), "Job", "-launcher-")
    assert other["metadata"]["name"] != jobs[0]["metadata"]["name"]


def workers(**told: Any) -> Document:
    """The Job of workers."""
    return next(
        each
        for each in documents(values(**told))
        if each["kind"] == "Job" and each["metadata"]["labels"]["app.kubernetes.io/component"] == "worker"
    )


@pytest.mark.parametrize(
    "changed",
    [
        {"image": {"repository": "registry.example/workbench", "tag": "2"}},
        {"resources": GPU},
        {"podSecurity": {"user": 4000, "group": 4000}},
        {"worker": {"number": 2, **JOB, "env": ENV}},
    ],
)
def test_workers_of_a_job_can_be_upgraded(changed: dict[str, Any]) -> None:
    """A Job's template cannot be changed: one with another template has another name, with a launcher of its own.

    The launcher's scripts name the new pods, whose names are those of the new Job.
    """
    old = {"worker": {"number": 2, **JOB}}
    before, after = workers(**old), workers(**{**old, **changed})
    assert before["spec"]["template"] != after["spec"]["template"]
    assert before["metadata"]["name"] != after["metadata"]["name"]
    found = [documents(values(**told)) for told in (old, {**old, **changed})]
    launchers = [one(each, "Job", "-launcher-")["metadata"]["name"] for each in found]
    assert launchers[0] != launchers[1]
    service = one(found[1], "Service")["metadata"]["name"]
    assert after["spec"]["template"]["spec"]["subdomain"] == service
    hosts = one(found[1], "ConfigMap", "-job")["data"]["hostfile"].split()
    assert hosts[::2] == [f"{after['metadata']['name']}-{i}.{service}" for i in range(2)]


def test_more_workers_of_a_job_are_the_same_job() -> None:
    """Their number may be changed in place: name and template stay, and so does an elastic job's launcher."""
    elastic = {"enabled": True, "min": 1, "max": 4}
    jobs = [workers(worker={"number": n, **JOB}, elastic=elastic) for n in (2, 3)]
    assert jobs[0]["metadata"] == jobs[1]["metadata"]
    assert jobs[0]["spec"]["template"] == jobs[1]["spec"]["template"]
    launchers = [
        one(documents(values(worker={"number": n, **JOB}, elastic=elastic)), "Job", "-launcher-") for n in (2, 3)
    ]
    assert launchers[0] == launchers[1]


def test_nobody_but_dns_is_asked_at_its_port() -> None:
    """No rule of the policy lets packets out to anywhere."""
    policy = one(documents(values()), "NetworkPolicy")["spec"]
    assert all(rule.get("to") for rule in policy["egress"])
    (dns,) = (rule for rule in policy["egress"] if "ports" in rule)
    assert dns["to"] == [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
            "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
        }
    ]


def test_a_budget_keeps_what_the_job_needs() -> None:
    """All workers of a fixed job, the fewest of an elastic one, or as many as was said; and the launcher."""

    def least(**told: Any) -> list[int]:
        found = documents(values(**BUDGET | told))
        return [each["spec"]["minAvailable"] for each in found if each["kind"] == "PodDisruptionBudget"]

    assert least(worker={"number": 3}) == [3, 1]
    assert least(worker={"number": 3}, elastic={"enabled": True, "min": 2, "max": 4}) == [2, 1]
    assert least(worker={"number": 3}, podDisruptionBudget={"enabled": True, "minAvailable": 1}) == [1, 1]


def test_shared_memory_is_no_more_than_the_container_s_memory() -> None:
    """A worker has what was said; the launcher and JupyterLab no more than their limits."""
    found = dict(pod_specs(documents(values(shmSize="16Gi", resources=GPU, jupyter=JUPYTER))))
    sizes = {
        name: next(each["emptyDir"]["sizeLimit"] for each in spec["volumes"] if each["name"] == "shm")
        for name, spec in found.items()
    }
    assert {name.split("-")[2]: size for name, size in sizes.items()} == {
        "worker": "16Gi",
        "launcher": "1Gi",
        "jupyter": "4Gi",
    }


@pytest.mark.parametrize("part", ["worker", "launcher", "jupyter"])
def test_each_part_is_placed_as_it_says(part: str) -> None:
    """What a platform asks for stands in that part's pods, and in no others'."""
    told: dict[str, Any] = {"jupyter": dict(JUPYTER), "worker": {"number": 2}, "launcher": {}}
    told[part] = {**told[part], **PLACE}
    for name, spec in pod_specs(documents(values(**told))):
        found = {**spec, "envFrom": spec["containers"][0].get("envFrom")}
        wanted = PLACE if part in name else {}
        assert {key: found[key] for key in PLACE if found.get(key)} == wanted


def test_notes_say_what_can_be_done() -> None:
    """How to see the launcher's output, add a worker, reach the notebook; each command names this release."""
    told = values(jupyter=JUPYTER, elastic={"enabled": True, "min": 1, "max": 3})
    (notes,) = (text for name, text in rendered(told).items() if name.endswith("NOTES.txt"))
    assert "kubectl -n ml scale statefulset demo-workbench-worker --replicas=3" in notes
    assert "kubectl -n ml port-forward deploy/demo-workbench-jupyter 8888" in notes
    assert "helm -n ml uninstall demo" in notes


def test_a_generated_key_is_one(tmp_path: Any) -> None:
    """ssh-keygen reads it, and it can sign host keys."""
    import base64

    key = tmp_path / "id"
    key.write_bytes(base64.b64decode(one(documents(values()), "Secret")["data"]["id"]))
    key.chmod(0o600)
    done = subprocess.run(["ssh-keygen", "-y", "-P", "", "-f", str(key)], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()[0]) == (0, "ecdsa-sha2-nistp256"), done.stderr


# Every value of stable/horovod, in all its versions that this was compared with.
_IMAGE_KEYS = [f"{part}.image.{key}" for part in ("worker", "master") for key in ("repository", "tag", "pullPolicy")]
HOROVOD_VALUES = [
    *_IMAGE_KEYS, "worker.number", "worker.podManagementPolicy", "worker.privileged", "master.privileged",
    "master.args", "master.env", "resources", "ssh.port", "ssh.useSecrets", "ssh.hostKey", "ssh.hostKeyPub",
    "useHostNetwork", "useHostPID", "volumes", "volumeMounts", "nameOverride", "fullnameOverride",
    "annotations", "capabilities",
]  # fmt: skip


def test_every_value_of_stable_horovod_has_its_row() -> None:
    """In the README's table; and each name there that is said to be ours is a value."""
    text = (CHART / "README.md").read_text()
    rows = re.findall(r"^\| (.*?) \| (.*?) \|", text.partition("## Coming from stable/horovod")[2], re.MULTILINE)
    there = " ".join(row[0] for row in rows)
    for name in HOROVOD_VALUES:
        part, _, last = name.rpartition(".")
        named = f"`{name}`" in there or (f"`{part}.repository`" in there and f"`.{last}`" in there)
        assert named, name
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    for _, ours in rows:
        for name in re.findall(r"`([a-zA-Z.]+?)(?:\.…)?`", ours):
            part = defaults
            for key in name.split("."):
                part = part[key]


def test_values_and_their_schema_agree() -> None:
    """Each default is in the schema, each value of the schema has a default: but ``master``, which is refused."""
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    assert set(schema) - set(defaults) == {"master", "global"}
    assert set(defaults) <= set(schema)
    for part in ("image", "worker", "elastic", "launcher", "jupyter", "ssh", "podSecurity", "networkPolicy"):
        assert set(schema[part]["properties"]) == set(defaults[part]), part
