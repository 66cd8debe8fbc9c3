"""Two hosts on one machine: each has a network, a name and shared memory of its own, and a cable joins them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path


class TwoHosts:
    """Made with ``ip`` and ``unshare``; names and addresses are of this test run alone.

    Attributes:
        names: of the hosts.
        addresses: of the hosts, on the cable.
    """

    def __init__(self) -> None:
        mark = f"wb{os.getpid()}"
        self.names, self.addresses = (f"{mark}a", f"{mark}b"), ("10.77.0.1", "10.77.0.2")
        self._ends = ("wbcable0", "wbcable1")

    def up(self) -> None:
        """Make them."""
        for name in self.names:
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        cable = ["link", "add", self._ends[0], "type", "veth", "peer", "name", self._ends[1], "netns", self.names[1]]
        _ip("-n", self.names[0], *cable)
        for name, address, end in zip(self.names, self.addresses, self._ends, strict=True):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            _ip("-n", name, "link", "set", end, "up")

    def cut(self) -> None:
        """Pull the cable out."""
        _ip("-n", self.names[1], "link", "set", self._ends[1], "down")

    def words(self, host: int, *command: str) -> list[str]:
        """A command, as it is run on a host."""
        inside = f'hostname {self.names[host]} && mount -t tmpfs tmpfs /dev/shm && exec "$@"'
        alone = ["unshare", "--uts", "--ipc", "--mount", "sh", "-c", inside, "sh"]
        return ["ip", "netns", "exec", self.names[host], *alone, *command]

    def look(self, host: int, *command: str) -> str:
        """What a command prints on a host."""
        done = subprocess.run(["ip", "netns", "exec", self.names[host], *command], capture_output=True, text=True)
        return done.stdout

    def environment(self, rank: int, n: int, port: int) -> dict[str, str]:
        """What torchrun would say to one of ``n`` ranks, of which each host has as many."""
        root = str(Path(__file__).resolve().parents[2])
        each = n // 2
        return {
            **{name: text for name, text in os.environ.items() if not name.startswith(("SLURM_", "WORKBENCH_"))},
            **{"RANK": str(rank), "WORLD_SIZE": str(n), "LOCAL_RANK": str(rank % each), "LOCAL_WORLD_SIZE": str(each)},
            **{"MASTER_ADDR": self.addresses[0], "MASTER_PORT": str(port), "PYTHONPATH": root},
            **{"GLOO_SOCKET_IFNAME": self._ends[rank // each], "OMP_NUM_THREADS": "1"},
        }

    def down(self) -> None:
        """End what still runs there, and remove them."""
        for name in self.names:
            left = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True).stdout.split()
            for pid in left:
                subprocess.run(["kill", "-9", pid], capture_output=True)
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)
