"""Pods without a cluster: what a kubelet and DNS do, as far as a pod sees it, with containers on hosts of the test bed.

From a pod's specification, verbatim: command, arguments, environment, user and groups, capabilities, privilege,
read-only root, volumes (emptyDir, Secret, ConfigMap; subPath, modes) and mounts, probes. A pod whose readiness probe
succeeds gets its names, in ``/etc/hosts`` of all pods; one that ends loses them.

What it leaves out: no scheduler, no API server, no RBAC, no NetworkPolicy, no limits of CPU and memory, no DNS server.
"""

from __future__ import annotations

import base64
import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from containers import Engine
from hosts import Hosts

Spec = dict[str, Any]
ALWAYS = "kubernetes.default"
_NAMESPACE = "ml"


@dataclass
class Pod:
    """A pod that was started.

    Args:
        name, service: its host name, and the headless Service that names it.
        host: number of the test host whose network it has.
        spec: its specification.
        folder: with its volumes, logs and hosts file.
    """

    name: str
    service: str
    host: int
    spec: Spec
    folder: Path
    starts: int = 0
    is_ready: bool = False
    process: subprocess.Popen[bytes] | None = None
    volumes: dict[str, Path] = field(default_factory=dict)

    @property
    def container(self) -> str:
        """The running container's name."""
        return f"{self.folder.parent.name}-{self.name}-{self.starts}"

    def text(self) -> str:
        """What it has said, since it was started first."""
        return "".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("*.log")))

    def wait_for(self, what: str, limit_s: float = 60.0, after: int = 0) -> float:
        """Until it has said something, after so many characters, while it runs; when that was seen."""
        until = time.monotonic() + limit_s
        while what not in self.text()[after:]:
            assert self.process is not None
            assert self.process.poll() is None or what in self.text()[after:], self.text()
            assert time.monotonic() < until, f"{self.name} has not said {what!r}: {self.text()}"
            time.sleep(0.02)
        return time.monotonic()


