"""What Kubernetes' schemas do not ask of a pod, and we do: the policy "restricted", resources, probes, references."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

Spec = dict[str, Any]
_OURS = {"emptyDir", "secret", "configMap", "persistentVolumeClaim", "downwardAPI", "projected", "csi", "ephemeral"}
"""Kinds of volumes that "restricted" allows."""


def broken(spec: Spec, runs_for_ever: bool = False, host: Sequence[str] = ()) -> list[str]:
    """The rules that a pod's specification breaks, in words.

    Args:
        spec: the specification.
        runs_for_ever: its containers are to have a readiness probe.
        host: what of the host was asked for: ``hostNetwork``, ``hostPID``.
    """
    return [*_pod(spec, host), *(said for each in _containers(spec) for said in _container(spec, each, runs_for_ever))]


def references(spec: Spec) -> Iterator[tuple[str, str]]:
    """Kind and name of each ConfigMap and Secret that a pod needs."""
    for volume in spec.get("volumes", ()):
        if "configMap" in volume:
            yield "ConfigMap", volume["configMap"]["name"]
        if "secret" in volume:
            yield "Secret", volume["secret"]["secretName"]
    for container in _containers(spec):
        for each in container.get("env", ()):
            source = each.get("valueFrom", {})
            for key, kind in (("secretKeyRef", "Secret"), ("configMapKeyRef", "ConfigMap")):
                if key in source:
                    yield kind, source[key]["name"]
        for each in container.get("envFrom", ()):
            for key, kind in (("secretRef", "Secret"), ("configMapRef", "ConfigMap")):
                if key in each:
                    yield kind, each[key]["name"]


def _containers(spec: Spec) -> list[Spec]:
    return [*spec.get("initContainers", ()), *spec["containers"]]


def _pod(spec: Spec, host: Sequence[str]) -> Iterator[str]:
    security = spec.get("securityContext", {})
    if not security.get("runAsNonRoot") or security.get("runAsUser", 0) == 0 or security.get("runAsGroup", 0) == 0:
        yield "the pod may be root"
    if security.get("seccompProfile") != {"type": "RuntimeDefault"}:
        yield "the pod has no seccomp profile"
    if spec.get("automountServiceAccountToken") is not False:
        yield "the pod gets a token of the cluster"
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name) and name not in host:
            yield f"the pod has {name}"
    for volume in spec.get("volumes", ()):
        if kinds := set(volume) - {"name"} - _OURS:
            yield f"volume {volume['name']} is a {kinds.pop()}"
        if "emptyDir" in volume and "sizeLimit" not in volume["emptyDir"]:
            yield f"volume {volume['name']} may fill the node"
    names = [volume["name"] for volume in spec.get("volumes", ())]
    if len(names) != len(set(names)):
        yield "two volumes have one name"


def _container(spec: Spec, container: Spec, runs_for_ever: bool) -> Iterator[str]:
    name, security = container["name"], container.get("securityContext", {})
    wanted = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "runAsNonRoot": True}
    wanted |= {"capabilities": {"drop": ["ALL"]}, "seccompProfile": {"type": "RuntimeDefault"}}
    for key, value in wanted.items():
        if security.get(key) != value:
            yield f"{name}: {key} is {security.get(key)}"
    if security.get("privileged") or security.get("runAsUser") == 0:
        yield f"{name} is privileged"
    if not re.search(r":(?!latest$)[\w][\w.-]*$|@sha256:[0-9a-f]{64}$", container["image"]):
        yield f"{name}: the image {container['image']} is no certain one"
    for part in ("limits", "requests"):
        if missing := {"cpu", "memory"} - container.get("resources", {}).get(part, {}).keys():
            yield f"{name}: no {part} of {missing}"
    if runs_for_ever and "readinessProbe" not in container:
        yield f"{name}: no readiness probe"
    yield from _mounts(spec, container)


def _mounts(spec: Spec, container: Spec) -> Iterator[str]:
    volumes = {volume["name"] for volume in spec.get("volumes", ())}
    mounts = container.get("volumeMounts", [])
    places = [mount["mountPath"] for mount in mounts]
    for mount in mounts:
        if mount["name"] not in volumes:
            yield f"{container['name']}: {mount['mountPath']} is a mount of no volume"
    if len(places) != len(set(places)):
        yield f"{container['name']}: two mounts at one place"
    for needed in ("/tmp", "/dev/shm"):
        if needed not in places:
            yield f"{container['name']}: {needed} is not writable"
