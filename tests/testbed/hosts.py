"""Hosts on this machine, for tests and to try something by hand: each with its own network, names and shared memory.

As root, with the packages iproute2, openssh-server and util-linux:

    python tests/testbed up 2 1gbit              # hosts wb1 and wb2, links of 1 Gbit/s
    python tests/testbed run wb1 ssh wb2 hostname
    python tests/testbed cut wb2                 # pull its cable out; heal wb2 plugs it in
    python tests/testbed rate 100mbit            # or none
    python tests/testbed slurm                   # then: run wb1 srun -N2 hostname
    python tests/testbed down

In a test, ``with Hosts(2) as hosts:``, or the fixture ``hosts``.

A host has namespaces of its own: network, host name, IPC, and mounts. ``/dev/shm``, ``/run``, ``/etc/hosts`` and the
boot id are its own, too, and so is the client configuration of ssh: ``ssh wb2`` inside a host asks nothing and writes
nothing. The links meet at a bridge that nothing else is connected to, so several test beds can have the same names and
addresses. Names: ``wb2`` has an IPv4 address, ``wb2-6`` an IPv6 address.

What it leaves out: the other files are shared, as on a cluster with a network file system, ``/tmp`` included; process
ids, cores and memory are shared; links have a rate, but neither delay nor loss.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from namespaces import CannotMakeHosts, Namespaces, check

TOOLS = {
    "iproute2": ("ip", "tc"),
    "util-linux": ("mount", "umount", "nsenter", "unshare"),
    "openssh-server": ("sshd", "ssh", "ssh-keygen"),
}
UP_WITHIN_S = 20.0
_PREFIX = "workbench-testbed-"
SYSTEM_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/sbin"

# In the new namespaces: $1 is the host's name, $2 its folder. ~/.ssh would win over /etc/ssh, so it is hidden where
# there is one. /sys shows the network interfaces of those who mounted it, so it is mounted anew.
_MOUNTS = """
echo "$1" >/proc/sys/kernel/hostname
if [ -e /proc/sys/net/ipv6 ]; then echo 0 >/proc/sys/net/ipv6/conf/all/disable_ipv6; fi
ip link set lo up
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t sysfs sysfs "$2/sys"
if [ -d /sys/fs/cgroup ]; then mount --rbind /sys/fs/cgroup "$2/sys/fs/cgroup"; fi
mount --rbind "$2/sys" /sys
mount -t tmpfs -o mode=755 run /run
mkdir -m 755 /run/sshd
mount --bind "$2/hosts" /etc/hosts
mount --bind "$2/../ssh/config" /etc/ssh/ssh_config
mount --bind "$2/../ssh/shadow" /etc/shadow
if [ -d ~/.ssh ]; then mount -t tmpfs -o mode=700 ssh ~/.ssh; fi
mount --bind "$2/boot_id" /proc/sys/kernel/random/boot_id
"""
_CLIENT = """\
Host *
  IdentityFile {0}/id
  IdentitiesOnly yes
  UserKnownHostsFile {0}/known_hosts
  GlobalKnownHostsFile none
  UpdateHostKeys no
  StrictHostKeyChecking yes
  BatchMode yes