class Pods:
    """Pods on hosts of the test bed.

    Args:
        engine: with the image, which all of them use whatever image they name.
        hosts: each pod has the network of one.
        objects: Secrets and ConfigMaps that pods mount, by name: their files.
        folder: for everything.
    """

    def __init__(self, engine: Engine, hosts: Hosts, objects: dict[str, dict[str, bytes]], folder: Path) -> None:
        self._engine, self._hosts, self.objects, self.folder = engine, hosts, objects, folder
        self._pods: list[Pod] = []

    @staticmethod
    def files_of(documents: Sequence[Spec]) -> dict[str, dict[str, bytes]]:
        """Of rendered Secrets and ConfigMaps."""
        found = {}
        for each in documents:
            if each["kind"] == "Secret":
                found[each["metadata"]["name"]] = {k: base64.b64decode(text) for k, text in each["data"].items()}
            if each["kind"] == "ConfigMap":
                found[each["metadata"]["name"]] = {k: text.encode() for k, text in each["data"].items()}
        return found

    def start(self, name: str, service: str, host: int, spec: Spec) -> Pod:
        """Start a pod's first container; its init containers run to their end before, which they must reach."""
        pod = Pod(name, service, host, spec, self.folder / name)
        pod.folder.mkdir(mode=0o755)
        pod.volumes = {each["name"]: self._volume(pod, each) for each in spec["volumes"]}
        self._pods.append(pod)
        self._publish()
        for number, each in enumerate(spec.get("initContainers", ())):
            log = pod.folder / f"0-{number}.log"
            with log.open("wb") as file:
                code = subprocess.run(self._words(pod, each, "init"), stdout=file, stderr=file, timeout=120).returncode
            assert code == 0, log.read_text()
        self.start_again(pod)
        return pod

    def start_again(self, pod: Pod) -> None:
        """A new container in the same pod, as a kubelet starts it after one has ended."""
        assert pod.process is None or pod.process.poll() is not None
        pod.starts += 1
        (container,) = pod.spec["containers"]
        with (pod.folder / f"{pod.starts}.log").open("wb") as file:
            words = self._words(pod, container, pod.container)
            pod.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=file)

    def wait_until_ready(self, *pods: Pod, limit_s: float = 60.0) -> None:
        """Until the readiness probes succeed, as the pods' containers have them; then they are known by name."""
        until = time.monotonic() + limit_s
        for pod in pods:
            probe = pod.spec["containers"][0]["readinessProbe"]["exec"]["command"]
            while (done := self.run_in(pod, *probe)).returncode:
                assert pod.process is not None
                assert pod.process.poll() is None, pod.text()
                assert time.monotonic() < until, f"{pod.name} is not ready: {done.stderr}{pod.text()}"
                time.sleep(0.1)
            pod.is_ready = True
        self._publish()

    def run_in(self, pod: Pod, *command: str, limit_s: float = 30.0) -> subprocess.CompletedProcess[str]:
        """A command in a pod's container, as ``kubectl exec`` runs it."""
        words = self._engine.words_in(pod.container, *command)
        return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=limit_s)

    def lose(self, pod: Pod) -> None:
        """Kill a pod's container; its names go when a probe would have noticed."""
        self._engine.kill(pod.container)
        assert pod.process is not None
        pod.process.wait(timeout=30.0)
        pod.is_ready = False
        self._publish()

    def delete(self, pod: Pod) -> None:
        """End a pod as the API server has it done: no names at once, then its preStop hook, then SIGTERM."""
        pod.is_ready = False
        self._publish()
        hook = pod.spec["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        done = self.run_in(pod, *hook, limit_s=60.0)
        assert done.returncode == 0, done.stderr
        assert pod.process is not None
        pod.process.terminate()
        pod.process.wait(timeout=30.0)

    def add_file(self, volume: str, name: str, content: bytes) -> None:
        """One more in a volume of this name in all pods, as after a change of its ConfigMap."""
        for pod in self._pods:
            if volume in pod.volumes:
                (pod.volumes[volume] / name).write_bytes(content)

    def stop(self) -> None:
        """End all that run, as a kubelet does: by SIGTERM first."""
        for pod in self._pods:
            if pod.process and pod.process.poll() is None:
                pod.process.terminate()
        for pod in self._pods:
            if pod.process:
                try:
                    pod.process.wait(timeout=20.0)
                except subprocess.TimeoutExpired:
                    self._engine.kill(pod.container)
                    pod.process.wait(timeout=20.0)

    def _volume(self, pod: Pod, volume: Spec) -> Path:
        group = pod.spec["securityContext"]["fsGroup"]
        folder = pod.folder / "volumes" / volume["name"]
        folder.mkdir(parents=True)
        if "emptyDir" in volume:
            os.chown(folder, 0, group)
            folder.chmod(0o2777)
            return folder
        source = volume.get("secret") or volume["configMap"]
        files = self.objects[source.get("secretName") or source["name"]]
        chosen = {each["key"]: each["path"] for each in source.get("items", ())} or {name: name for name in files}
        for key, name in chosen.items():
            path = folder / name
            path.write_bytes(files[key])
            os.chown(path, 0, group)
            path.chmod(source.get("defaultMode", 0o644) | 0o440)  # a group of the pod may read what is mounted
        return folder

    def _words(self, pod: Pod, container: Spec, name: str) -> list[str]:
        security, group = container["securityContext"], pod.spec["securityContext"]
        options = [f"--name={name}", f"--hostname={pod.name}", "--read-only-tmpfs=false"]
        options += [f"--network=ns:{self._hosts.folder / self._hosts.names[pod.host]}.net"]
        options += [f"--volume={pod.folder / 'hosts'}:/etc/hosts:ro"]
        options += [f"--user={group['runAsUser']}:{group['runAsGroup']}", f"--group-add={group['fsGroup']}"]
        options += ["--read-only"] if security["readOnlyRootFilesystem"] else []
        options += [f"--cap-drop={each}" for each in security["capabilities"]["drop"]]
        options += [] if security["allowPrivilegeEscalation"] else ["--security-opt=no-new-privileges"]
        options += [f"--env={each['name']}={each['value']}" for each in container.get("env", ())]
        for mount in container["volumeMounts"]:
            if mount["mountPath"] == "/dev/shm":  # the engine gives one of its own, in memory as well
                continue
            path = pod.volumes[mount["name"]] / mount.get("subPath", "")
            if not path.exists():
                path.mkdir()
                path.chmod(0o2777)
            options.append(f"--volume={path}:{mount['mountPath']}{':ro' if mount.get('readOnly') else ''}")
        command = container.get("command", [])
        options += [f"--entrypoint={command[0]}"] if command else []
        return self._engine.words(*command[1:], *container.get("args", []), options=options)

    def _publish(self) -> None:
        """Write what DNS would say into each pod's hosts file, in place: it is mounted."""
        ready = [self._names(pod) for pod in self._pods if pod.is_ready]
        for pod in self._pods:
            lines = ["127.0.0.1 localhost", f"10.96.0.1 {ALWAYS}", self._names(pod, pod.name)]
            (pod.folder / "hosts").write_text("\n".join([*lines, *ready]) + "\n")

    def _names(self, pod: Pod, *others: str) -> str:
        name = f"{pod.name}.{pod.service}"
        return " ".join([self._hosts.addresses[pod.host], name, f"{name}.{_NAMESPACE}.svc", *others])
