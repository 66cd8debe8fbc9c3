"""A Ray cluster for tests: a node on each host of the test bed, where nobody else reaches it."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import psutil
from hosts import Hosts
from running import environment

PORT = 46379
# Of Ray's agents, on each host. Where Ray chooses them, a node gives up if an agent has not told its own in 15 s.
_PORTS = [
    "--dashboard-agent-grpc-port=46381",
    "--dashboard-agent-listen-port=46382",
    "--metrics-export-port=46383",
    "--runtime-env-agent-port=46384",
]
_RAY = Path(sys.executable).with_name("ray")
_UP_WITHIN_S, _DOWN_WITHIN_S = 90.0, 20.0


class Nodes:
    """Ray's nodes on hosts; the head is on the first one.

    Args:
        hosts: of the test bed.
        cpus: that each node has, for Ray.

    Attributes:
        env: of whoever connects.
    """

    def __init__(self, hosts: Hosts, cpus: int = 2) -> None:
        self.hosts, self._cpus = hosts, cpus
        self._folder = Path(tempfile.mkdtemp(prefix="wb-ray-", dir="/tmp"))  # paths of sockets must be short
        self._nodes: dict[int, subprocess.Popen[bytes]] = {}
        self.env = environment() | {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
            "RAY_ADDRESS": f"{hosts.addresses[0]}:{PORT}",
            "RAY_gcs_server_request_timeout_seconds": "60",
            "RAY_raylet_start_wait_time_s": "60",
            "RAY_health_check_period_ms": "1000",
            "RAY_health_check_timeout_ms": "10000",
            "RAY_health_check_failure_threshold": "5",
            "RAY_DEDUP_LOGS": "0",
        }

    def start(self, host: int, attempts: int = 3) -> None:
        """Start the node of a host, and wait until it says that it runs.

        A raylet gives up where its agents are late, and they are Python processes on a machine that has much to do.
        """
        address = self.hosts.addresses[host]
        words = ["--head", f"--port={PORT}", "--include-dashboard=false"] if host == 0 else []
        words += [] if host == 0 else [f"--address={self.env['RAY_ADDRESS']}"]
        words += [f"--node-ip-address={address}", f"--num-cpus={self._cpus}", "--num-gpus=0"]
        words += ["--object-store-memory=100000000", "--disable-usage-stats", "--block", *_PORTS]
        words += [f"--temp-dir={self._folder}"] if host == 0 else []
        env = {name: text for name, text in self.env.items() if name != "RAY_ADDRESS"}
        log = self.log(host).open("wb")
        command = self.hosts.words(host, str(_RAY), "start", *words)
        self._nodes[host] = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
        log.close()
        until = time.monotonic() + _UP_WITHIN_S
        while "Ray runtime started" not in self.log(host).read_text():
            over = self._nodes[host].poll() is not None or time.monotonic() > until
            if over and attempts > 1:
                self._end(self._nodes.pop(host))
                return self.start(host, attempts - 1)
            if over:
                raise RuntimeError(f"Ray's node {host} has not started.\n{self._why(host)}")
            time.sleep(0.1)

    def _why(self, host: int) -> str:
        """What its processes have written that is fatal, and its own last words."""
        logs = sorted(self._folder.glob("session_*/logs/*.*"))
        lines = [line for path in logs for line in path.read_text(errors="replace").splitlines() if " C " in line]
        return "\n".join([*lines, self.log(host).read_text(errors="replace")[-3000:]])

    def log(self, host: int) -> Path:
        """What a node has written."""
        return self._folder / f"node{host}.log"

    def driver(
        self, script: str, *args: str, timeout_s: float = 100.0, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a script on the first host to its end."""
        words = (sys.executable, "-c", script, *args)
        return self.hosts.run(0, *words, timeout_s=timeout_s, env={**self.env, **(env or {})})

    def begin(self, script: str, *args: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a script on the first host; its lines can be read."""
        return subprocess.Popen(
            self.hosts.words(0, sys.executable, "-u", "-c", script, *args),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**self.env, **(env or {})},
        )

    def kill(self, host: int) -> None:
        """Kill a node's raylet; its processes end with it."""
        node = self._nodes.pop(host)
        for process in psutil.Process(node.pid).children(recursive=True):
            if process.name() == "raylet":
                process.kill()
        self._end(node)

    def down(self) -> None:
        """End all nodes, the head last."""
        for host in sorted(self._nodes, reverse=True):
            self._end(self._nodes.pop(host))
        shutil.rmtree(self._folder, ignore_errors=True)

    def _end(self, node: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            processes = [psutil.Process(node.pid), *psutil.Process(node.pid).children(recursive=True)]
            node.terminate()
            _, left = psutil.wait_procs(processes, _DOWN_WITHIN_S)
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        node.wait(_DOWN_WITHIN_S)


def processes_of(hosts: Hosts, words: str) -> list[psutil.Process]:
    """Processes on hosts of the test bed, whose command line has these words."""
    networks = {hosts.run(i, "readlink", "/proc/self/ns/net").stdout.strip() for i in range(len(hosts.names))}
    return [each for each in _on_networks(networks) if words in " ".join(each.info["cmdline"] or [])]


def _on_networks(networks: set[str]) -> Iterator[psutil.Process]:
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{process.pid}/ns/net") in networks:
                yield process


__all__ = ["PORT", "Nodes", "processes_of"]