"""
_SERVER = """\
HostKey {0}/ssh_host_key
PidFile {0}/sshd.pid
AuthorizedKeysFile {0}/../ssh/id.pub
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
Subsystem sftp internal-sftp
"""


class Hosts:
    r"""N hosts, joined by a bridge.

    Args:
        n: how many.
        rate: of each link, in the words of ``tc``: ``"1gbit"``; ``"none"`` leaves it as fast as the machine can.
        mark: a name of the test bed, by which another process finds it; else it is its creator's, and whoever makes
            hosts after the creator has died removes it.

    Attributes:
        names, addresses: of the hosts, in IPv4.
        names6, addresses6: in IPv6.
        folder: where all files of the test bed are; gone with it.

    Example:
        >>> with Hosts(2, rate="1gbit") as hosts:
        ...     hosts.run(0, "ssh", hosts.names[1], "hostname").stdout
        'wb2\n'
    """

    def __init__(self, n: int = 2, rate: str = "none", mark: str | None = None) -> None:
        numbers = range(1, n + 1)
        self.names = tuple(f"wb{i}" for i in numbers)
        self.addresses = tuple(f"10.77.0.{i}" for i in numbers)
        self.names6 = tuple(f"{name}-6" for name in self.names)
        self.addresses6 = tuple(f"fd00:77::{i:x}" for i in numbers)
        self.mark = mark or f"{_signature(os.getpid())}-{uuid.uuid4().hex[:8]}"
        self.folder = Path(tempfile.gettempdir()) / f"{_PREFIX}{self.mark}"
        self._rate = rate
        self._bridge = Namespaces(self.folder, "bridge", ["net"])
        self._hosts = [Namespaces(self.folder, name) for name in self.names]

    @classmethod
    def find(cls, mark: str) -> Hosts:
        """A test bed that is up already, or what is left of it."""
        folder = Path(tempfile.gettempdir()) / f"{_PREFIX}{mark}"
        return cls(len(list(folder.glob("wb*.net"))), mark=mark)

    def up(self) -> None:
        """Make the hosts.

        Raises:
            CannotMakeHosts: the text says why; nothing is left of them.
        """
        _see_to_what_is_needed()
        _remove_those_of_the_dead()
        try:
            self.folder.mkdir(mode=0o700)
        except FileExistsError:
            raise CannotMakeHosts(f"a test bed {self.mark} is there already: {self.folder}") from None
        try:
            check("mount", "-t", "tmpfs", "-o", "mode=700", "testbed", self.folder)
            check("mount", "--make-private", self.folder)
            self._write_ssh()
            self._make_bridge()
            for i in range(len(self.names)):
                self._make_host(i)
            self.rate(self._rate)
            self._wait_for_sshd()
        except BaseException:
            self.down()
            raise

    def down(self) -> None:
        """Kill what runs on the hosts, and remove all there is of them."""
        for each in (*self._hosts, self._bridge):
            each.remove()
        subprocess.run(["umount", "--lazy", self.folder], capture_output=True)
        with contextlib.suppress(FileNotFoundError):  # also ends its copies in mount namespaces of others
            self.folder.rmdir()

    def words(self, host: int, *command: str) -> list[str]:
        """A command, as it is run on a host: the process that is started becomes the command, so signals reach it."""
        return self._hosts[host].words(*command)

    def run(
        self, host: int, *command: str, timeout_s: float = 60.0, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on a host to its end; what it writes is kept."""
        words = self.words(host, *command)
        null = subprocess.DEVNULL
        return subprocess.run(words, stdin=null, capture_output=True, text=True, timeout=timeout_s, env=env)

    def cut(self, host: int) -> None:
        """Pull a host's cable out of the bridge."""
        check(*self._bridge.words("ip", "link", "set", self.names[host], "down"))

    def heal(self, host: int) -> None:
        """Plug a host's cable in again."""
        check(*self._bridge.words("ip", "link", "set", self.names[host], "up"))

    def rate(self, rate: str) -> None:
        """Let every host send at this rate; ``"none"`` for as fast as the machine can.

        After a pause some packets pass faster: up to 32 kB at 100 Mbit/s, 256 kB at 1 Gbit/s and more.
        """
        burst = "32kb" if rate.endswith("mbit") else "256kb"
        for i in range(len(self.names)):
            self.run(i, "tc", "qdisc", "del", "dev", "eth0", "root")  # fails where there is none
            if rate != "none":
                shape = ("tbf", "rate", rate, "burst", burst, "latency", "50ms")
                check(*self.words(i, "tc", "qdisc", "add", "dev", "eth0", "root", *shape))

    def __enter__(self) -> Hosts:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def _write_ssh(self) -> None:
        """The keys, and what both ends of ssh read. A locked password would keep root out: here it has none."""
        ssh = self.folder / "ssh"
        ssh.mkdir()
        _make_key(ssh / "id")
        (ssh / "config").write_text(_CLIENT.format(ssh))
        (ssh / "shadow").write_text("root:*:19000:0:99999:7:::\n")
        known = []
        for i, name in enumerate(self.names):
            own = self.folder / name
            own.mkdir()
            _make_key(own / "ssh_host_key")
            (own / "sshd_config").write_text(_SERVER.format(own))
            key = " ".join((own / "ssh_host_key.pub").read_text().split()[:2])
            known.append(f"{name},{self.addresses[i]},{self.names6[i]},{self.addresses6[i]} {key}\n")
        (ssh / "known_hosts").write_text("".join(known))

    def _make_bridge(self) -> None:
        self._bridge.make("ip", "link", "add", "bridge", "type", "bridge", "mcast_snooping", "0")
        check(*self._bridge.words("ip", "link", "set", "bridge", "up"))

    def _make_host(self, i: int) -> None:
        name, own, host = self.names[i], self.folder / self.names[i], self._hosts[i]
        lines = [
            "127.0.0.1 localhost",
            "::1 localhost ip6-localhost",
            *map(" ".join, zip(self.addresses, self.names, strict=True)),
            *map(" ".join, zip(self.addresses6, self.names6, strict=True)),
        ]
        (own / "hosts").write_text("\n".join(lines) + "\n")
        (own / "boot_id").write_text(f"{uuid.uuid4()}\n")
        (own / "sys").mkdir()
        host.make("sh", "-ec", _MOUNTS, "sh", name, str(own))
        link = ["ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", str(host.files["net"])]
        check(*self._bridge.words(*link))
        check(*self._bridge.words("ip", "link", "set", name, "master", "bridge", "up"))
        check(*host.words("ip", "addr", "add", f"{self.addresses[i]}/24", "dev", "eth0"))
        check(*host.words("ip", "addr", "add", f"{self.addresses6[i]}/64", "dev", "eth0", "nodad"))
        check(*host.words("ip", "link", "set", "eth0", "up"))
        # sshd must be called by its full path. It goes into the background by itself.
        sshd = shutil.which("sshd", path=SYSTEM_PATH) or "sshd"
        check(*host.words(sshd, "-f", str(own / "sshd_config"), "-E", str(own / "sshd.log")))

    def _wait_for_sshd(self) -> None:
        """Until each has written its process id, which it does when it listens."""
        until = time.monotonic() + UP_WITHIN_S
        for name in self.names:
            while not (self.folder / name / "sshd.pid").exists():
                if time.monotonic() > until:
                    said = (self.folder / name / "sshd.log").read_text()
                    raise CannotMakeHosts(f"sshd on {name} did not start within {UP_WITHIN_S:.0f} s: {said}")
                time.sleep(0.01)


def _see_to_what_is_needed() -> None:
    if sys.platform != "linux":
        raise CannotMakeHosts("hosts need Linux")
    if os.geteuid():
        raise CannotMakeHosts("hosts need root")
    missing = [
        package for package, tools in TOOLS.items() if not all(shutil.which(tool, path=SYSTEM_PATH) for tool in tools)
    ]
    if missing:
        raise CannotMakeHosts(f"hosts need the packages {', '.join(missing)}")


def _remove_those_of_the_dead() -> None:
    """What a creator left that was killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        mark = folder.name.removeprefix(_PREFIX)
        creator = re.fullmatch(r"((\d+)-\d+)-[0-9a-f]{8}", mark)
        if creator and creator[1] != _signature(int(creator[2])):
            Hosts.find(mark).down()


def _signature(pid: int) -> str:
    """A process, and when it started, in ticks since the machine did: the kernel uses process ids again."""
    with contextlib.suppress(OSError):
        return f"{pid}-{Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[19]}"
    return ""


def _make_key(path: Path) -> None:
    check("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", path)
