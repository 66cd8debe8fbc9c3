"""A Slurm cluster on the hosts of a test bed: it ends with them.

slurmctld runs on the first host; slurmd and munged run on each. ``/etc/slurm`` of the hosts has the configuration, so
``srun``, ``sbatch`` and ``scontrol`` work there without any variable. The GPUs are device files that nothing opens:
Slurm counts them, gives them out, and sets ``CUDA_VISIBLE_DEVICES``.
"""

from __future__ import annotations

import os
import shutil
import stat
import time
from pathlib import Path

from hosts import SYSTEM_PATH, Hosts
from namespaces import CannotMakeHosts, check

TOOLS = {"munge": ("munged",), "slurm-wlm": ("slurmctld", "slurmd", "srun", "sinfo")}
READY_WITHIN_S = 20.0
_CONF = Path("/etc/slurm")  # of Debian's packages; in each host another folder is mounted there
_NULL = os.makedev(1, 3)

# It schedules and kills sooner than by default. Nothing is bound, confined or accounted: a host has too little for it.
_SETTINGS = {
    "ClusterName": "testbed",
    "SlurmUser": "root",
    "SlurmdUser": "root",
    "AuthType": "auth/munge",
    "CredType": "cred/munge",
    "StateSaveLocation": "/run/slurmctld",
    "SlurmdSpoolDir": "/run/slurmd",
    "SlurmctldPidFile": "/run/slurmctld.pid",
    "SlurmdPidFile": "/run/slurmd.pid",
    "TmpFS": "/run",
    "ProctrackType": "proctrack/linuxproc",
    "TaskPlugin": "task/none",
    "JobAcctGatherType": "jobacct_gather/none",
    "AccountingStorageType": "accounting_storage/none",
    "SelectType": "select/cons_tres",
    "SelectTypeParameters": "CR_CPU",
    "SchedulerParameters": "batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1",
    "SlurmdParameters": "config_overrides",  # as many cores as is said, whatever the machine has
    "ReturnToService": "2",
    "KillWait": "5",
    "GresTypes": "gpu",
}


def start(hosts: Hosts, gpus: int = 2, cpus: int = 4, **settings: str) -> None:
    """Start it, and wait until every host can be given to a job.

    Args:
        gpus, cpus: how many each host is said to have.
        settings: for ``slurm.conf``: ``SlurmdTimeout="5"``.

    Raises:
        CannotMakeHosts: the text says why.
    """
    path = SYSTEM_PATH
    missing = [package for package, tools in TOOLS.items() if not all(shutil.which(tool, path=path) for tool in tools)]
    if missing or not _CONF.is_dir():
        raise CannotMakeHosts(f"Slurm needs the packages {', '.join(missing or TOOLS)}")
    folder = hosts.folder / "slurm"
    if folder.exists():
        raise CannotMakeHosts(f"Slurm is on these hosts already: {folder}")
    folder.mkdir()
    _write_key(folder / "munge.key")
    _write_conf(folder, hosts, gpus, cpus, settings)
    for i in range(len(hosts.names)):
        _munged(hosts, i, folder)
        check(*hosts.words(i, "mount", "--bind", str(folder / "etc"), str(_CONF)))
    check(*hosts.words(0, "slurmctld"))
    for i in range(len(hosts.names)):
        check(*hosts.words(i, "slurmd"))
    _wait_for_nodes(hosts, folder)


def _write_key(path: Path) -> None:
    path.touch(0o600)
    path.write_bytes(os.urandom(1024))


def _write_conf(folder: Path, hosts: Hosts, gpus: int, cpus: int, settings: dict[str, str]) -> None:
    devices = [folder / f"nvidia{i}" for i in range(gpus)]
    for device in devices:
        os.mknod(device, 0o666 | stat.S_IFCHR, _NULL)
    given = {
        "SlurmctldHost": f"{hosts.names[0]}({hosts.addresses[0]})",
        "SlurmctldLogFile": f"{folder}/slurmctld.log",
        "SlurmdLogFile": f"{folder}/slurmd-%n.log",
        **_SETTINGS,
        **settings,
    }
    lines = [f"{name}={text}" for name, text in given.items()]
    for name, address in zip(hosts.names, hosts.addresses, strict=True):
        lines.append(f"NodeName={name} NodeAddr={address} CPUs={cpus} RealMemory=2000 Gres=gpu:{gpus}")
    lines.append("PartitionName=main Nodes=ALL Default=YES")
    (folder / "etc").mkdir()
    (folder / "etc" / "slurm.conf").write_text("\n".join(lines) + "\n")
    (folder / "etc" / "gres.conf").write_text("".join(f"Name=gpu File={device}\n" for device in devices))


def _munged(hosts: Hosts, i: int, folder: Path) -> None:
    """Its socket is where Slurm looks for it, in a folder that is each host's own."""
    check(*hosts.words(i, "mkdir", "-m", "755", "/run/munge"))
    files = {"key-file": folder / "munge.key", "seed-file": "/run/munge/seed", "log-file": "/run/munge/log"}
    check(*hosts.words(i, "munged", "--pid-file=/run/munge/pid", *(f"--{name}={path}" for name, path in files.items())))


def _wait_for_nodes(hosts: Hosts, folder: Path) -> None:
    until = time.monotonic() + READY_WITHIN_S
    while hosts.run(0, "sinfo", "-h", "-t", "idle", "-o", "%D").stdout.strip() != str(len(hosts.names)):
        if time.monotonic() > until:
            said = "".join(path.read_text()[-2000:] for path in folder.glob("*.log"))
            raise CannotMakeHosts(f"Slurm's nodes were not ready within {READY_WITHIN_S:.0f} s: {said}")
        time.sleep(0.05)
