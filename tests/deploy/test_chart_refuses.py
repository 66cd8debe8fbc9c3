"""Values that make no sense are refused before anything is made, each with a sentence that names the value."""

from __future__ import annotations

from typing import Any

import pytest
from charts import documents, helm, values

CORE = {"cpu": 1, "memory": "1Gi"}
IMAGE = {"repository": "a/b", "tag": "1"}
BAD: list[tuple[dict[str, Any], str]] = [
    ({"image": {"tag": "1"}}, "image.repository is empty: build the image"),
    ({"image": {"repository": "a/b"}}, "image.tag and image.digest are empty"),
    ({"image": {"repository": "a/b", "tag": "latest"}}, "image.tag is latest"),
    ({"image": {"repository": "a/b", "digest": "sha256:short"}}, "'/image/digest': 'sha256:short' does not match"),
    ({"worker": {"number": 0}}, "'/worker/number': minimum: got 0, want 1"),
    ({"worker": {"number": -2}}, "'/worker/number': minimum: got -2, want 1"),
    ({"worker": {"number": "two"}}, "'/worker/number': got string, want integer"),
    ({"worker": {"number": 2, "kind": "DaemonSet"}}, "'/worker/kind': value must be one of 'StatefulSet', 'Job'"),
    ({"worker": {"nubmer": 2}}, "'/worker': additional properties 'nubmer' not allowed"),
    ({"master": {"args": ["x"]}}, "master.args is now command, word by word"),
    ({"command": "python train.py"}, "'/command': got string, want array"),
    ({"resources": {"limits": {**CORE, "nvidia.com/gpu": 1}, "requests": CORE}, "worker": {"number": 1, "slots": 2}},
     "worker.slots is 2, but resources.limits has 1 of nvidia.com/gpu"),
    ({"resources": {"limits": {"cpu": 1, "memory": "1 GB"}, "requests": CORE}}, "'/resources/limits/memory': '1 GB'"),
    ({"resources": {"limits": {**CORE, "nvidia.com/gpu": 4}, "requests": {**CORE, "nvidia.com/gpu": 2}}},
     "resources.requests has 2 of nvidia.com/gpu, but resources.limits has 4: Kubernetes wants both the same"),
    ({"resources": {"limits": CORE, "requests": {**CORE, "nvidia.com/gpu": 2}}},
     "resources.requests has 2 of nvidia.com/gpu, but resources.limits has none"),
    ({"resources": {"limits": {**CORE, "nvidia.com/gpu": 0.5}, "requests": CORE}}, "/limits/nvidia.com~1gpu'"),
    ({"resources": {"limits": {**CORE, "gpu": 1}, "requests": CORE}}, "resources has gpu, which Kubernetes does"),
    ({"resources": {"limits": CORE, "requests": {"cpu": "1500m", "memory": "1Gi"}}},
     "resources.requests.cpu is 1500m, above resources.limits.cpu, 1"),
    ({"launcher": {"resources": {"limits": CORE, "requests": {"cpu": 1, "memory": "1025Mi"}}}},
     "launcher.resources.requests.memory is 1025Mi, above launcher.resources.limits.memory, 1Gi"),
    ({"jupyter": {"resources": {"limits": CORE, "requests": {"cpu": 2, "memory": "1Gi"}}}},
     "jupyter.resources.requests.cpu is 2, above jupyter.resources.limits.cpu, 1"),
    ({"shmSize": "5Gi"}, "shmSize is 5Gi, above resources.limits.memory, 4Gi"),
    ({"worker": {"number": 2, "kind": "Job", "extraContainers": [{"name": "a", "image": "a/b:1"}]}},
     "worker.extraContainers, and worker.kind is Job"),
    ({"worker": {"number": 2, "extraContainers": [{"name": "worker", "image": "a/b:1"}]}},
     "worker: worker is the name of a container that its pod has already"),
    ({"launcher": {"extraContainers": []}}, "'/launcher': additional properties 'extraContainers' not allowed"),
    ({"networkPolicy": {"dns": {"to": []}}}, "'/networkPolicy/dns/to': minItems: got 0, want 1"),
    ({"podDisruptionBudget": {"minAvailable": 3}}, "podDisruptionBudget.minAvailable is 3, but there are 2 workers"),
    ({"elastic": {"enabled": True, "min": 3, "max": 2}}, "elastic.min is 3 and elastic.max 2"),
    ({"elastic": {"enabled": True, "min": 1, "max": 4}, "worker": {"number": 5}}, "worker.number is 5, outside"),
    ({"elastic": {"enabled": True}, "command": []}, "elastic.enabled, but there is no command to run"),
    ({"ssh": {"port": 22}}, "'/ssh/port': minimum: got 22"),
    ({"ssh": {"hostKey": "ssh-ed25519 AAAA"}}, "ssh.hostKey is no private key"),
    ({"ssh": {"existingSecret": "a", "hostKey": "PRIVATE KEY"}}, "ssh.existingSecret and ssh.hostKey are both set"),
    ({"volumeMounts": [{"name": "data", "mountPath": "/data"}]}, "data is mounted at /data, but volumes has none"),
    ({"volumes": [{"name": "shm", "emptyDir": {}}]}, "shm is the name of a volume that the chart has itself"),
    ({"shmSize": "big"}, "'/shmSize': 'big' does not match"),
    ({"fullnameOverride": "Résumé"}, "'/fullnameOverride': 'Résumé' does not match"),
    ({"fullnameOverride": "a" * 41}, "'/fullnameOverride': maxLength: got 41, want 40"),
    ({"podSecurity": {"user": 0}}, "'/podSecurity/user': minimum: got 0, want 1"),
    ({"launcher": {"env": [{"name": "1A", "value": ""}]}}, "'/launcher/env/0/name': '1A' does not match"),
]  # fmt: skip


def test_bad_values_are_refused() -> None:
    """Helm renders nothing, and its error holds the sentence."""
    for told, said in BAD:
        with pytest.raises(helm().HelmError) as raised:
            documents({"image": IMAGE, "command": ["true"], **told})
        assert said in str(raised.value)


def test_a_release_whose_name_is_no_label_is_refused() -> None:
    """Helm allows one that begins with a digit; pods that are hosts do not."""
    with pytest.raises(helm().HelmError) as raised:
        documents(values(), release="1st")
    assert "1st-workbench is no name for pods" in str(raised.value)
