"""Which hosts a job uses, which ranks go to each, and what its agents are told."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from workbench import config
from workbench.errors import LaunchError
from workbench.launch.hosts.agent_connections import Target
from workbench.launch.hosts.remote_shell import LocalShell, Srun, Ssh
from workbench.launch.slurm.allocation import JobGpus, allocation, job_gpus, slots_here
from workbench.launch.start.gpus import GpuChoice
from workbench.launch.start.hosts import ONCE, check, discover, is_here, parse, read


@dataclass(frozen=True)
class HostPlan:
    """Where the ranks go.

    Args:
        targets: the hosts, each with its slots.
        networks: names of interfaces, of which one is to be used.
        ports: the first and the last that may be listened on; (0, 0): any.
        gpus: which GPU each rank sees, see :func:`workbench.launch.start.gpus.assign`; "" for all.
        folder: where the ranks start, on each host; "" for this process's.
    """

    targets: Sequence[Target]
    networks: Sequence[str] = ()
    ports: tuple[int, int] = (0, 0)
    gpus: GpuChoice = None
    folder: str = ""

    def ranks(self, n: int) -> dict[str, list[int]]:
        """By host the numbers of its ranks: a host's slots are filled before the next host's. None is empty.

        Raises:
            LaunchError: there are too few slots.

        Example:
            >>> plan = HostPlan([Target("a", 2, Ssh()), Target("b", 2, Ssh()), Target("c", 2, Ssh())])
            >>> plan.ranks(3)
            {'a': [0, 1], 'b': [2]}
        """
        found: dict[str, list[int]] = {}
        for target in self.targets:
            first = sum(map(len, found.values()))
            if mine := list(range(first, min(n, first + target.slots))):
                found[target.name] = mine
        if (slots := sum(target.slots for target in self.targets)) < n:
            names = ", ".join(target.name for target in self.targets)
            raise LaunchError(f"{n} ranks do not fit the {slots} slots of {names}.")
        return found

    def slurm_gpus(self) -> JobGpus:
        """Those of the Slurm job that the hosts belong to, unless the user has said which GPU each rank sees."""
        found = (target.shell.gpus for target in self.targets if isinstance(target.shell, Srun))
        return JobGpus() if self.gpus else next(found, JobGpus())


def find_hosts(
    listed: str, file: str, n: int | None, ssh: Ssh | None = None, script: str = "", slots: int = 1
) -> list[Target]:
    """The hosts of a job: those that the user names, else those of the Slurm job around this process.

    Args:
        listed, file: ``a:2,b:2``, or a file with a host per line; "" for none.
        n: how many ranks; None: as many as there are slots.
        ssh: how to reach hosts that the user names.
        script: prints hosts instead; "" for none.
        slots: of each host that it prints without.

    Returns:
        They; none where all ranks are to be here.

    Raises:
        LaunchError: hosts are named in two ways, one is named wrongly or twice, also by two names, there are too few
            slots, or the script or Slurm does not answer.
    """
    if ssh and ssh.identity and not os.access(os.path.expanduser(ssh.identity), os.R_OK):
        raise LaunchError(f"The key {ssh.identity} does not exist or cannot be read (--ssh-identity-file).")
    if sum(map(bool, (listed, file, script))) > 1:
        raise LaunchError("Name the hosts in one way: -H, --hostfile or --host-discovery-script.")
    if listed or file or script:
        named = parse(listed) if listed else read(file) if file else discover(script, slots)
        check(named, n or 0)
        targets = [Target(name, slots, LocalShell() if is_here(name) else ssh or Ssh()) for name, slots in named]
        if len(here := [target.name for target in targets if isinstance(target.shell, LocalShell)]) > 1:
            raise LaunchError(f"{' and '.join(here)} are one machine, this one. {ONCE}")
        return targets
    if alone := slots_here(n):  # its ranks need no agent
        return [Target("localhost", alone, LocalShell())]
    try:
        return slurm_targets(n)
    except LaunchError as error:
        hosts = ", ".join(part.names for part in config.batch_parts())
        raise LaunchError(f"{error} This Slurm job has {hosts}; -H localhost:{n or 1} starts all ranks here.") from None


def slurm_targets(n: int | None = None) -> list[Target]:
    """The hosts of the Slurm job around this process, which srun reaches; none outside of one.

    Args:
        n: how many ranks there are to be; None: as many as the job has tasks.

    Raises:
        LaunchError: Slurm does not answer.
    """
    parts = allocation(n)
    gpus = job_gpus(config.batch_job()) if parts else JobGpus()
    shells = [Srun(gpus=gpus, component=number if len(parts) > 1 else None) for number in range(len(parts))]
    return [Target(*host, shell) for part, shell in zip(parts, shells, strict=True) for host in part]
